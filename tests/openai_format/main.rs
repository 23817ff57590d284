//! The answers of a batch file, held to the types of the openai package. `fields`: what becomes of each field that a
//! request of that package may have.

#[path = "../common/mod.rs"]
mod common;
mod fields;

use common::program::run_with_input;
use common::python::{ask, interpreter};
use serde_json::{Value, json};

/// The answers of `tailgraph generate` to these lines.
fn answers(lines: &[String]) -> Vec<Value> {
    let args = [
        "generate",
        "--model",
        "random:tiny@3",
        "--max-context",
        "128",
        "-q",
    ];
    let ended = run_with_input(&args, &lines.join("\n"));
    assert!([0, 3].contains(&ended.code), "{}", ended.stderr);
    ended.rows()
}

fn row(id: &str, endpoint: &str, body: Value) -> String {
    json!({"custom_id": id, "method": "POST", "url": format!("/v1/{endpoint}"), "body": body})
        .to_string()
}

/// 500 rows of both endpoints: options of all sorts, a third of them with something wrong.
fn batch() -> Vec<String> {
    let options = [
        json!({}),
        json!({"max_tokens": 4}),
        json!({"max_tokens": 3.0, "temperature": 0.7, "seed": -5}),
        json!({"max_tokens": 6, "temperature": 2, "top_p": 0.5, "top_k": 40, "min_p": 0.01}),
        json!({"max_tokens": 5, "stop": ["a", "e", "<"], "user": "someone"}),
        json!({"max_tokens": 2, "n": 1, "stream": false, "logit_bias": {}, "presence_penalty": 0}),
        json!({"max_tokens": 6, "presence_penalty": 1.5, "frequency_penalty": -0.5, "repetition_penalty": 1.2}),
        json!({"max_tokens": 4, "logit_bias": {"70": 100, "71": -100.0}, "n": 2}),
        json!({"max_tokens": 7, "min_tokens": 7, "ignore_eos": false, "stop_token_ids": [70], "logit_bias": {"70": 50}}),
        json!({"max_tokens": 5, "n": 4, "temperature": 1.5, "seed": 9, "frequency_penalty": 2, "min_tokens": 2, "stop": "a"}),
        json!({"max_tokens": 4, "ignore_eos": true, "stop_token_ids": [9, 70], "model": "m"}),
        json!({"max_tokens": 3, "n": 3, "temperature": 1, "unknown_field": 1}),
        // Wrong, each in its way.
        json!({"max_tokens": 0}),
        json!({"n": 0}),
        json!({"temperature": "warm"}),
        json!({"max_tokens": 100_000}),
        json!({"logit_bias": {"5": 101}}),
        json!({"presence_penalty": 2.5}),
        json!({"min_tokens": 9, "max_tokens": 8}),
        json!({"guided_json": {}}),
        json!({"stop": vec!["x"; 65]}),
    ];
    let chat = |i: usize| match i % 4 {
        0 => json!([{"role": "user", "content": "Hello"}]),
        1 => {
            json!([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "caf\u{e9} \u{1f600}"}])
        }
        2 => json!([{"role": "user", "content": [{"type": "text", "text": "in parts"}]}]),
        _ => {
            json!([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}])
        }
    };
    let prompt = |i: usize| match i % 5 {
        0 => json!("Once upon a time"),
        1 => json!([12, 13.0, 14]),
        2 => json!(["one in a list"]),
        3 => json!([[20, 21]]),
        _ => json!(""),
    };
    let mut lines = Vec::new();
    for i in 0..244 {
        let mut body = options[i % options.len()].clone();
        body["messages"] = chat(i);
        if i % 7 == 3 {
            body["tools"] = json!([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]);
        }
        if i % 3 > 0 {
            body["logprobs"] = json!(true);
            body["top_logprobs"] = json!([0, 1, 5, 20][i % 4]);
        }
        lines.push(row(&format!("chat-{i}"), "chat/completions", body));
    }
    for i in 0..243 {
        let mut body = options[i % options.len()].clone();
        body["prompt"] = prompt(i);
        if i % 3 > 0 {
            body["logprobs"] = json!([0, 1, 5][i % 3]);
        }
        if i % 4 == 1 {
            body["echo"] = json!(true);
        }
        lines.push(row(&format!("completion-{i}"), "completions", body));
    }
    let hello = json!([{"role": "user", "content": "Hello"}]);
    lines.extend([
        row("chat-0", "chat/completions", json!({"messages": hello})),
        row("wrong-url", "embeddings", json!({"input": "x"})),
        row("no-messages", "chat/completions", json!({"model": "m"})),
        row(
            "no-role",
            "chat/completions",
            json!({"messages": [{"content": "x"}]}),
        ),
        row("two-prompts", "completions", json!({"prompt": ["a", "b"]})),
        row(
            "too-long",
            "completions",
            json!({"prompt": "x".repeat(400)}),
        ),
        row(
            "prompt-alone",
            "completions",
            json!({"prompt": ["once", [12, 13]], "echo": true, "max_tokens": 0, "logprobs": 2}),
        ),
        row("bad-id", "completions", json!({"prompt": [99_999_999]})),
        row(
            "late",
            "completions",
            json!({"prompt": "x", "max_tokens": 40, "timeout_ms": 1}),
        ),
        r#"{"custom_id": "torn", "method": "POST", "url"#.to_owned(),
        "[]".to_owned(),
        r#"{"custom_id": ["no id"], "url": "/v1/completions", "body": {"prompt": "x"}}"#.to_owned(),
        "{}".to_owned(),
    ]);
    lines
}

#[test]
fn answers_are_what_the_openai_package_has_types_for() {
    let Some(python) = interpreter("answers_are_what_the_openai_package_has_types_for") else {
        return;
    };
    let lines = batch();
    assert_eq!(lines.len(), 500);
    let said = answers(&lines);
    assert_eq!(said.len(), 500);
    let again = answers(&lines);
    let choices = |answer: &Value| answer["response"]["body"]["choices"].clone();
    for (first, second) in said
        .iter()
        .zip(&again)
        .filter(|(row, _)| row["custom_id"] != "late")
    {
        assert_eq!(choices(first), choices(second), "{}", first["custom_id"]);
    }
    let answers = said;
    let said = ask(&python, "openai_types.py", &json!({"answers": answers}));
    assert_eq!(said["faults"], json!([]));
    let count = |name: &str| said[name].as_u64().unwrap();
    assert!(
        count("chat") >= 120 && count("completions") >= 120,
        "{said}"
    );
    assert!(count("errors") >= 150, "{said}");
}
