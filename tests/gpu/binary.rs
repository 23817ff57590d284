//! `--device cuda` through the binary.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Built beside the tests, or what TAILGRAPH_BINARY names where they were built elsewhere.
fn binary() -> PathBuf {
    let built = || env!("CARGO_BIN_EXE_tailgraph").into();
    std::env::var_os("TAILGRAPH_BINARY").map_or_else(built, PathBuf::from)
}

/// Standard output of a run that ends well.
fn tailgraph(arguments: &[&str]) -> String {
    let output = Command::new(binary()).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn generate(launch: &str, dtype: &str) -> String {
    tailgraph(&[
        "generate",
        "--model",
        "random:tiny",
        "--device",
        "cuda",
        "--launch",
        launch,
        "--dtype",
        dtype,
        "--max-new-tokens",
        "20",
        "--quiet",
        "The quick brown fox",
        "ok",
    ])
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn generate_prints_the_same_text_in_all_ways() {
    for dtype in ["bf16", "f16", "f32"] {
        let expected = generate("host-kernels", dtype);
        assert!(expected.trim().len() > 10, "{expected:?}");
        assert_eq!(generate("host-graph", dtype), expected, "{dtype}");
        assert_eq!(generate("device-graph", dtype), expected, "{dtype}");
    }
}

fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

/// The CPU's logits as what is expected: f32 agrees as `--expect` asks by default.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn score_agrees_with_the_cpu() {
    let folder = tempfile::tempdir().unwrap();
    let input = path(folder.path(), "prompts.jsonl");
    let rows = (0..40).map(|i| {
        let ids: Vec<u32> = (0..1 + i * 3)
            .map(|j| 8 + (i * 37 + j * 11) % 250)
            .collect();
        format!("{{\"input_ids\":{ids:?}}}\n")
    });
    std::fs::write(&input, rows.collect::<String>()).unwrap();
    let expected = path(folder.path(), "cpu.safetensors");
    let score = |more: &[&str]| {
        let common = [
            "score",
            "--model",
            "random:tiny",
            "--quiet",
            "--input",
            &input,
        ];
        tailgraph(&[&common[..], more].concat())
    };
    score(&["--device", "cpu", "--output", &expected]);
    for launch in ["host-kernels", "host-graph", "device-graph"] {
        let gpu = [
            "--device", "cuda", "--launch", launch, "--expect", &expected,
        ];
        let report = score(&[&gpu[..], &["--dtype", "f32"]].concat());
        println!("{launch}: {report}");
        assert!(
            report.contains("VALID") && !report.contains("INVALID"),
            "{report}"
        );
    }
}
