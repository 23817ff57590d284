//! Rows that name no limit in a pool too small for all of them: some give their pages back and are recomputed, and nothing
//! of that shows in the answers.

use crate::common::program::{run, run_with_input, tailgraph};
use crate::common::rows::{rows, rows_without_timing, text};
use serde_json::{Value, json};
use std::path::Path;

/// Chats without a limit, greedy and sampled, beside rows that have one.
fn input() -> String {
    let row = |i: u32| {
        let content = "so much ".repeat(1 + i as usize * 5 % 7);
        let mut body = json!({
            "model": "tiny", "temperature": i % 3, "seed": i, "frequency_penalty": 0,
            "messages": [{"role": "user", "content": content}],
        });
        if i % 4 == 3 {
            body["max_tokens"] = json!(40);
        }
        let url = "/v1/chat/completions";
        json!({"custom_id": i.to_string(), "method": "POST", "url": url, "body": body}).to_string()
            + "\n"
    };
    (0..12).map(row).collect()
}

const SIZES: [&str; 6] = [
    "--max-seqs",
    "6",
    "--max-context",
    "512",
    "--page-tokens",
    "16",
];

/// The bytes that a run takes with a pool of `pages`.
fn memory(pages: u64) -> u64 {
    let arguments = [
        "doctor",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--json",
    ];
    let doctor = tailgraph(&[&arguments[..], &SIZES].concat());
    let memory: Value = serde_json::from_str(&doctor).unwrap();
    let memory = &memory["memory"];
    let mut items = memory["items"].as_array().unwrap().iter();
    let pool = items
        .find(|item| item["name"] == "keys and values")
        .unwrap();
    let all = memory["options"]["pages"].as_u64().unwrap();
    let page_bytes = pool["bytes"].as_u64().unwrap() / all;
    memory["total_bytes"].as_u64().unwrap() - (all - pages) * page_bytes
}

/// What it says at its end.
fn generate(output: &Path, more: &[&str]) -> String {
    let arguments = [
        "generate",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "--ignore-eos",
    ];
    let to = ["--output", text(output)];
    let ended = run_with_input(&[&arguments[..], &SIZES, &to, more].concat(), &input());
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.stderr
}

fn answers(path: &Path) -> Vec<Value> {
    let mut rows = rows_without_timing(path);
    for row in &mut rows {
        let body = row["response"]["body"].as_object_mut().unwrap();
        body.remove("created");
    }
    rows
}

#[test]
fn a_pool_too_small_gives_the_same_answers_and_is_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (wide, narrow, record) = (path("wide.jsonl"), path("narrow.jsonl"), path("record"));
    let said = generate(&wide, &[]);
    assert!(!said.contains("recomputed"), "{said}");
    // One whole context and two pages more.
    let limit = memory(34).to_string();
    let recorded = ["--memory-limit", &limit, "--record", text(&record)];
    let said = generate(&narrow, &recorded);
    assert!(said.contains("recomputed for want of memory"), "{said}");
    assert!(answers(&wide) == answers(&narrow), "the answers differ");

    let lines = rows(&std::fs::read_to_string(&record).unwrap());
    let turns = lines.iter().map(|line| &line["turn"]);
    let again: u64 = turns.filter_map(|turn| turn["read_again"].as_u64()).sum();
    assert!(again > 3, "{again} were recomputed");
    let replay = [
        "replay",
        "--record",
        text(&record),
        "--model",
        "random:tiny",
    ];
    let ended = run(&[&replay[..], &["--device", "cpu"]].concat());
    assert!(
        ended.code == 0 && ended.stdout.ends_with("equal\n"),
        "{} {}",
        ended.stdout,
        ended.stderr
    );
    let trace = path("trace.json");
    let ended = run(&["trace", "--from", text(&record), "-o", text(&trace)]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let trace = std::fs::read_to_string(&trace).unwrap();
    assert!(
        trace.contains("\"read_again\":"),
        "no request says that it was recomputed"
    );
}
