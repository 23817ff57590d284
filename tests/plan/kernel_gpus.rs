//! Kernel files with entries of several GPUs.

use crate::kernels::{GROUPED, H200, SKINNY, read, with};
use tailgraph::backend::cuda::tuning::variants::{Architecture, Entry, Experts, Variant};
use tailgraph::backend::cuda::tuning::{GpuClass, KernelChoice, KernelFile, Shape};
use tailgraph::model::DType;

const BF16: DType = DType::BF16;
/// Not as [`SKINNY`].
const FUSED: &str = "products = \"skinny\", skinny_stages = 6, experts = \"fused\"";

fn gpu(name: &str) -> GpuClass {
    GpuClass::parse(name).unwrap()
}

fn wide() -> Shape {
    Shape::parse("h2048-e64-f1536").unwrap()
}

/// Plain tables of m132-b4800, and others of m132-b3352 for one shape and of m66-b2000 for another.
fn several() -> String {
    format!(
        "for_gpu = \"m132-b4800\"\n[measured]\ngpu = \"one\"\n[decode.bf16]\n8 = {{ {SKINNY}, ms = 2.5 }}\n\
         [shape.h2048-e64-f1536.decode.bf16]\n8 = {{ {SKINNY} }}\n\
         [gpu.m132-b3352.measured]\ngpu = \"two\"\n[gpu.m132-b3352.decode.bf16]\n1 = {{ {FUSED}, ms = 1.5 }}\n\
         [gpu.m66-b2000.shape.h2048-e64-f1536.decode.bf16]\n8 = {{ {GROUPED} }}\n"
    )
}

fn serves(file: &KernelFile, gpu: GpuClass, shape: Shape) -> Vec<(u32, Experts)> {
    let origin = file.origin(gpu, BF16, shape).unwrap();
    let entries = file.entries_of(origin, BF16).iter();
    entries
        .map(|entry| (entry.rows, entry.variant.experts))
        .collect()
}

/// By names that results of runs have had, which are of every bucket's kernels.
#[test]
fn built_in_files_serve_every_gpu_as_before() {
    for (architecture, name) in [
        (Architecture::Sm80, "sm_80-8b20df1921015918"),
        (Architecture::Sm90, "sm_90-cc44e3f9af49a629"),
        (Architecture::Sm100, "sm_100-a2928356384118d9"),
    ] {
        let file = KernelFile::built_in(architecture).unwrap();
        for gpu in [H200, gpu("m132-b3352"), gpu("m20-b0")] {
            assert_eq!(file.name(gpu), name, "{gpu}");
        }
    }
}

/// The nearest shape first, and of its entries the nearest GPU's.
#[test]
fn a_gpu_has_its_own_entries_or_the_nearest() {
    let file = with(&several()).unwrap();
    let (hopper, other) = (gpu("m132-b3352"), gpu("m66-b2000"));
    let plain = (8, Experts::Skinny);
    let grouped = serves(&file, other, wide());
    assert!(matches!(grouped[..], [(8, Experts::Grouped(_))]));
    assert_eq!(serves(&file, H200, Shape::BASE), [plain]);
    assert_eq!(serves(&file, hopper, Shape::BASE), [(1, Experts::Fused)]);
    assert_eq!(serves(&file, other, Shape::BASE), [(1, Experts::Fused)]);
    assert_eq!(serves(&file, H200, wide()), [plain]);
    assert_eq!(
        serves(&file, hopper, wide()),
        [plain],
        "the shape comes first"
    );
    // Nearly the same rate is the same GPU; another one has what is less far.
    for (name, own, experts) in [
        ("m132-b4917", true, Experts::Skinny),
        ("m132-b3400", true, Experts::Fused),
        ("m132-b3900", false, Experts::Fused),
        ("m132-b4300", false, Experts::Skinny),
    ] {
        let origin = file.origin(gpu(name), BF16, Shape::BASE).unwrap();
        assert_eq!((origin.own_gpu, origin.own_shape), (own, true), "{name}");
        assert_eq!(
            file.entries_of(origin, BF16)[0].variant.experts,
            experts,
            "{name}"
        );
    }
    let odd = Shape::parse("h2048-e60-f1536").unwrap();
    let origin = file.origin(other, BF16, odd).unwrap();
    assert!(origin.own_gpu && !origin.own_shape && origin.shape == wide());
    let nobody = with(&several().replace("for_gpu = \"m132-b4800\"", "")).unwrap();
    let origin = nobody.origin(H200, BF16, Shape::BASE).unwrap();
    assert_eq!(origin.gpu, Some(hopper), "one that is named is nearer");
    assert_eq!(nobody.origin(H200, BF16, wide()).unwrap().gpu, Some(other));
}

#[test]
fn a_name_is_of_what_serves_the_gpu() {
    let (one, other) = (gpu("m132-b3352"), gpu("m66-b2000"));
    let file = with(&several()).unwrap();
    assert_ne!(file.name(H200), file.name(one));
    assert_ne!(file.name(one), file.name(other));
    assert_eq!(file.name(H200), file.name(gpu("m132-b4917")));
    let plain = with(several().split("[gpu").next().unwrap()).unwrap();
    assert_eq!(
        plain.name(H200),
        file.name(H200),
        "others' entries are not its own"
    );
    assert_eq!(plain.name(one), plain.name(H200));
    let choice = KernelChoice::from(file.clone());
    let asked = |choice: &KernelChoice| choice.for_gpu((9, 0), one).unwrap().name();
    assert_eq!(asked(&choice), file.name(one));
    assert_eq!(asked(&choice.as_gpu(H200)), file.name(H200));
}

#[test]
fn sections_of_gpus_are_written_as_they_are_read() {
    let file = with(&several()).unwrap();
    let again = read(&file.to_string()).unwrap();
    assert_eq!(again.to_string(), file.to_string());
    assert!(again.all().eq(file.all()), "{file}");
    assert_eq!(
        again.measured(gpu("m132-b3352")),
        file.measured(gpu("m132-b3352"))
    );
}

/// What is measured is in the GPU's own tables, whole; those of others keep their entries and times.
#[test]
fn tune_writes_its_own_gpus_tables() {
    let before = with(&several()).unwrap();
    let variant = Variant::TILED;
    let found = |rows| {
        [(
            BF16,
            Entry {
                rows,
                variant,
                ms: Some(1.0),
            },
        )]
    };
    let noted = || vec![("gpu".to_owned(), "three".to_owned())];
    let ms = |file: &KernelFile, gpu, shape| {
        let origin = file.origin(gpu, BF16, shape).unwrap();
        assert!(origin.own_gpu && origin.own_shape);
        let entries = file.entries_of(origin, BF16).iter();
        entries
            .map(|entry| (entry.rows, entry.ms))
            .collect::<Vec<_>>()
    };

    let new = gpu("m100-b3000");
    let file = before.tuned(new, Shape::BASE, &found(4), noted());
    assert_eq!(ms(&file, new, Shape::BASE), [(1, None), (4, Some(1.0))]);
    assert_eq!(file.measured(new), noted());
    for (other, kept) in [(H200, (8, Some(2.5))), (gpu("m132-b3352"), (1, Some(1.5)))] {
        assert_eq!(ms(&file, other, Shape::BASE), [kept]);
        assert_eq!(file.measured(other), before.measured(other));
        assert_eq!(file.name(other), before.name(other));
    }
    assert_eq!(
        read(&file.to_string()).unwrap().to_string(),
        file.to_string()
    );

    // A GPU whose driver says nearly the same has these tables, not new ones.
    let file = before.tuned(gpu("m132-b4917"), wide(), &found(8), noted());
    assert_eq!(ms(&file, H200, wide()), [(8, Some(1.0))]);
    assert_eq!(
        ms(&file, H200, Shape::BASE),
        [(8, None)],
        "of another measurement"
    );
    assert_eq!(file.measured(H200), noted());
    assert!(!file.to_string().contains("m132-b4917"));

    // Nobody knows whose plain tables are that name nobody.
    let plain = with(&format!("[decode.bf16]\n8 = {{ {SKINNY} }}")).unwrap();
    let file = plain.tuned(H200, Shape::BASE, &found(8), noted());
    assert_eq!(file.entries(BF16), plain.entries(BF16));
    assert_eq!(ms(&file, H200, Shape::BASE), [(8, Some(1.0))]);
}

#[test]
fn what_is_wrong_with_a_gpu_is_named() {
    for (text, parts) in [
        (
            "for_gpu = \"H200\"",
            &["for_gpu: found \"H200\"", "m132-b3352", "doctor"][..],
        ),
        ("for_gpu = 3", &["for_gpu: found 3"]),
        ("gpu = \"H200\"", &["gpu: found \"H200\"", "a table"]),
        (
            "[gpu.\"NVIDIA H100\".decode.bf16]",
            &["gpu: found 'NVIDIA H100'", "m132-b3352"],
        ),
        (
            "[gpu.m132-b3352.score.bf16]",
            &["gpu.m132-b3352: unknown key 'score'", "decode.TYPE"],
        ),
        (
            "[gpu.m132-b3352.decode.fp8]",
            &["gpu.m132-b3352.decode: ", "'fp8'"],
        ),
        (
            "[gpu.m132-b3352.decode.f32]\nx = 1",
            &["gpu.m132-b3352.decode.f32.x: "],
        ),
        (
            "[gpu.m132-b3352.measured]\nx = 1",
            &["gpu.m132-b3352.measured: ", "'x'"],
        ),
        (
            "[gpu.m132-b3352.gpu.m1-b1]",
            &["gpu.m132-b3352: unknown key 'gpu'"],
        ),
        (
            "[shape.h64-e64-f32.gpu.m132-b3352.decode.bf16]",
            &[
                "shape.h64-e64-f32: found 'gpu'",
                "[gpu.NAME.shape.h64-e64-f32.decode.TYPE]",
            ],
        ),
        (
            "for_gpu = \"m132-b4800\"\n[gpu.m132-b4917.decode.bf16]",
            &["gpu.m132-b4917: for_gpu names this GPU", "[decode.TYPE]"],
        ),
        (
            "[gpu.m132-b4800.decode.bf16]\n[gpu.m132-b4917.decode.bf16]",
            &["gpu.m132-b4917: is the GPU of [gpu.m132-b4800] too"],
        ),
    ] {
        let error = with(text).expect_err(text).to_string();
        for part in parts {
            assert!(error.contains(part), "{text}: {error} lacks {part}");
        }
    }
}
