//! `tune` over the test's driver, whose kernels take no time: what is measured and written, not how long it takes.

use crate::common::program::{Ended, send};
use crate::rig::Run;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;
use tailgraph::backend::cuda::tuning::variants::{Architecture, Entry};
use tailgraph::backend::cuda::tuning::{GpuClass, KernelFile, Shape};
use tailgraph::model::{DType, ModelSource};

/// The test's.
const GPU: GpuClass = GpuClass {
    multiprocessors: 132,
    gb_per_s: 4800,
};

fn tune(arguments: &[&str]) -> Run {
    Run::new(&["tune", "--model", "random:tiny", "--device", "cuda"]).and(arguments)
}

#[test]
fn what_was_measured_is_written_and_can_be_run_by() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    let path = path.to_str().unwrap();
    let ended = tune(&[
        "--bucket", "1,8,16", "--dtype", "f32", "--commit", "abc", "-o", path,
    ])
    .end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(ended.stdout.lines().count(), 1 + 3, "{}", ended.stdout);
    assert_eq!(
        ended.stderr.matches("f32, bucket ").count(),
        3,
        "{}",
        ended.stderr
    );

    let finalists = ended.stderr.lines().filter(|line| line.starts_with("  "));
    let finalists: Vec<&str> = finalists.collect();
    assert_eq!(finalists.len(), 3 * 4, "{}", ended.stderr);
    assert!(
        finalists
            .iter()
            .all(|line| line.contains(" ms by products "))
    );

    let file = KernelFile::read(path.as_ref()).unwrap();
    let built_in = KernelFile::built_in(Architecture::Sm90).unwrap();
    assert_eq!(file.architecture, Architecture::Sm90);
    for dtype in [DType::BF16, DType::F16] {
        // The same choice, without the times of another measurement.
        let (found, expected) = (file.entries(dtype), built_in.entries(dtype));
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert_eq!(
                (found.rows, found.variant, found.ms),
                (expected.rows, expected.variant, None)
            );
        }
    }
    for entry in of_tiny(&file, DType::F32) {
        let measured = [1, 8, 16].contains(&entry.rows);
        assert_eq!(entry.ms.is_some(), measured, "{entry:?}");
    }
    let said = |name: &str| {
        let measured = file.measured(GPU).iter();
        let found = measured.clone().find(|(said, _)| said == name);
        found.map(|(_, text)| text.as_str())
    };
    assert_eq!(said("model"), Some("random:tiny"));
    assert_eq!(said("gpu"), Some("Test GPU 0"));
    assert_eq!(said("commit"), Some("abc"));
    assert!(
        said("command")
            .unwrap()
            .starts_with("tailgraph tune --model")
    );

    let again = Run::new(&[
        "bench",
        "decode",
        "--model",
        "random:tiny",
        "--device",
        "cuda",
    ])
    .and(&[
        "--launch", "bare", "-b", "1", "-p", "8", "-n", "8", "-r", "1",
    ])
    .and(&["--dtype", "f32", "--format", "json", "--kernel-file", path])
    .end();
    assert_eq!(again.code, 0, "{}", again.stderr);
    let rows: serde_json::Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(rows[0]["kernel_file"], path);
    assert_eq!(rows[0]["kernel_variants"], file.name(GPU));
}

/// The entries that serve `random:tiny`.
fn of_tiny(file: &KernelFile, dtype: DType) -> &[Entry] {
    let source = ModelSource::parse("random:tiny").unwrap();
    let shape = Shape::of(&source.config().unwrap().0);
    let origin = file.origin(GPU, dtype, shape).unwrap();
    file.entries_of(origin, dtype)
}

/// Another GPU's entries stay as they are, with their times.
#[test]
fn another_gpu_has_tables_of_its_own() {
    let ended = tune(&["--bucket", "2", "--dtype", "bf16", "--quiet"]);
    let ended = ended.with("RATE", 3352).end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let built_in = KernelFile::built_in(Architecture::Sm90).unwrap();
    let (plain, own) = ended.stdout.split_once("\n[gpu.").unwrap();
    assert_eq!(
        format!("{plain}\n").trim_end(),
        built_in.to_string().trim_end()
    );
    for part in [
        "m132-b3352.measured]",
        "gpu = \"Test GPU 0\"",
        "[gpu.m132-b3352.shape.h256-e8-f64.decode.bf16]",
    ] {
        assert!(own.contains(part), "{own} lacks {part}");
    }
    assert_eq!(own.matches(", ms = ").count(), 1, "{own}");
}

#[test]
fn without_a_file_it_goes_to_standard_output() {
    let ended = tune(&["--bucket", "2", "--dtype", "bf16", "--quiet"]).end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.toml");
    std::fs::write(&path, &ended.stdout).unwrap();
    let file = KernelFile::read(&path).unwrap();
    assert!(of_tiny(&file, DType::BF16)[1].ms.is_some());
    assert_eq!(file.entries(DType::BF16)[1].ms, None, "another model's");
    assert!(ended.stderr.contains("ms now"), "{}", ended.stderr);
}

/// Was said after all had been measured.
#[test]
fn a_file_that_cannot_be_written_is_said_first() {
    let ended = tune(&["--bucket", "2", "-o", "/no/such/folder/out.toml"]).end();
    let expected = "expected a directory that exists and can be written";
    ended.fails_in_a_line(1, &["/no/such/folder/out.toml", expected]);
    assert!(!ended.stderr.contains("ms"), "{}", ended.stderr);
}

#[test]
fn the_file_is_whole_or_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (link, file) = (at("link.toml"), at("mine.toml"));
    std::os::unix::fs::symlink("mine.toml", &link).unwrap();
    std::fs::write(&file, "of an earlier run").unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
    let tune = |rest: &[&str]| tune(&["-q", "-o", link.to_str().unwrap()]).and(rest);
    let is_as_it_was = || {
        assert_eq!(std::fs::read(&file).unwrap(), b"of an earlier run");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
    };

    let lost = tune(&[]).with("FAIL", "cuMemcpyDtoHAsync_v2:40:700");
    lost.end().fails(1, &["ILLEGAL_ADDRESS"]);
    is_as_it_was();
    for (signal, code) in [("-INT", 130), ("-TERM", 143)] {
        // So slow that the signal comes before it is through.
        let mut tune = tune(&[])
            .with("FAIL", "cuMemcpyDtoHAsync_v2:40:slow")
            .command();
        let tune = tune.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = tune.spawn().unwrap();
        while !at("mine.toml.partial").exists() {
            assert!(child.try_wait().unwrap().is_none(), "it ended by itself");
            std::thread::sleep(Duration::from_millis(1));
        }
        send(&child, signal);
        Ended::of(child.wait_with_output().unwrap()).fails(code, &[]);
        is_as_it_was();
    }

    tune(&["--bucket", "2", "--dtype", "f32"]).end().good();
    assert!(link.is_symlink());
    KernelFile::read(&file).unwrap();
    assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
}

#[test]
fn a_bucket_that_there_is_not_is_refused() {
    let ended = tune(&["--bucket", "3"]).end();
    ended.fails_in_a_line(2, &["--bucket 3", "256"]);
}

/// A file for another architecture, and one that asks for what the model's shapes do not have.
#[test]
fn a_file_that_cannot_be_served_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("asks.toml");
    let run = |text: &str| {
        std::fs::write(&path, text).unwrap();
        Run::new(&[
            "generate",
            "--model",
            "random:tiny",
            "--device",
            "cuda",
            "x",
        ])
        .and(&["--kernel-file", path.to_str().unwrap()])
        .end()
    };
    let other = run("architecture = \"sm_80\"");
    other.fails_in_a_line(1, &["asks.toml", "found sm_80, expected sm_90"]);
    let grouped = "{ products = \"swap_ab\", experts = \"grouped\", tile_rows = 64, grouped_stages = 16, guess = false }";
    let large = run(&format!(
        "architecture = \"sm_90\"\n[decode.bf16]\n16 = {grouped}"
    ));
    large.fails_in_a_line(
        1,
        &[
            "asks.toml",
            "decode.bf16.16",
            "bucket of 1 token",
            "16 stages",
            "bytes",
        ],
    );
}
