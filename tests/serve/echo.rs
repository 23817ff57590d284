//! Prompts that are repeated in answers (`echo`), and their logprobs beside those of `score`.

use crate::common::program::run_with_input;
use crate::{Server, generated, replayed};
use serde_json::{Value, json};
use std::time::Duration;

const COMPLETIONS: &str = "/v1/completions";
/// The id of the byte 0.
const BYTES: u32 = 8;

fn choices(server: &Server, body: &Value) -> Vec<Value> {
    let answer = server.post(COMPLETIONS, body.to_string());
    assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    answer.json()["choices"].as_array().unwrap().clone()
}

/// What `score --logprobs` has of each prompt.
fn scored(prompts: &[Vec<u32>]) -> Vec<Value> {
    let rows = prompts
        .iter()
        .map(|ids| json!({"input_ids": ids}).to_string());
    let rows = rows.collect::<Vec<_>>().join("\n");
    let args = [
        "score",
        "--model",
        "random:tiny",
        "--device",
        "cpu",
        "-q",
        "--logprobs",
        "--input",
        "-",
    ];
    run_with_input(&args, &rows).rows()
}

fn list<'v>(choice: &'v Value, name: &str) -> &'v [Value] {
    choice["logprobs"][name].as_array().unwrap()
}

/// Some are longer than a step, one is a single token.
fn prompts() -> Vec<Vec<u32>> {
    let prompt = |length: u32| {
        let id = |at: u32| BYTES + 65 + (at * at * 7 + length) % 57;
        (0..length).map(id).collect()
    };
    [1, 2, 9, 40, 130, 700].map(prompt).into()
}

#[test]
fn logprobs_of_prompts_are_those_of_score() {
    let (server, prompts) = (Server::start(&["--max-seqs", "4"]), prompts());
    let body = |tokens: u32, top: u32| json!({"model": "m", "prompt": prompts, "temperature": 0, "max_tokens": tokens, "logprobs": top, "seed": 1234, "echo": true});
    let mut plain = body(1, 1);
    plain["echo"] = json!(false);
    let plain = choices(&server, &plain);
    let scored = scored(&prompts);
    for (tokens, top) in [(1, 1), (0, 1), (3, 5), (0, 0)] {
        let answer = choices(&server, &body(tokens, top));
        assert_eq!(answer.len(), prompts.len());
        for (at, choice) in answer.iter().enumerate() {
            let (length, all) = (prompts[at].len(), prompts[at].len() + tokens as usize);
            assert_eq!(choice["index"], at);
            assert_eq!(choice["finish_reason"], "length");
            let logprobs = list(choice, "token_logprobs");
            assert_eq!(logprobs.len(), all);
            // To the bit, the first, which is null, among them.
            let expected = scored[at]["logprobs"].as_array().unwrap();
            for (found, expected) in logprobs.iter().zip(expected) {
                let bits = |value: &Value| value.as_f64().map(|value| (value as f32).to_bits());
                assert_eq!(bits(found), bits(expected), "prompt {at}");
            }
            let best = list(choice, "top_logprobs");
            assert_eq!(best.len(), all);
            assert!(logprobs[0].is_null() && best[0].is_null());
            let words = list(choice, "tokens");
            for ((best, own), word) in best.iter().zip(logprobs).zip(words).skip(1) {
                let best = best.as_object().unwrap();
                assert!((top.max(1)..=top + 1).contains(&(best.len() as u32)));
                assert_eq!(best[word.as_str().unwrap()], *own);
            }
            let text = choice["text"].as_str().unwrap();
            let prompt: String = prompts[at]
                .iter()
                .map(|&id| char::from((id - BYTES) as u8))
                .collect();
            assert!(text.starts_with(&prompt), "{text:?}");
            let offsets = list(choice, "text_offset");
            assert!((0..length).all(|at| offsets[at] == at), "{offsets:?}");
            assert_eq!(offsets.len(), all);
            if tokens > 0 {
                assert_eq!(offsets[length], prompt.chars().count());
                let first = plain[at]["text"].as_str().unwrap();
                assert!(
                    text[prompt.len()..].starts_with(first),
                    "{text:?} {first:?}"
                );
                assert_eq!(logprobs[length], list(&plain[at], "token_logprobs")[0]);
            } else {
                assert_eq!(text, prompt);
            }
        }
    }
}

/// A token that was generated has the logprob that it has in a prompt, and one that was chosen greedily is the best there.
#[test]
fn an_answer_scored_as_a_prompt_has_its_own_logprobs() {
    let server = Server::start(&[]);
    for temperature in [0, 1] {
        let body = json!({"prompt": [72, 73, 74], "max_tokens": 20, "temperature": temperature, "seed": 9});
        let row = json!({"input_ids": [72, 73, 74], "max_new_tokens": 20, "temperature": temperature, "seed": 9});
        let answer = generated(&[], &row.to_string()).rows();
        let new = answer[0]["output_ids"].as_array().unwrap();
        assert_eq!(answer[0]["text"], choices(&server, &body)[0]["text"]);
        let mut body = json!({"prompt": [72, 73, 74], "max_tokens": 20, "temperature": temperature, "seed": 9, "logprobs": 1});
        let made = &choices(&server, &body)[0];
        let mut ids = vec![json!(72), json!(73), json!(74)];
        ids.extend(new.iter().cloned());
        body["prompt"] = json!(ids);
        body["max_tokens"] = json!(0);
        body["echo"] = json!(true);
        let read = &choices(&server, &body)[0];
        for (at, made) in list(made, "token_logprobs").iter().enumerate() {
            let read_logprob = &list(read, "token_logprobs")[3 + at];
            let apart = (made.as_f64().unwrap() - read_logprob.as_f64().unwrap()).abs();
            assert!(apart < 1e-5, "{at}: {made} {read_logprob}");
            if temperature == 0 {
                let best = list(read, "top_logprobs")[3 + at].as_object().unwrap();
                assert_eq!(best.len(), 1, "{best:?}");
                assert_eq!(best.values().next(), Some(read_logprob));
            }
        }
    }
}

#[test]
fn a_text_is_repeated_as_it_was_given() {
    let server = Server::start(&[]);
    let text = "h\u{e9} <|im_start|> \u{1f600}";
    let body = |echo: bool, stream: bool| json!({"prompt": text, "max_tokens": 6, "echo": echo, "stream": stream, "logprobs": 0});
    let [plain, echo] = [false, true].map(|echo| choices(&server, &body(echo, false))[0].clone());
    let joined = format!("{text}{}", plain["text"].as_str().unwrap());
    assert_eq!(echo["text"], joined.as_str());
    // The token that the tokenizer puts before the text is one of the prompt, and no part of the text.
    assert_eq!(list(&echo, "tokens")[0], "<|startoftext|>");
    assert_eq!(list(&echo, "text_offset")[..3], [0, 0, 1].map(Value::from));
    let events = server
        .post(COMPLETIONS, body(true, true).to_string())
        .events();
    let first = &events[0]["choices"][0];
    assert_eq!(first["text"], text, "the prompt comes first");
    assert!(first["finish_reason"].is_null());
    let prompt = list(first, "tokens").len();
    assert_eq!(list(&echo, "tokens")[..prompt], *list(first, "tokens"));
    assert_eq!(prompt + 6, list(&echo, "tokens").len());
    let ids = server.post("/tokenize", json!({"prompt": text}).to_string());
    assert_eq!(ids.json()["count"], prompt);
    // Ids have the text that their answers would have: without special tokens, or with them.
    let ids = &ids.json()["tokens"];
    for (skip, expected) in [
        (true, "h\u{e9}  \u{1f600}".to_owned()),
        (false, format!("<|startoftext|>{text}")),
    ] {
        let body =
            json!({"prompt": ids, "max_tokens": 0, "echo": true, "skip_special_tokens": skip});
        assert_eq!(choices(&server, &body)[0]["text"], expected.as_str());
    }
}

#[test]
fn tokens_of_prompts_are_not_counted_as_new_ones() {
    let server = Server::start(&[]);
    let body = json!({"prompt": [[72, 73], [74, 75, 76]], "max_tokens": 2, "n": 2, "echo": true, "logprobs": 1, "temperature": 1});
    let answer = server.post(COMPLETIONS, body.to_string()).json();
    let usage = &answer["usage"];
    assert_eq!(
        (&usage["prompt_tokens"], &usage["completion_tokens"]),
        (&json!(5), &json!(8))
    );
    assert_eq!(server.metric("tailgraph_generation_tokens_total"), 8.0);
    assert_eq!(
        server.metric("tailgraph_sequences_total{end=\"length\"}"),
        4.0
    );
}

/// Whoever goes away while its prompts are scored leaves nothing behind.
#[test]
fn a_client_that_goes_away_is_not_answered_after_its_prompt_was_scored() {
    let server = Server::start(&["--max-seqs", "2", "--max-context", "4096"]);
    let prompt: Vec<u32> = (0..2000).map(|at| 65 + at % 50).collect();
    let body = json!({"prompt": [prompt, prompt, prompt], "max_tokens": 2000, "echo": true, "logprobs": 20, "ignore_eos": true});
    for wait in [0, 30, 100, 300] {
        let before = server.metric("tailgraph_sequences_total{end=\"cancelled\"}");
        let waits = server.raw(COMPLETIONS, &body.to_string());
        server.wait_for("tailgraph_sequences_running", |running| running > 0.0);
        std::thread::sleep(Duration::from_millis(wait));
        drop(waits);
        let cancelled = "tailgraph_sequences_total{end=\"cancelled\"}";
        server.wait_for(cancelled, |count| count == before + 3.0);
        server.wait_for("tailgraph_sequences_running", |running| running == 0.0);
        server.wait_for("tailgraph_sequences_waiting", |waiting| waiting == 0.0);
    }
    let pages = server.metric("tailgraph_pages");
    server.wait_for("tailgraph_pages_free", |free| free == pages);
    let short = json!({"prompt": "x", "max_tokens": 2, "echo": true, "logprobs": 1});
    assert_eq!(choices(&server, &short).len(), 1);
}

#[test]
fn a_prompt_that_takes_too_long_to_score_ends_by_its_time() {
    let server = Server::start(&["--max-context", "4096"]);
    let prompt: Vec<u32> = (0..3000).map(|at| 65 + at % 50).collect();
    let body =
        json!({"prompt": prompt, "max_tokens": 1, "echo": true, "logprobs": 1, "timeout_ms": 1});
    assert_eq!(server.post(COMPLETIONS, body.to_string()).status, 408);
    let long = json!({"prompt": prompt, "max_tokens": 2000, "echo": true});
    let long = server.post(COMPLETIONS, long.to_string());
    assert_eq!(long.status, 400);
    assert!(
        long.error().contains("expected at most 4096"),
        "{}",
        long.error()
    );
}

#[test]
fn replicas_and_stages_repeat_prompts_too() {
    let prompts = prompts();
    let body = json!({"prompt": prompts, "max_tokens": 2, "echo": true, "logprobs": 2});
    let answers = [
        &["--device", "cpu"][..],
        &["--device", "cpu:0,1", "--max-seqs", "2"],
        &["--device", "cpu:0,1", "--parallel", "stages"],
    ]
    .map(|more| choices(&Server::start(more), &body));
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}

#[test]
fn a_run_with_scored_prompts_is_recorded_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("run.jsonl");
    let record = record.to_str().unwrap();
    let server = Server::start(&["--record", record]);
    let body = json!({"prompt": "some text", "max_tokens": 3, "echo": true, "logprobs": 1});
    choices(&server, &body);
    server.signal("-TERM");
    assert_eq!(server.ended().code, 0);
    let replayed = replayed(record);
    assert!(replayed.contains("3 tokens"), "{replayed}");
}
