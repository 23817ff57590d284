//! Rows whose answers or stop strings are long take no more memory than these, however many answers a row has.

use crate::common::memory::peak_bytes;
use crate::common::program::command;
use serde_json::{Value, json};

/// The peak memory of a run that answers `rows` of so many answers each.
fn peak(rows: &[Value], output: &std::path::Path) -> u64 {
    let input = output.with_extension("in");
    let line = |body: &Value| {
        json!({"custom_id": body["seed"], "url": "/v1/chat/completions", "body": body}).to_string()
            + "\n"
    };
    std::fs::write(&input, rows.iter().map(line).collect::<String>()).unwrap();
    let mut generate = command(&["generate", "--model", "random:tiny", "--device", "cpu"]);
    generate
        .arg("--input")
        .arg(&input)
        .arg("--output")
        .arg(output);
    peak_bytes(&mut generate)
}

fn body(seed: u32, n: u32, max_tokens: u32, more: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "q"}], "temperature": 1});
    let fields = body.as_object_mut().unwrap();
    fields.extend(
        [("seed", seed), ("n", n), ("max_tokens", max_tokens)]
            .map(|(name, value)| (name.to_owned(), value.into())),
    );
    fields.extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn logprobs_are_written_as_they_come() {
    let dir = tempfile::tempdir().unwrap();
    let output = dir.path().join("out");
    let asked = json!({"logprobs": true, "top_logprobs": 20});
    let peak = peak(&[body(1, 64, 100, &asked)], &output);
    let bytes = output.metadata().unwrap().len();
    assert!(bytes > 8 << 20, "{bytes} bytes of answer");
    assert!(peak < 112 << 20, "{peak} bytes");
}

#[test]
fn the_answers_of_a_row_share_its_stop_strings_and_its_prompt() {
    let dir = tempfile::tempdir().unwrap();
    let stop: Vec<String> = (0..64).map(|i| format!("{i:x>4096}")).collect();
    let rows = [1, 2, 3, 4].map(|seed| body(seed, 64, 1, &json!({"stop": stop})));
    let peak = peak(&rows, &dir.path().join("out"));
    assert!(peak < 112 << 20, "{peak} bytes");
}
