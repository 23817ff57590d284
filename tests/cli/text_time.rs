//! Text work that never ends: by a template's loop, by one step of it, by a tokenizer. Each is an error of its row, or of loading.

use crate::common::program::{Ended, command, end, run, send, tailgraph};
use crate::common::rows::{rows, text};
use crate::signals::wait_for;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Each turn of the loop is short; all of them take most of a minute.
const LOOPS: &str = "{% set a = 'x' * 9000000 %}{% set b = a ~ '' %}{% for i in range(99999) %}{% if a != b %}y{% endif %}{% endfor %}";
/// One comparison of 1.5 TB of text.
const ONE_STEP: &str =
    "{% set a = 'x' * 5000000 %}{% if [a] * 300000 == [a] * 300000 %}y{% endif %}";

/// `generate` of a template.
fn chats(template: &Path, more: &[&str]) -> std::process::Command {
    let mut command = command(&[
        "generate",
        "--device",
        "cpu",
        "--model",
        "random:tiny",
        "-q",
    ]);
    command.arg("--chat-template").arg(template).args(more);
    command
}

fn chat(id: u32) -> String {
    json!({"id": id, "messages": [{"role": "user", "content": "x"}], "max_new_tokens": 2})
        .to_string()
        + "\n"
}

fn ids(id: u32) -> String {
    json!({"id": id, "input_ids": [20, 30], "max_new_tokens": 2}).to_string() + "\n"
}

/// random:tiny as a checkpoint whose tokenizer.json is changed.
fn model(folder: &Path, change: impl FnOnce(&mut Value)) -> PathBuf {
    let path = folder.join("m");
    tailgraph(&[
        "synth",
        "-q",
        "--model",
        "random:tiny@7",
        "--output",
        text(&path),
    ]);
    let file = path.join("tokenizer.json");
    let mut tokenizer = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    change(&mut tokenizer);
    std::fs::write(&file, tokenizer.to_string()).unwrap();
    path
}

/// A token that takes white space with it, which is looked for behind each of it.
fn white_space_token(tokenizer: &mut Value) {
    let token = json!({"id": 300, "content": " ", "single_word": false, "lstrip": true, "rstrip": true, "normalized": false, "special": true});
    tokenizer["added_tokens"]
        .as_array_mut()
        .unwrap()
        .push(token);
}

/// The first row is late by the work of `part`, the second is served.
fn assert_late(ended: &Ended, part: &str) {
    let rows = ended.rows();
    assert_eq!((ended.code, rows.len()), (3, 2), "{}", ended.stderr);
    assert_eq!(rows[0]["error"]["code"], "text_timeout", "{}", rows[0]);
    let message = rows[0]["error"]["message"].as_str().unwrap();
    assert!(
        message.contains(&format!("{part} is not done after 1 s")),
        "{message}"
    );
    assert_eq!(rows[1]["output_ids"].as_array().unwrap().len(), 2);
}

#[test]
fn a_row_whose_template_hangs_is_in_error_and_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("t.jinja");
    for source in [LOOPS, ONE_STEP] {
        std::fs::write(&template, source).unwrap();
        let prompt = json!({"prompt": "y", "max_new_tokens": 2}).to_string();
        let input = chat(1) + &prompt;
        let ended = end(&mut chats(&template, &["--text-timeout", "1"]), &input);
        assert_late(&ended, "the chat template");
    }
}

#[test]
fn a_row_whose_tokens_take_too_long_is_in_error_and_others_are_served() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), white_space_token);
    let model = [
        "--device",
        "cpu",
        "--model",
        text(&model),
        "-q",
        "--text-timeout",
        "1",
    ];
    let long = json!({"prompt": " ".repeat(400_000), "max_new_tokens": 2}).to_string();
    let input = format!("{long}\n{}", ids(2));
    let generate = end(command(&["generate"]).args(model), &input);
    assert_late(&generate, "tokenizer.json");
    let score = end(
        command(&["score", "--logprobs", "-i", "-"]).args(model),
        &input,
    );
    assert_eq!(score.code, 3, "{}", score.stderr);
    let rows = score.rows();
    assert_eq!(rows[0]["error"]["code"], "text_timeout", "{}", rows[0]);
    assert_eq!(rows[1]["logprobs"].as_array().unwrap().len(), 2);
}

#[test]
fn a_tokenizer_that_takes_too_long_to_load_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let model = model(folder.path(), |tokenizer| {
        let pattern = json!({"Regex": "(?:(?>a*)[bc]|a)*[bc]"});
        tokenizer["normalizer"] = json!({"type": "Replace", "pattern": pattern, "content": "x"});
        for id in 0..200 {
            let content = format!("{id}{}dbc", "a".repeat(4000));
            let token = json!({"id": 300 + id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": true, "special": false});
            tokenizer["added_tokens"]
                .as_array_mut()
                .unwrap()
                .push(token);
        }
    });
    let args = [
        "generate",
        "--device",
        "cpu",
        "--text-timeout",
        "0.2",
        "--model",
        text(&model),
        "x",
    ];
    run(&args).fails_in_a_line(1, &[text(&model), "tokenizer.json is not done after 0.2 s"]);
}

/// Every thread hangs: then text is refused at once, rows of ids are served, and the run ends by itself.
#[test]
fn a_thousand_rows_that_hang_take_few_threads_and_no_row_of_ids() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("t.jinja");
    std::fs::write(&template, ONE_STEP).unwrap();
    let (input, output) = (
        folder.path().join("in.jsonl"),
        folder.path().join("out.jsonl"),
    );
    let each = |id: u32| {
        if id.is_multiple_of(11) {
            ids(id)
        } else {
            chat(id)
        }
    };
    std::fs::write(&input, (0..1100).map(each).collect::<String>()).unwrap();
    let files = [
        "-i",
        text(&input),
        "-o",
        text(&output),
        "--text-timeout",
        "1",
    ];
    let began = Instant::now();
    let mut child = chats(&template, &files).spawn().unwrap();
    let tasks = PathBuf::from(format!("/proc/{}/task", child.id()));
    // Those that have nothing to do with text: the main one, signals, stages, rayon's.
    let others = 6 + 2 * std::thread::available_parallelism().unwrap().get();
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        most = most.max(std::fs::read_dir(&tasks).map_or(0, Iterator::count));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(most <= others + 9, "{most} threads");
    assert_eq!(child.wait().unwrap().code(), Some(3));
    assert!(
        began.elapsed() < Duration::from_secs(60),
        "{:?}",
        began.elapsed()
    );
    let rows = rows(&std::fs::read_to_string(&output).unwrap());
    let (chats, ids): (Vec<_>, Vec<_>) = rows
        .iter()
        .partition(|row| !row["id"].as_u64().unwrap().is_multiple_of(11));
    assert_eq!((chats.len(), ids.len()), (1000, 100));
    assert!(ids.iter().all(|row| row["finish_reason"] == "length"));
    let of = |code: &str| {
        chats
            .iter()
            .filter(|row| row["error"]["code"] == code)
            .count()
    };
    assert_eq!((of("text_timeout"), of("no_thread")), (8, 992));
    let refused = chats
        .iter()
        .find(|row| row["error"]["code"] == "no_thread")
        .unwrap();
    let message = refused["error"]["message"].as_str().unwrap();
    assert!(
        message.contains("all 8 threads") && message.contains("8 in the chat template"),
        "{message}"
    );
}

#[test]
fn an_interrupt_ends_a_run_whose_threads_hang() {
    let folder = tempfile::tempdir().unwrap();
    let template = folder.path().join("t.jinja");
    std::fs::write(&template, ONE_STEP).unwrap();
    let (input, output) = (
        folder.path().join("in.jsonl"),
        folder.path().join("out.jsonl"),
    );
    std::fs::write(&input, ids(0) + &(1..100).map(chat).collect::<String>()).unwrap();
    let files = [
        "-i",
        text(&input),
        "-o",
        text(&output),
        "--text-timeout",
        "1000",
    ];
    let mut child = chats(&template, &files)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let partial = folder.path().join("out.jsonl.partial");
    let is_served = || std::fs::read_to_string(&partial).is_ok_and(|rows| rows.contains("length"));
    wait_for("first row", is_served);
    std::thread::sleep(Duration::from_millis(300));
    send(&child, "-INT");
    let began = Instant::now();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(began.elapsed() < Duration::from_secs(20));
}
