//! `--weights`: a checkpoint in 8 bits, and 8 bits made while loading.

use crate::common::fixtures::golden;
use crate::common::program::{run, run_with_input, tailgraph};
use crate::common::rows::{rows_without_timing, text};
use serde_json::{Value, json};
use std::path::Path;

const SIZES: [&str; 6] = ["--device", "cpu", "--max-seqs", "5", "--step-tokens", "80"];

/// Answers the same rows with a model's weights in a format, into `output`.
fn generate(model: &str, weights: &str, output: &Path, more: &[&str]) {
    let args = [
        &["generate", "--quiet", "-m", model, "--weights", weights][..],
        &SIZES,
        &["--output", text(output)],
        more,
    ];
    let ended = run_with_input(&args.concat(), &input());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

fn input() -> String {
    let row = |i: u32| json!({"input_ids": [1, 20 + i, 30 + 2 * i], "max_new_tokens": 6 + i});
    (0..9).map(|i| format!("{}\n", row(i))).collect()
}

#[test]
fn a_checkpoint_in_8_bits_answers_as_8_bits_made_while_loading() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let synth = path("fp8");
    tailgraph(&[
        "synth",
        "-m",
        "random:tiny",
        "--weights",
        "fp8",
        "--quiet",
        "-o",
        text(&synth),
    ]);
    let config: Value =
        serde_json::from_slice(&std::fs::read(synth.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["quantization_config"]["format"], "float-quantized");
    let answers = |name: &str, model: &str, weights: &str| {
        let output = path(name);
        generate(model, weights, &output, &[]);
        rows_without_timing(&output)
    };
    let made = answers("made", "random:tiny", "fp8");
    assert_eq!(made, answers("stored", text(&synth), "as-is"));
    assert_eq!(made, answers("again", text(&synth), "fp8"));
    // Products are rounded to bf16 then, and other tokens come: the flag is not ignored.
    assert_ne!(made, answers("bf16", text(&synth), "bf16"));
    assert_ne!(made, answers("plain", "random:tiny", "as-is"));
}

#[test]
fn replay_and_resume_know_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (record, output) = (path("record"), path("answers.jsonl"));
    generate("random:tiny", "fp8", &output, &["--record", text(&record)]);
    let replay = [
        "replay",
        "-m",
        "random:tiny",
        "--device",
        "cpu",
        "--record",
        text(&record),
    ];
    assert_eq!(run(&replay).code, 0);
    // The tokens of other weights are others.
    let other = run(&[&replay[..], &["--weights", "as-is"]].concat());
    assert_eq!(other.code, 4, "{}", other.stderr);
    let resume = [
        &[
            "generate",
            "--quiet",
            "-m",
            "random:tiny",
            "--resume",
            "--output",
            text(&output),
        ][..],
        &SIZES,
    ];
    let ended = run_with_input(&resume.concat(), &input());
    ended.fails(1, &["--weights (is no longer there)"]);
}

#[test]
fn a_golden_checkpoint_is_scored_and_its_bytes_are_told() {
    let folder = golden("e");
    let told = tailgraph(&["inspect", "-m", &folder, "--tokens", "1"]);
    assert!(told.contains("of weights in e4m3"), "{told}");
    let told = tailgraph(&[
        "inspect",
        "-m",
        &folder,
        "--tokens",
        "1",
        "--weights",
        "bf16",
    ]);
    assert!(told.contains("of weights in bf16"), "{told}");
}

#[test]
fn a_cpu_has_no_activations_in_8_bits() {
    let refused = ["--weights", "fp8", "--activations", "fp8", "a"];
    let command = ["generate", "-m", "random:tiny", "--device", "cpu"];
    run(&[&command[..], &refused].concat()).fails(2, &["--activations fp8", "--device cuda"]);
}

#[test]
fn bench_compares_formats() {
    let results = tailgraph(&[
        "bench",
        "decode",
        "-m",
        "random:tiny",
        "--device",
        "cpu",
        "--weights",
        "as-is,fp8",
        "-b",
        "2",
        "-p",
        "8",
        "-n",
        "8",
        "-r",
        "1",
        "--quiet",
        "--format",
        "json",
    ]);
    let rows: Value = serde_json::from_str(&results).unwrap();
    let weights: Vec<&Value> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| &row["weights"])
        .collect();
    assert_eq!(weights, [&Value::Null, &Value::from("fp8")]);
}
