//! Files of kernel variants.

use std::path::Path;
use tailgraph::Error;
use tailgraph::backend::cuda::tuning::variants::{
    Architecture, Entry, Experts, Grouped, Linear, Variant,
};
use tailgraph::backend::cuda::tuning::{GpuClass, KernelChoice, KernelFile, Shape};
use tailgraph::model::DType;
use tailgraph::plan::GraphFile;

/// Rows of a decode bucket that has kernels of its own on every architecture, at most.
const FEW_ROWS: u32 = 256;
const DTYPES: [DType; 3] = [DType::BF16, DType::F16, DType::F32];
/// For whom the built-in file for 9.0 has entries.
pub const H200: GpuClass = GpuClass {
    multiprocessors: 132,
    gb_per_s: 4800,
};
pub const SKINNY: &str = "products = \"skinny\", skinny_stages = 4, experts = \"skinny\"";
pub const GROUPED: &str = "products = \"swap_ab\", experts = \"grouped\", tile_rows = 32, grouped_stages = 6, guess = true";

pub fn read(text: &str) -> Result<KernelFile, Error> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernels.toml");
    std::fs::write(&path, text).unwrap();
    KernelFile::read(&path)
}

/// A file for 9.0 with these lines.
pub fn with(text: &str) -> Result<KernelFile, Error> {
    read(&format!("architecture = \"sm_90\"\n{text}"))
}

/// Larger buckets have the kernels for many rows. Entries of more than [`FEW_ROWS`] rows are there where these lost.
#[test]
fn built_in_files_have_every_bucket_that_tune_measures() {
    let whole = GraphFile::built_in().unwrap().bucket_sizes.decode;
    let sizes: Vec<u32> = whole.iter().copied().filter(|&r| r <= FEW_ROWS).collect();
    for architecture in Architecture::ALL {
        let file = KernelFile::built_in(architecture).unwrap();
        assert_eq!(file.architecture, architecture);
        for dtype in DTYPES {
            let entries = file.entries(dtype);
            let most = architecture.chosen_rows(dtype);
            let last = entries.last().unwrap().rows;
            assert!((FEW_ROWS..=most).contains(&last), "{last} of {most}");
            let ascending = entries.windows(2).all(|pair| pair[0].rows < pair[1].rows);
            assert!(ascending, "{architecture:?} {dtype:?}");
        }
    }
    let rows = |entries: &[Entry]| entries.iter().map(|entry| entry.rows).collect::<Vec<_>>();
    let hopper = KernelFile::built_in(Architecture::Sm90).unwrap();
    for dtype in DTYPES {
        let found = rows(hopper.entries(dtype));
        assert_eq!(found, whole[..found.len()], "{dtype:?}");
        assert_eq!(found[..sizes.len()], sizes, "{dtype:?}");
    }
}

#[test]
fn built_in_files_are_what_is_written_of_them() {
    for architecture in Architecture::ALL {
        let file = KernelFile::built_in(architecture).unwrap();
        let name = format!("graphs/{}.toml", architecture.name());
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let on_disk = std::fs::read_to_string(&path).unwrap();
        assert_eq!(file.to_string(), on_disk, "{}", path.display());
    }
}

#[test]
fn what_is_written_is_read_again() {
    let mut file = with(&format!(
        "[measured]\nmodel = \"random:lfm2-8b-a1b\"\ngpu = \"a \\\"GPU\\\"\"\n[decode.f32]\n8 = {{ {SKINNY}, ms = 1.25 }}\n"
    ))
    .unwrap();
    let variant = Variant {
        linear: Linear::Skinny { stages: 3 },
        experts: Experts::Grouped(Grouped {
            tile_rows: 8,
            stages: 12,
            predict: false,
            prefetch_mib: 0,
        }),
    };
    let prefetching = Variant {
        linear: Linear::SwapAb,
        experts: Experts::Grouped(Grouped {
            tile_rows: 64,
            stages: 6,
            predict: true,
            prefetch_mib: 16,
        }),
    };
    let entry = |rows, ms| Entry { rows, variant, ms };
    file.set(Shape::BASE, DType::F32, entry(4, Some(0.5)));
    file.set(Shape::BASE, DType::F32, entry(8, None));
    file.set(Shape::BASE, DType::BF16, entry(1, None));
    file.set(
        Shape::BASE,
        DType::F16,
        Entry {
            variant: prefetching,
            ..entry(256, None)
        },
    );
    let rows: Vec<_> = file.entries(DType::F32).iter().map(|e| e.rows).collect();
    assert_eq!(rows, [4, 8]);
    let again = read(&file.to_string()).unwrap();
    assert_eq!(again.to_string(), file.to_string());
    for dtype in DTYPES {
        assert_eq!(again.entries(dtype), file.entries(dtype), "{dtype:?}");
    }
}

/// Equal choices have equal names, however they were measured; others have others.
#[test]
fn a_name_says_what_is_chosen() {
    let name = |text: &str| with(text).unwrap().name(H200);
    let skinny = format!("[decode.bf16]\n8 = {{ {SKINNY} }}");
    let timed = format!("[measured]\ngpu = \"one\"\n[decode.bf16]\n8 = {{ {SKINNY}, ms = 2.0 }}");
    assert_eq!(name(&skinny), name(&timed));
    assert!(name(&skinny).starts_with("sm_90-"), "{}", name(&skinny));
    for other in [
        skinny.replace("4", "5"),
        skinny.replace("8 =", "4 ="),
        skinny.replace("bf16", "f16"),
        format!("[decode.bf16]\n8 = {{ {GROUPED} }}"),
        format!("[decode.bf16]\n8 = {{ {GROUPED}, prefetch_mib = 16 }}"),
    ] {
        assert_ne!(name(&skinny), name(&other), "{other}");
    }
}

#[test]
fn a_choice_is_for_one_architecture() {
    let built_in = KernelChoice::default();
    for (capability, name) in [((8, 6), "sm_80"), ((9, 0), "sm_90"), ((10, 3), "sm_100")] {
        let file = built_in.for_gpu(capability, H200).unwrap();
        assert_eq!(file.file.architecture.name(), name);
    }
    let error = built_in.for_gpu((7, 5), H200).unwrap_err().to_string();
    assert!(error.contains("7.5"), "{error}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ampere.toml");
    std::fs::write(&path, "architecture = \"sm_80\"").unwrap();
    let named = KernelChoice::open(Some(&path)).unwrap();
    let served = named.for_gpu((8, 9), H200).unwrap();
    assert_eq!(
        served.choice(DType::F32, Shape::BASE).named,
        Some(path.as_path())
    );
    let error = named.for_gpu((9, 0), H200).unwrap_err().to_string();
    for part in ["ampere.toml", "found sm_80", "expected sm_90"] {
        assert!(error.contains(part), "{error} lacks {part}");
    }
}

#[test]
fn errors_name_the_entry_what_it_holds_and_what_it_should() {
    let entry = |entry: &str| format!("[decode.bf16]\n16 = {{ {entry} }}");
    let grouped = |from: &str, to: &str| entry(&GROUPED.replace(from, to));
    for (text, parts) in [
        (
            "other = 1".to_owned(),
            &["unknown key 'other'", "decode"][..],
        ),
        ("decode = 1".into(), &["decode: found 1", "a table"]),
        (
            "[decode]\nbf16 = 1".into(),
            &["decode.bf16: found 1", "a table"],
        ),
        (
            "[decode.f64]".into(),
            &["unknown type 'f64'", "bf16, f16 or f32"],
        ),
        ("[decode.f32]\n0 = 1".into(), &["decode.f32.0", "1 to 1024"]),
        (
            "[decode.f32]\nx = 1".into(),
            &["decode.f32.x", "a bucket in tokens"],
        ),
        (
            "[decode.f32]\n8 = 1".into(),
            &["decode.f32.8: found 1", "products"],
        ),
        ("[measured]\nx = 1".into(), &["measured", "'x'", "gpu"]),
        (
            "[measured]\ngpu = 1".into(),
            &["measured.gpu: found 1", "text"],
        ),
        ("[decode".into(), &["line 2", "not TOML"]),
        (
            entry("experts = \"skinny\""),
            &["bf16.16", "products: missing", "swap_ab"],
        ),
        (
            grouped("swap_ab", "all"),
            &["products: found \"all\"", "tiled"],
        ),
        (
            grouped("grouped\"", "x\""),
            &["experts: found \"x\"", "grouped"],
        ),
        (
            grouped("tile_rows = 32, ", ""),
            &["tile_rows: found nothing", "a number"],
        ),
        (
            grouped("= 32", "= -1"),
            &["tile_rows: found -1", "a number"],
        ),
        (
            grouped("= 32", "= 24"),
            &["tile_rows 24", "8, 16, 32, 64, 96 or 128"],
        ),
        (grouped("= 6", "= 2"), &["grouped_stages 2", "3 to 16"]),
        (grouped("true", "1"), &["guess: found 1", "true or false"]),
        (
            grouped("true", "true, prefetch_mib = \"x\""),
            &["prefetch_mib: found \"x\"", "a number"],
        ),
        (
            grouped("true", "true, prefetch_mib = 5000"),
            &["prefetch_mib 5000", "up to 256"],
        ),
        (
            grouped("swap_ab", "tiled").replace("true", "true, prefetch_mib = 16"),
            &["prefetch_mib 16", "products = \"swap_ab\""],
        ),
        (
            grouped("true", "true, skinny_stages = 4"),
            &["skinny_stages", "no such parameter"],
        ),
        (
            entry(&SKINNY.replace("stages", "stagez")),
            &["bf16.16", "unknown key 'skinny_stagez'", "skinny_stages, "],
        ),
        (
            grouped("true", "true, colour = 3"),
            &["bf16.16", "unknown key 'colour'", "prefetch_mib, ms"],
        ),
        (
            grouped("true", "true, ms = \"x\""),
            &["ms: found \"x\"", "milliseconds"],
        ),
        (
            grouped("swap_ab\"", "skinny\", skinny_stages = 4"),
            &["bf16.16", "up to 8 tokens"],
        ),
        (
            grouped(
                "\"grouped\", tile_rows = 32, grouped_stages = 6, guess = true",
                "\"skinny\"",
            ),
            &["bf16.16", "products = \"skinny\""],
        ),
        (
            grouped(
                "\"grouped\", tile_rows = 32, grouped_stages = 6, guess = true",
                "\"fused\"",
            ),
            &["bf16.16", "experts = \"fused\"", "products = \"skinny\""],
        ),
        (
            format!(
                "[decode.f32]\n2 = {{ {} }}",
                SKINNY
                    .replace("\"skinny\"", "\"fused\"")
                    .replacen("fused", "skinny", 1)
            ),
            &["f32.2", "fused experts", "one token"],
        ),
        (
            entry(GROUPED).replace("16 =", "512 ="),
            &["bf16.512", "swap-AB", "up to 256 tokens"],
        ),
        (
            format!(
                "[decode.f32]\n512 = {{ {} }}",
                GROUPED.replace("swap_ab", "persistent")
            ),
            &["f32.512", "grouped", "up to 256 tokens"],
        ),
        (
            format!(
                "[decode.f16]\n1024 = {{ {} }}",
                GROUPED
                    .replace("swap_ab", "persistent")
                    .replace("= 6", "= 4")
            ),
            &["f16.1024", "grouped_stages 4", "at least 5"],
        ),
        (
            format!("[decode.f32]\n16 = {{ {} }}", GROUPED.replace("32", "64")),
            &["f32.16", "tile_rows 64", "at most 32"],
        ),
        (
            format!("[decode.f32]\n8 = {{ {} }}", SKINNY.replace('4', "1")),
            &["skinny_stages 1", "2 to 16"],
        ),
    ] {
        let error = with(&text).expect_err(&text).to_string();
        assert!(error.contains("kernels.toml"), "{error}");
        for part in parts {
            assert!(error.contains(part), "{text}: {error} lacks {part}");
        }
    }
    for (text, part) in [
        ("", "architecture: missing"),
        ("architecture = \"sm_75\"", "found \"sm_75\""),
        ("architecture = 9", "found 9"),
    ] {
        let error = read(text).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("sm_100"), "{error}");
    }
}

/// Kernels that an architecture does not have.
#[test]
fn families_belong_to_architectures() {
    for (architecture, entry, part) in [
        ("sm_80", SKINNY, "expected tiled"),
        ("sm_80", GROUPED, "sm_90's"),
        ("sm_100", GROUPED, "sm_90's"),
    ] {
        let text = format!("architecture = \"{architecture}\"\n[decode.f16]\n8 = {{ {entry} }}");
        let error = read(&text).unwrap_err().to_string();
        for part in ["decode.f16.8", architecture, part] {
            assert!(error.contains(part), "{error} lacks {part}");
        }
    }
    read(&format!(
        "architecture = \"sm_100\"\n[decode.f16]\n8 = {{ {SKINNY} }}"
    ))
    .unwrap();
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error = KernelChoice::open(Some(Path::new("no/such/kernels.toml"))).unwrap_err();
    assert!(
        error.to_string().contains("no/such/kernels.toml"),
        "{error}"
    );
}
