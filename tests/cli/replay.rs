//! `--record` and `replay`: a run's schedule once more, to the same tokens and the same bits of their logprobs.

use crate::common::program::{Ended, run, run_with_input};
use crate::common::rows::{mixed_input, rows, rows_without_timing, text};
use serde_json::{Value, json};
use std::path::Path;

/// More prompts than slots, greedy and sampled, with and without logprobs.
fn input() -> String {
    mixed_input(|i, row| {
        if i.is_multiple_of(2) {
            row["temperature"] = json!(0.8);
            row["top_p"] = json!(0.9);
            row["repetition_penalty"] = json!(1.1);
            row["frequency_penalty"] = json!(0.5);
            row["logit_bias"] = json!({"40": 3, "41": -2.5});
            row["min_tokens"] = json!(1);
            // So many that some row ends at one of them.
            row["stop_ids"] = json!((100..115).collect::<Vec<u32>>());
        }
        if i.is_multiple_of(3) {
            row["logprobs"] = json!(i % 4);
        }
    })
}

fn generate(record: Option<&Path>, output: &Path) {
    let common = ["generate", "--model", "random:tiny", "--device", "cpu"];
    let sizes = ["--quiet", "--max-seqs", "5", "--step-tokens", "80"];
    let more = ["--stages", "2", "--output", text(output)];
    let mut args = [&common[..], &sizes, &more].concat();
    if let Some(record) = record {
        args.extend(["--record", text(record)]);
    }
    let ended = run_with_input(&args, &input());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}

fn replay(record: &Path, model: &str) -> Ended {
    let record = text(record);
    run(&[
        "replay", "--record", record, "--model", model, "--device", "cpu",
    ])
}

/// The recording with line `n` put through `change`.
fn changed(record: &Path, n: usize, change: impl FnOnce(&mut Value)) {
    let mut lines = rows(&std::fs::read_to_string(record).unwrap());
    change(&mut lines[n]);
    let lines = lines.iter().map(|line| line.to_string() + "\n");
    std::fs::write(record, lines.collect::<String>()).unwrap();
}

#[test]
fn a_recorded_run_is_replayed_to_the_same_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (record, recorded, plain) = (path("record"), path("recorded.jsonl"), path("plain.jsonl"));
    generate(Some(&record), &recorded);
    generate(None, &plain);
    let answers = rows_without_timing(&recorded);
    assert_eq!(answers, rows_without_timing(&plain), "recording shows");

    let lines = rows(&std::fs::read_to_string(&record).unwrap());
    let count = |key: &str| lines.iter().filter(|line| line.get(key).is_some()).count();
    let tokens: usize = answers
        .iter()
        .map(|row| row["output_ids"].as_array().unwrap().len())
        .sum();
    assert_eq!(
        (count("request"), count("end"), count("token")),
        (24, 24, tokens)
    );
    assert_eq!(lines.last().unwrap()["done"]["turns"], count("turn"));
    assert!(answers.iter().any(|row| row["finish_reason"] == "stop"));

    let ended = replay(&record, "random:tiny");
    assert_eq!((ended.code, ended.stderr.as_str()), (0, ""));
    let turns = count("turn");
    let steps = lines
        .iter()
        .filter(|line| line["turn"]["step"].is_u64())
        .count();
    let expected = format!("{turns} turns, {steps} steps, {tokens} tokens, 24 requests: equal\n");
    assert_eq!(ended.stdout, expected);

    // A single bit of a logprob is a difference.
    let with = |line: &Value| line["token"]["logprobs"]["own"].is_u64();
    let n = lines.iter().position(with).unwrap();
    let token = lines[n]["token"].clone();
    changed(&record, n, |line| {
        let own = &mut line["token"]["logprobs"]["own"];
        *own = json!(own.as_u64().unwrap() ^ 1);
    });
    let ended = replay(&record, "random:tiny");
    assert_eq!(ended.code, 4, "{}", ended.stderr);
    let at = format!("replayed {{\"token\":{token}}}");
    assert!(ended.stdout.trim().ends_with(&at), "{} {at}", ended.stdout);
}

#[test]
fn a_recording_that_was_cut_off_is_replayed_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    generate(Some(&record), &folder.path().join("answers.jsonl"));
    let bytes = std::fs::read(&record).unwrap();
    std::fs::write(&record, &bytes[..bytes.len() * 2 / 3]).unwrap();
    let ended = replay(&record, "random:tiny");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains(" steps, ") && ended.stdout.ends_with("equal\n"));
    assert!(
        ended.stderr.contains("did not come to its end"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_recording_that_is_none_or_does_not_fit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("record");
    let refused = |model: &str, code: i32, says: &str| {
        let ended = replay(&record, model);
        assert_eq!(ended.code, code, "{} {}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(says), "{}", ended.stderr);
    };
    refused("random:tiny", 1, "expected a file that --record wrote");
    std::fs::write(&record, "{\"id\":1}\n").unwrap();
    refused("random:tiny", 1, "line 1: found no header");

    generate(Some(&record), &folder.path().join("answers.jsonl"));
    let whole = std::fs::read(&record).unwrap();
    changed(&record, 0, |line| line["header"]["version"] = json!(99));
    refused(
        "random:tiny",
        1,
        "found a recording of version 99, expected 6",
    );

    std::fs::write(&record, &whole).unwrap();
    changed(&record, 1, |line| line["request"]["prompt"][0] = json!(512));
    refused(
        "random:tiny",
        1,
        "found token 512, expected one below the model's 512",
    );

    // Another schedule than this core's.
    std::fs::write(&record, &whole).unwrap();
    let lines = rows(&String::from_utf8_lossy(&whole));
    let turn = lines
        .iter()
        .position(|line| line["turn"]["step"] == 3)
        .unwrap();
    changed(&record, turn, |line| line["turn"]["free_pages"] = json!(0));
    refused("random:tiny", 1, "this version schedules differently");
    let missing = |line: &Value| line["turn"]["request_head"] == 24;
    std::fs::write(&record, &whole).unwrap();
    let turn = lines.iter().position(missing).unwrap();
    changed(&record, turn, |line| {
        line["turn"]["request_head"] = json!(99)
    });
    refused(
        "random:tiny",
        1,
        "has seen request 24, which the recording lacks",
    );
}

#[test]
fn a_scoring_run_is_recorded_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let (input, record) = (folder.path().join("in.jsonl"), folder.path().join("record"));
    let output = folder.path().join("out.safetensors");
    let prompts = (1..9).map(|i| format!("{{\"input_ids\":{:?}}}\n", vec![8 + i; 20 * i]));
    std::fs::write(&input, prompts.collect::<String>()).unwrap();
    let files = [
        "--input",
        text(&input),
        "--output",
        text(&output),
        "--record",
        text(&record),
    ];
    let score = [
        "score",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--quiet",
    ];
    let ended = run(&[&score[..], &files].concat());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let ended = replay(&record, "random:tiny");
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(
        ended.stdout.ends_with(" 0 tokens, 8 requests: equal\n"),
        "{}",
        ended.stdout
    );

    let over = [
        "--input",
        text(&input),
        "--output",
        text(&output),
        "--record",
        text(&input),
    ];
    let ended = run(&[&score[..], &over].concat());
    assert_eq!(ended.code, 2);
    assert!(ended.stderr.contains("--record"), "{}", ended.stderr);
}

#[test]
fn another_model_than_the_recorded_one_is_refused_by_what_differs() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("run.jsonl");
    generate(Some(&record), &folder.path().join("answers"));
    let same = replay(&record, "random:tiny");
    assert_eq!(same.code, 0, "{}", same.stderr);
    let other = replay(&record, "random:tiny@3");
    let expected = "--model random:tiny@0, which differs from random:tiny@3 in weights";
    other.fails(1, &[expected]);
}

/// Named as a run that came to its end names it; the file of one that did not has another name.
#[test]
fn a_recording_without_an_end_is_found_under_its_other_name() {
    let folder = tempfile::tempdir().unwrap();
    let (record, trace) = (folder.path().join("run"), folder.path().join("trace.json"));
    generate(Some(&record), &folder.path().join("answers"));
    let partial = folder.path().join("run.partial");
    std::fs::rename(&record, &partial).unwrap();
    let says = "run.partial is that of a run which did not come to its end";
    replay(&record, "random:tiny").fails(1, &[says]);
    let args = |from| ["trace", "--from", from, "-o", text(&trace)];
    run(&args(text(&record))).fails(1, &[says]);
    assert_eq!(replay(&partial, "random:tiny").code, 0);
    assert_eq!(run(&args(text(&partial))).code, 0);
}
