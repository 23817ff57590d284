//! `--device cuda` through the binary.

use crate::common::program::{command, run, tailgraph};
use crate::common::rows::rows_without_timing;
use serde_json::Value;
use std::path::Path;
use std::process::Child;

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

pub fn path(folder: &Path, name: &str) -> String {
    folder.join(name).to_str().unwrap().to_owned()
}

/// `generate --device cuda` with these arguments, left to itself.
pub fn spawn(arguments: &[String]) -> Child {
    let common = ["generate", "--device", "cuda", "--quiet"];
    command(&common).args(arguments).spawn().unwrap()
}

/// Runs `generate --device cuda` to its end: the exit code, and the answers in `output` without what may differ between two runs.
pub fn generate_rows(arguments: &[&str], output: &str) -> (i32, Vec<Value>) {
    let arguments: Vec<String> = arguments.iter().map(|s| (*s).to_owned()).collect();
    let code = spawn(&arguments).wait().unwrap().code().unwrap();
    (code, rows_without_timing(Path::new(output)))
}

/// `replay` on random:tiny: the exit code and what it prints.
pub fn replay(record: &str, arguments: &[&str]) -> (i32, String) {
    let common = ["replay", "--model", "random:tiny", "--record", record];
    let ended = run(&[&common[..], arguments].concat());
    assert!([0, 4].contains(&ended.code), "{}", ended.stderr);
    (ended.code, ended.stdout)
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
    let record = path(folder.path(), "record.jsonl");
    for launch in [
        &["host-kernels"][..],
        &["host-graph"],
        &["host-graph-ahead"],
        &["device-graph"],
    ] {
        let gpu = [
            "--device", "cuda", "--dtype", "f32", "--expect", &expected, "--record", &record,
            "--launch",
        ];
        let report = score(&[&gpu[..], launch].concat());
        println!("{launch:?}: {report}");
        assert!(
            report.contains("VALID") && !report.contains("INVALID"),
            "{report}"
        );
        let (code, report) = replay(&record, &["--device", "cuda"]);
        assert_eq!(code, 0);
        assert!(
            report.ends_with(" 40 requests: equal\n"),
            "{launch:?}: {report}"
        );
    }
}
