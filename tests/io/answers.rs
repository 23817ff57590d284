//! Logprobs of answers are made of tokens' bytes: pieces of characters, tokens that read alike, ids without a token.

use crate::fakes::{CODEC, ENDS, SPELLED, outcome};
use serde_json::{Value, json};
use tailgraph::io::answer::{Finish, Label, Origin, Outcome, served};
use tailgraph::io::row::{Endpoint, Format, Id, OpenAi};
use tailgraph::runtime::TokenLogprobs;

/// The answer to a row whose tokens were é in two pieces, `<end>` and an id without a token.
fn answer(format: Format) -> Value {
    let of_token = |logprob: f32, top: &[(u32, f32)]| TokenLogprobs {
        logprob,
        top: top.to_vec(),
    };
    let outcome = Outcome {
        logprobs: Some(vec![
            // Two pieces of characters that both show as U+FFFD.
            of_token(-0.5, &[(0xc3, -0.5), (0xe6, -1.0), (SPELLED, -2.0)]),
            // The chosen token is not among the best.
            of_token(-9.0, &[(0x41, -0.25), (900, -3.0), (901, -4.0)]),
            of_token(-1.0, &[(ENDS[0], -0.5), (ENDS[1], -1.0)]),
            of_token(-2.0, &[(901, -1.0), (900, -2.0), (902, -3.0)]),
        ]),
        ..outcome(vec![0xc3, 0xa9, ENDS[1], 900], Finish::Length)
    };
    let origin = Origin {
        model: "served".into(),
        created: 1_700_000_000,
    };
    let label = Label {
        line: 1,
        id: Id::line(1),
        format,
    };
    serde_json::from_str(&served(&label, &[outcome], &CODEC, &origin)).unwrap()
}

fn openai(endpoint: Endpoint) -> Value {
    let format = OpenAi {
        endpoint,
        ..OpenAi::default()
    };
    let answer = answer(Format::OpenAi(format));
    answer["response"]["body"]["choices"][0]["logprobs"].clone()
}

#[test]
fn chat_logprobs_have_each_tokens_own_bytes() {
    let logprobs = openai(Endpoint::Chat);
    let entry = |token: &str, logprob: f64, bytes: Value| json!({"token": token, "logprob": logprob, "bytes": bytes});
    let with_top = |mut entry: Value, top: Vec<Value>| {
        entry["top_logprobs"] = top.into();
        entry
    };
    let end = || json!(b"<end>");
    let expected = json!({"content": [
        with_top(entry(r"\xc3", -0.5, json!([0xc3])), vec![
            entry(r"\xc3", -0.5, json!([0xc3])),
            entry(r"\xe6", -1.0, json!([0xe6])),
            entry(r"bytes:\xc3", -2.0, json!(br"bytes:\xc3")),
        ]),
        with_top(entry(r"\xa9", -9.0, json!([0xa9])), vec![
            entry("A", -0.25, json!([0x41])),
            entry("", -3.0, Value::Null),
            entry("", -4.0, Value::Null),
        ]),
        with_top(entry("<end>", -1.0, end()), vec![entry("<end>", -0.5, end()), entry("<end>", -1.0, end())]),
        with_top(entry("", -2.0, Value::Null), vec![
            entry("", -1.0, Value::Null),
            entry("", -2.0, Value::Null),
            entry("", -3.0, Value::Null),
        ]),
    ]});
    assert_eq!(logprobs, expected);
}

#[test]
fn completions_lose_no_token_that_reads_like_another() {
    let logprobs = openai(Endpoint::Completions);
    let expected = json!({
        "tokens": [r"bytes:\xc3", r"bytes:\xa9", "<end>", ""],
        "token_logprobs": [-0.5, -9.0, -1.0, -2.0],
        "top_logprobs": [
            {r"bytes:\xc3": -0.5, r"bytes:\xe6": -1.0, "token_id:302": -2.0},
            {"A": -0.25, "": -3.0, "token_id:901": -4.0, r"bytes:\xa9": -9.0},
            {"token_id:300": -0.5, "<end>": -1.0},
            {"token_id:901": -1.0, "": -2.0, "token_id:902": -3.0},
        ],
        "text_offset": [0, 0, 1, 6],
    });
    assert_eq!(logprobs, expected);
}

#[test]
fn rows_of_our_own_show_bytes_where_a_token_is_no_text() {
    let logprobs = answer(Format::Own)["logprobs"].clone();
    let piece = |byte: u32, logprob: f64| json!({"token": "\u{fffd}", "bytes": [byte], "id": byte, "logprob": logprob});
    assert_eq!(logprobs[0]["bytes"], json!([0xc3]));
    assert_eq!(logprobs[0]["top"][0], piece(0xc3, -0.5));
    assert_eq!(logprobs[0]["top"][1], piece(0xe6, -1.0));
    assert_eq!(
        logprobs[1]["top"][0],
        json!({"token": "A", "id": 0x41, "logprob": -0.25})
    );
    assert_eq!(
        logprobs[1]["top"][1],
        json!({"token": "", "id": 900, "logprob": -3.0})
    );
    assert_eq!(logprobs[2]["token"], "<end>");
    let names: Vec<&String> = logprobs[2].as_object().unwrap().keys().collect();
    assert_eq!(names, ["token", "id", "logprob", "top"]);
}
