//! What ends a row and what its tokens are: end-of-sequence ids from wherever a checkpoint has them, special tokens as
//! stop strings, bytes and places of tokens in the OpenAI format.

use crate::common::fixtures::golden;
use crate::common::program::run_with_input;
use crate::common::rows::{rows, text};
use serde_json::{Value, json};
use std::path::Path;

/// A checkpoint with the golden's weights, and its files as `change` leaves them: null takes one away.
fn checkpoint(folder: &Path, change: impl Fn(&str, &mut Value)) {
    let source = golden("a");
    std::os::unix::fs::symlink(
        format!("{source}/model.safetensors"),
        folder.join("model.safetensors"),
    )
    .unwrap();
    for name in [
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ] {
        let mut json =
            serde_json::from_slice(&std::fs::read(format!("{source}/{name}")).unwrap()).unwrap();
        change(name, &mut json);
        if !json.is_null() {
            std::fs::write(folder.join(name), json.to_string()).unwrap();
        }
    }
}

fn without(json: &mut Value, field: &str) {
    json.as_object_mut().unwrap().shift_remove(field);
}

#[test]
fn rows_have_an_end_whatever_the_files_leave_out() {
    type Change = fn(&str, &mut Value);
    let nowhere: Change = |name, json| match name {
        "generation_config.json" => *json = Value::Null,
        "config.json" => without(json, "eos_token_id"),
        "tokenizer_config.json" => without(json, "eos_token"),
        _ => {}
    };
    let cases: [(Change, u32, &str); 7] = [
        (|_, _| {}, 7, ""),
        (
            |name, json| {
                if name == "generation_config.json" {
                    json["eos_token_id"] = json!([5, 90_000]);
                }
            },
            5,
            "generation_config.json: \"eos_token_id\": found 90000, expected ids below ",
        ),
        (
            |name, json| match name {
                "generation_config.json" => *json = Value::Null,
                "config.json" => json["eos_token_id"] = json!([90_000, 6, 90_001]),
                _ => {}
            },
            6,
            "/config.json: \"eos_token_id\": found 90000 and 1 more, expected ids below ",
        ),
        (
            |name, json| match name {
                "generation_config.json" => json["eos_token_id"] = json!(5),
                "config.json" => json["eos_token_id"] = json!(6),
                _ => {}
            },
            5,
            "",
        ),
        (
            |name, json| match name {
                "generation_config.json" => without(json, "eos_token_id"),
                "config.json" => json["eos_token_id"] = json!(6),
                _ => {}
            },
            6,
            "",
        ),
        (
            |name, json| match name {
                "generation_config.json" => *json = Value::Null,
                "config.json" => json["eos_token_id"] = Value::Null,
                "tokenizer_config.json" => json["eos_token"] = json!("<|fim_suf|>"),
                _ => {}
            },
            5,
            "rows end with 5, the tokenizer's eos_token",
        ),
        (nowhere, 2, "rows end with 2, the default of Lfm2MoeConfig"),
    ];
    for (change, expected, said) in cases {
        let folder = tempfile::tempdir().unwrap();
        checkpoint(folder.path(), change);
        let record = folder.path().join("run.jsonl");
        let ended = run_with_input(
            &[
                "generate",
                "--model",
                text(folder.path()),
                "--record",
                text(&record),
                "--quiet",
            ],
            "{\"prompt\": \"x\", \"max_new_tokens\": 1}\n",
        );
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(ended.stderr.contains(said), "{}", ended.stderr);
        assert!(
            !said.is_empty() || !ended.stderr.contains("eos_token"),
            "{}",
            ended.stderr
        );
        let recorded = rows(&std::fs::read_to_string(&record).unwrap());
        let request = recorded
            .iter()
            .find(|row| !row["request"].is_null())
            .unwrap();
        assert_eq!(request["request"]["stop_ids"], json!([expected]));
    }
}

#[test]
fn advice_that_is_not_followed_is_said_once() {
    let folder = tempfile::tempdir().unwrap();
    checkpoint(folder.path(), |name, json| {
        if name == "generation_config.json" {
            json["no_repeat_ngram_size"] = json!(3);
            json["num_beams"] = json!(1);
        }
    });
    let ended = run_with_input(
        &["generate", "--model", text(folder.path()), "--quiet"],
        "{\"prompt\": \"x\", \"max_new_tokens\": 1}\n{\"prompt\": \"y\", \"max_new_tokens\": 1}\n",
    );
    let said = "generation_config.json: no_repeat_ngram_size 3 is not supported: answers are made without it";
    assert_eq!(ended.stderr.matches(said).count(), 1, "{}", ended.stderr);
    assert!(!ended.stderr.contains("num_beams"), "{}", ended.stderr);
    ended.good();
}

/// Tokens drawn at a high temperature: pieces of characters, special tokens and `<300>`, which is how ids without a byte
/// print here.
fn drawn(url: &str, more: Value) -> Value {
    let mut body = json!({"max_tokens": 200, "temperature": 5, "seed": 11, "ignore_eos": true});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    let row = json!({"custom_id": "a", "method": "POST", "url": url, "body": body});
    let ended = run_with_input(
        &["generate", "--model", "random:tiny@7", "--quiet"],
        &format!("{row}\n"),
    );
    assert_eq!(ended.code, 0, "{} {}", ended.stdout, ended.stderr);
    ended.rows()[0]["response"]["body"]["choices"][0].clone()
}

#[test]
fn bytes_of_a_chats_tokens_are_its_text() {
    let more = json!({"messages": [{"role": "user", "content": "hi"}], "logprobs": true, "top_logprobs": 3});
    let choice = drawn("/v1/chat/completions", more);
    let mut bytes = Vec::new();
    let mut pieces = 0;
    for token in choice["logprobs"]["content"].as_array().unwrap() {
        let own: Vec<u8> = serde_json::from_value(token["bytes"].clone()).unwrap();
        pieces += usize::from(std::str::from_utf8(&own).is_err());
        // Special tokens are no part of the text.
        if !token["token"].as_str().unwrap().starts_with("<|") {
            bytes.extend(own);
        }
    }
    assert!(pieces > 10, "{pieces}");
    assert_eq!(
        String::from_utf8_lossy(&bytes),
        choice["message"]["content"].as_str().unwrap()
    );
}

#[test]
fn a_completions_tokens_stand_where_their_offsets_say() {
    let choice = drawn("/v1/completions", json!({"prompt": "x", "logprobs": 2}));
    let written: Vec<char> = choice["text"].as_str().unwrap().chars().collect();
    let logprobs = &choice["logprobs"];
    let tokens = logprobs["tokens"].as_array().unwrap();
    let mut pieces = 0;
    for (i, token) in tokens.iter().enumerate() {
        let token = token.as_str().unwrap();
        let at = logprobs["text_offset"][i].as_u64().unwrap() as usize;
        if token.starts_with("bytes:\\x") {
            pieces += 1;
            assert!(at <= written.len());
        } else if !token.starts_with("<|") {
            let there: String = written[at..].iter().take(token.chars().count()).collect();
            assert_eq!(there, token, "{i}");
        }
        let top = logprobs["top_logprobs"][i].as_object().unwrap();
        assert!(top.contains_key(token) && top.len() >= 2, "{i}: {top:?}");
    }
    assert!(pieces > 10 && tokens.len() == 200, "{pieces}");
}

#[test]
fn a_special_token_can_be_a_stop_string() {
    let more = |stop: &str| json!({"prompt": "x", "logprobs": 0, "stop": stop});
    let all = drawn("/v1/completions", more("never written"));
    let tokens: Vec<&str> = all["logprobs"]["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| t.as_str().unwrap())
        .collect();
    let at = tokens
        .iter()
        .position(|token| token.starts_with("<|"))
        .expect("a special token among 200");
    let cut = drawn("/v1/completions", more(tokens[at]));
    let offset = all["logprobs"]["text_offset"][at].as_u64().unwrap() as usize;
    let before: String = all["text"].as_str().unwrap().chars().take(offset).collect();
    assert!(cut["text"].as_str().unwrap().starts_with(&before));
    assert_eq!(cut["finish_reason"], "stop");
    assert_eq!(cut["logprobs"]["tokens"].as_array().unwrap().len(), at + 1);
}

#[test]
fn without_a_tokenizer_token_ids_are_served() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    checkpoint(folders[0].path(), |_, _| {});
    checkpoint(folders[1].path(), |name, json| {
        if name.starts_with("tokenizer") {
            *json = Value::Null;
        }
    });
    let batch = json!({"custom_id": "batch", "method": "POST", "url": "/v1/completions",
        "body": {"prompt": [5, 9], "max_tokens": 3, "logprobs": 2}});
    let input = [
        json!({"id": "ids", "input_ids": [5, 9], "max_new_tokens": 3, "logprobs": 2}),
        json!({"id": "text", "prompt": "x"}),
        json!({"id": "chat", "messages": [{"role": "user", "content": "x"}]}),
        json!({"id": "stop", "input_ids": [5, 9], "stop": "x"}),
        batch,
    ];
    let input: String = input.iter().map(|row| format!("{row}\n")).collect();
    let [with, without] = folders.map(|folder| {
        let model = [
            "generate",
            "--device",
            "cpu",
            "--model",
            text(folder.path()),
        ];
        run_with_input(&model, &input)
    });
    without.fails(3, &["warning", "found no tokenizer.json"]);
    let (with, without) = (with.rows(), without.rows());
    assert_eq!(without[0]["output_ids"], with[0]["output_ids"]);
    assert_eq!(without[0]["text"], "");
    for row in &without[1..4] {
        let message = row["error"]["message"].as_str().unwrap();
        assert!(message.contains("the model has no tokenizer.json"), "{row}");
    }
    let [given, found] = [&with[4], &without[4]].map(|row| &row["response"]["body"]["choices"][0]);
    assert_eq!(found["finish_reason"], given["finish_reason"]);
    assert_eq!(
        found["logprobs"]["token_logprobs"],
        given["logprobs"]["token_logprobs"]
    );
}

/// The crate that reads tokenizers panics over some; what it says of that is not for whoever runs a model.
#[test]
fn a_tokenizer_that_panics_is_one_line() {
    let folder = tempfile::tempdir().unwrap();
    checkpoint(folder.path(), |name, json| {
        if name == "tokenizer.json" {
            json["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": ""});
        }
    });
    let model = text(folder.path());
    let args = ["generate", "--model", model, "--device", "cpu", "-q", "x"];
    run_with_input(&args, "").fails_in_a_line(1, &["tokenizer.json", "panicked"]);
}
