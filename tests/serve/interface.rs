//! Each route, whole and in chunks, beside what `generate` answers to the same rows.

use crate::common::program::run;
use crate::common::rows::without_timing;
use crate::{Server, generated, replayed};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const COMPLETIONS: &str = "/v1/completions";

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

/// Bodies of both urls, some of them wrong. What does not say its seed is greedy.
fn bodies() -> Vec<(&'static str, Value)> {
    vec![
        (CHAT, json!({"messages": user("hi"), "max_tokens": 7})),
        (
            CHAT,
            json!({"messages": user("hi"), "max_tokens": 9, "temperature": 1.0, "seed": 5, "n": 3}),
        ),
        (
            CHAT,
            json!({"messages": user("hi"), "max_tokens": 6, "logprobs": true, "top_logprobs": 3}),
        ),
        (
            CHAT,
            json!({"messages": user("héé"), "max_tokens": 30, "stop": ["a", "e", "4", "<3"], "logprobs": true}),
        ),
        (
            CHAT,
            json!({"messages": user("c"), "max_tokens": 5, "model": "mine", "tools": [{"type": "function", "function": {"name": "f"}}]}),
        ),
        // A marker of calls, again and again: a call that does not end.
        (
            CHAT,
            json!({"messages": user("c"), "max_tokens": 5, "logit_bias": {"10": 100}, "tools": [{"type": "function", "function": {"name": "f"}}]}),
        ),
        (COMPLETIONS, json!({"prompt": "once", "max_tokens": 12})),
        (
            COMPLETIONS,
            json!({"prompt": ["a", [72, 73]], "max_tokens": 5, "n": 2, "temperature": 0.8, "seed": 3}),
        ),
        (COMPLETIONS, json!({"prompt": "once", "logprobs": 2})),
        (
            COMPLETIONS,
            json!({"prompt": "once", "max_tokens": 40, "stop": ["4", "<2"], "logprobs": 0}),
        ),
        (
            COMPLETIONS,
            json!({"prompt": "onc\u{e9}", "echo": true, "max_tokens": 7}),
        ),
        (
            COMPLETIONS,
            json!({"prompt": ["onc\u{e9}", [72, 195, 73]], "echo": true, "max_tokens": 5, "n": 2, "temperature": 1, "seed": 3, "logprobs": 3}),
        ),
        (
            COMPLETIONS,
            json!({"prompt": ["a b", ""], "echo": true, "max_tokens": 0, "logprobs": 1}),
        ),
        (
            COMPLETIONS,
            json!({"prompt": [72], "echo": true, "max_tokens": 0}),
        ),
        (COMPLETIONS, json!({"prompt": "x", "max_tokens": 0})),
        (CHAT, json!({"messages": user("x"), "echo": true})),
        (CHAT, json!({"messages": []})),
        (CHAT, json!({"messages": user("x"), "max_tokens": 0})),
        (CHAT, json!({"messages": user("x"), "max_tokens": 100_000})),
        (
            CHAT,
            json!({"messages": user("x"), "response_format": {"type": "json_object"}}),
        ),
        (CHAT, json!({"messages": user("x"), "top_logprobs": 2})),
        (COMPLETIONS, json!({"prompt": 7})),
        (COMPLETIONS, json!({"prompt": [1, 2, 99_999_999]})),
        (COMPLETIONS, json!({"messages": user("x")})),
        (COMPLETIONS, json!({"prompt": "x", "best_of": 2})),
        (
            COMPLETIONS,
            json!({"prompt": "x", "max_tokens": 2000, "timeout_ms": 1}),
        ),
    ]
}

/// Without what may differ between two answers to the same.
fn bare(mut body: Value) -> Value {
    if let Some(fields) = body.as_object_mut() {
        for name in ["id", "created"] {
            fields.remove(name);
        }
    }
    // An id of a call has the question's number.
    without_timing(body)
}

#[test]
fn a_request_is_answered_as_a_row_is() {
    let server = Server::start(&["--max-context", "4096"]);
    let bodies = bodies();
    let rows = bodies.iter().enumerate().map(|(at, (url, body))| {
        json!({"custom_id": at, "method": "POST", "url": url, "body": body}).to_string()
    });
    let rows = rows.collect::<Vec<_>>().join("\n");
    let answers = generated(&["--max-context", "4096"], &rows).rows();
    assert_eq!(answers.len(), bodies.len());
    for ((url, body), row) in bodies.iter().zip(answers) {
        let answer = server.post(url, body.to_string());
        let expected = &row["response"];
        if expected.is_null() {
            assert_eq!(answer.error(), row["error"]["message"], "{body}");
            assert_eq!(answer.status, 408, "{body}");
            continue;
        }
        assert_eq!(
            bare(answer.json()),
            bare(expected["body"].clone()),
            "{body}"
        );
        assert_eq!(answer.status, expected["status_code"], "{body}");
    }
}

/// What the chunks of a stream come to: a body without its usage, but for ids.
fn joined(chunks: &[Value], chat: bool, choices: usize) -> Vec<Value> {
    let whole = |index: usize| {
        let of = |chunk: &Value| chunk["choices"][0]["index"] == index;
        let parts: Vec<&Value> = chunks
            .iter()
            .filter(|chunk| of(chunk))
            .map(|chunk| &chunk["choices"][0])
            .collect();
        let text = |part: &&Value| {
            let said = if chat {
                &part["delta"]["content"]
            } else {
                &part["text"]
            };
            said.as_str().unwrap_or_default().to_owned()
        };
        let mut logprobs = serde_json::Map::new();
        for part in &parts {
            for (name, list) in part["logprobs"].as_object().into_iter().flatten() {
                let all = logprobs.entry(name.clone()).or_insert_with(|| json!([]));
                all.as_array_mut()
                    .unwrap()
                    .extend(list.as_array().unwrap().clone());
            }
        }
        let (last, before) = parts.split_last().unwrap();
        assert!(before.iter().all(|part| part["finish_reason"].is_null()));
        let mut whole = json!({
            "index": index,
            "logprobs": if logprobs.is_empty() { Value::Null } else { logprobs.into() },
            "finish_reason": last["finish_reason"],
        });
        let said: String = parts.iter().map(text).collect();
        if chat {
            assert_eq!(parts[0]["delta"]["role"], "assistant");
            whole["message"] = json!({"role": "assistant", "content": said});
            if let Some(why) = last["delta"].get("tool_call_error") {
                whole["message"]["tool_call_error"] = why.clone();
            }
        } else {
            whole["text"] = json!(said);
        }
        whole
    };
    (0..choices).map(whole).collect()
}

#[test]
fn the_third_request_has_a_beginning_from_the_second() {
    let server = Server::start(&[]);
    let ask = |row: u32, more: &Value| {
        let ids: Vec<u32> = (0..60).chain([100 + row, 101]).map(|at| 8 + at).collect();
        let mut body = json!({"prompt": ids, "max_tokens": 3});
        let fields = body.as_object_mut().unwrap();
        fields.extend(more.as_object().unwrap().clone());
        server.post(COMPLETIONS, body.to_string())
    };
    let cached = |answer: &Value| answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone();
    let told = [0, 1, 2].map(|row| cached(&ask(row, &json!({})).json()));
    assert_eq!(told, [json!(0), json!(0), json!(60)]);
    let several = ask(3, &json!({"n": 2}));
    assert_eq!(cached(&several.json()), 60);
    let stream = json!({"stream": true, "stream_options": {"include_usage": true}});
    let last = ask(4, &stream).events().pop().unwrap();
    assert_eq!(cached(&last), 60);
    let page = server.get("/metrics").text;
    let counted = page
        .lines()
        .find_map(|line| line.strip_prefix("tailgraph_cached_tokens_total "));
    assert!(
        counted.is_some_and(|tokens| tokens.parse::<u64>().unwrap() >= 4 * 60),
        "{page}"
    );
}

#[test]
fn a_stream_is_the_whole_answer() {
    let server = Server::start(&["--max-context", "4096"]);
    let mut compared = 0;
    for (url, mut body) in bodies() {
        let whole = server.post(url, body.to_string());
        body["stream"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
        let stream = server.post(url, body.to_string());
        if whole.status == 408 {
            let last = stream.events().pop().unwrap();
            assert_eq!(last["error"]["message"], whole.error());
            continue;
        }
        if whole.status != 200 {
            assert_eq!(
                (stream.status, stream.error()),
                (whole.status, whole.error())
            );
            continue;
        }
        let whole = whole.json();
        let chunks = stream.events();
        let (usage, chunks) = chunks.split_last().unwrap();
        let of = |answer: &Value| without_timing(answer["usage"].clone());
        assert_eq!(of(usage), of(&whole), "{body}");
        assert_eq!(usage["choices"], json!([]));
        let mut choices = whole["choices"].as_array().unwrap().clone();
        let mut joined = joined(chunks, url == CHAT, choices.len());
        for (joined, choice) in joined.iter_mut().zip(&mut choices) {
            let offsets = |choice: &mut Value| {
                let offsets = choice["logprobs"].as_object_mut()?.remove("text_offset")?;
                let offsets = offsets.as_array().unwrap().iter();
                Some(offsets.map(|at| at.as_u64().unwrap()).collect::<Vec<_>>())
            };
            // Characters that are not whole yet are not out.
            let (out, known) = (
                offsets(joined).unwrap_or_default(),
                offsets(choice).unwrap_or_default(),
            );
            assert_eq!(out.len(), known.len());
            assert!(
                out.iter()
                    .zip(&known)
                    .all(|(out, known)| out <= known && *known <= out + 4),
                "{out:?} {known:?}"
            );
        }
        assert_eq!(joined, choices, "{body}");
        for chunk in chunks {
            assert!(chunk["usage"].is_null());
            assert_eq!(chunk["model"], whole["model"]);
            assert_eq!(chunk["id"], chunks[0]["id"]);
        }
        compared += 1;
    }
    assert!(compared >= 10, "{compared}");
    let plain = json!({"prompt": "x", "max_tokens": 2, "stream": true});
    let events = server.post(COMPLETIONS, plain.to_string()).events();
    assert!(events.iter().all(|event| event.get("usage").is_none()));
}

#[test]
fn texts_become_tokens_and_back() {
    let server = Server::start(&[]);
    let body = json!({"prompt": "hello", "return_token_strs": true});
    let tokens = server.post("/tokenize", body.to_string()).json();
    assert_eq!(tokens["count"], 6);
    assert_eq!(
        tokens["token_strs"],
        json!(["<|startoftext|>", "h", "e", "l", "l", "o"])
    );
    let ids = &tokens["tokens"].as_array().unwrap()[1..];
    let text = server
        .post("/detokenize", json!({"tokens": ids}).to_string())
        .json();
    assert_eq!(text, json!({"prompt": "hello"}));
    let bare = json!({"prompt": "hello", "add_special_tokens": false});
    let bare = server.post("/tokenize", bare.to_string()).json();
    assert_eq!(bare["tokens"], json!(ids));
    // The count is that of the same chat as a prompt.
    let chat = json!({"messages": user("hi"), "max_tokens": 1});
    let count = server.post("/tokenize", chat.to_string()).json()["count"].clone();
    let answer = server.post(CHAT, chat.to_string()).json();
    assert_eq!(answer["usage"]["prompt_tokens"], count);
    for body in ["{}", "{\"prompt\": 1}", "[]", "{"] {
        assert_eq!(server.post("/tokenize", body).status, 400, "{body}");
        assert_eq!(server.post("/detokenize", body).status, 400, "{body}");
    }
}

#[test]
fn a_key_is_asked_for_where_there_is_one() {
    let server = Server::start(&["--api-key", "secret"]);
    let with = |key: &str| {
        let header = [("authorization", key)];
        server.ask("GET", "/v1/models", &header, b"").status
    };
    for wrong in [
        "",
        "secret",
        "Bearer ",
        "Bearer secre",
        "Bearer secrets",
        "Basic secret",
    ] {
        assert_eq!(with(wrong), 401, "{wrong}");
    }
    assert_eq!(with("Bearer secret"), 200);
    assert_eq!(server.get("/metrics").status, 401);
    assert_eq!(server.get("/health").status, 200);
}

#[test]
fn routes_say_what_they_are() {
    let server = Server::start(&["--strict"]);
    let models = server.get("/v1/models").json();
    assert_eq!(models["data"][0]["id"], "random:tiny@0");
    assert_eq!(models["data"][0]["max_model_len"], 4096);
    assert_eq!(
        server.get("/v1/models/random:tiny@0").json(),
        models["data"][0]
    );
    assert_eq!(server.get("/v1/models/other").status, 404);
    assert_eq!(server.get("/nowhere").status, 404);
    assert_eq!(server.get(CHAT).status, 405);
    let none = server.get("/v1/files");
    assert_eq!(none.status, 501);
    assert!(none.error().contains("--batches DIR"));
    let unknown = json!({"prompt": "x", "max_tokens": 1, "temprature": 1});
    let unknown = server.post(COMPLETIONS, unknown.to_string());
    assert_eq!(unknown.status, 400);
    assert!(
        unknown.error().contains("body.temprature"),
        "{}",
        unknown.error()
    );
    server.post(
        COMPLETIONS,
        json!({"prompt": "x", "max_tokens": 8}).to_string(),
    );
    assert_eq!(server.metric("tailgraph_generation_tokens_total"), 8.0);
    assert_eq!(
        server.metric("tailgraph_sequences_total{end=\"length\"}"),
        1.0
    );
    assert_eq!(
        server.metric("tailgraph_time_to_first_token_seconds_count"),
        1.0
    );
    assert_eq!(
        server.metric("tailgraph_inter_token_latency_seconds_count"),
        7.0
    );
    let pages = server.metric("tailgraph_pages");
    assert!(pages > 0.0);
    assert_eq!(server.metric("tailgraph_pages_free"), pages);
    // A prompt's step, and a decode step for each token after the first.
    let steps = "tailgraph_step_seconds_count{kind=\"decode\",bucket=\"1\"}";
    server.wait_for(steps, |steps| steps >= 6.0);
}

#[test]
fn a_server_is_recorded_and_replayed() {
    let folder = tempfile::tempdir().unwrap();
    let record = folder.path().join("run.jsonl");
    let record = record.to_str().unwrap();
    let server = Server::start(&["--record", record, "--max-seqs", "2"]);
    for text in ["a", "b", "c"] {
        let body = json!({"prompt": text, "max_tokens": 6, "temperature": 1});
        assert_eq!(server.post(COMPLETIONS, body.to_string()).status, 200);
    }
    server.signal("-TERM");
    let ended = server.ended();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let replayed = replayed(record);
    assert!(replayed.contains("18 tokens"), "{replayed}");
    let trace = folder.path().join("trace.json");
    let trace = trace.to_str().unwrap();
    run(&["trace", "--from", record, "-o", trace]).good();
}

#[test]
fn replicas_and_stages_serve_the_same() {
    let body = json!({"prompt": "same", "max_tokens": 6}).to_string();
    let answers = [
        &["--device", "cpu"][..],
        &["--device", "cpu:0,1"],
        &["--device", "cpu:0,1", "--parallel", "stages"],
    ]
    .map(|more| {
        let server = Server::start(more);
        bare(server.post(COMPLETIONS, &body).json())
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0], answers[2]);
}
