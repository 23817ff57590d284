//! Rows that are wrong: the error says what and where.

use crate::fakes::CODEC;
use crate::rows::{prepared, rules};
use tailgraph::io::Code;
use tailgraph::io::line::parse;
use tailgraph::io::prepare::{Rules, prepare};
use tailgraph::io::row::Options;

#[test]
fn each_wrong_row_says_what_and_where() {
    use Code::*;
    let cases: &[(&str, Code, &str)] = &[
        ("{\"prompt\":\"x\"", InvalidJson, "line 3 is not JSON"),
        (
            "[1]",
            InvalidJson,
            "found an array of 1, expected a JSON object",
        ),
        ("\u{fffd}", InvalidJson, "line 3"),
        (
            "{}",
            InvalidRequest,
            "none of prompt, input_ids and messages",
        ),
        (
            r#"{"prompt":"x","input_ids":[1]}"#,
            InvalidRequest,
            "more than one of",
        ),
        (
            r#"{"prompt":5}"#,
            InvalidRequest,
            "prompt: found 5, expected a string",
        ),
        (
            r#"{"input_ids":[]}"#,
            EmptyPrompt,
            "input_ids: found no tokens",
        ),
        (
            r#"{"messages":[]}"#,
            EmptyPrompt,
            "messages: found an empty array",
        ),
        (
            r#"{"messages":[{"content":"x"}]}"#,
            InvalidRequest,
            "messages[0].role: found null",
        ),
        (
            r#"{"messages":[{"role":"user"}]}"#,
            InvalidRequest,
            "messages[0].content: found null",
        ),
        (
            r#"{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}"#,
            Unsupported,
            "messages[0].content[0]: found a part of type \"image_url\"",
        ),
        (
            r#"{"prompt":"x","tools":[]}"#,
            InvalidRequest,
            "tools: found without messages",
        ),
        (
            r#"{"input_ids":[1,300]}"#,
            TokenOutOfRange,
            "input_ids[1]: found 300, expected a token id below the vocabulary size 300",
        ),
        (
            r#"{"input_ids":[1,-2]}"#,
            TokenOutOfRange,
            "input_ids[1]: found -2",
        ),
        (
            r#"{"input_ids":[1,99999999999]}"#,
            TokenOutOfRange,
            "input_ids[1]: found 99999999999",
        ),
        (
            r#"{"input_ids":[1,2.5]}"#,
            InvalidRequest,
            "input_ids[1]: found 2.5, expected a token id",
        ),
        (
            r#"{"input_ids":"1"}"#,
            InvalidRequest,
            "input_ids: found \"1\"",
        ),
        (
            r#"{"id":[],"prompt":"x"}"#,
            InvalidRequest,
            "id: found an empty array, expected a string or an integer",
        ),
        (
            r#"{"prompt":"x","max_new_tokens":0}"#,
            InvalidRequest,
            "max_new_tokens: found 0, expected an integer from 1",
        ),
        (
            r#"{"prompt":"x","max_new_tokens":99}"#,
            ContextLength,
            "2 prompt tokens + 99 new ones = 101, expected at most 100",
        ),
        (
            r#"{"prompt":"x","temperature":-1}"#,
            InvalidRequest,
            "temperature: found -1, expected a number from 0",
        ),
        (
            r#"{"prompt":"x","temperature":1e39}"#,
            InvalidRequest,
            "temperature: found 1e+39",
        ),
        (
            r#"{"prompt":"x","temperature":"hot"}"#,
            InvalidRequest,
            "temperature: found \"hot\"",
        ),
        (
            r#"{"prompt":"x","top_k":-2}"#,
            InvalidRequest,
            "top_k: found -2",
        ),
        (
            r#"{"prompt":"x","top_p":-0.1}"#,
            InvalidRequest,
            "top_p: found -0.1",
        ),
        (
            r#"{"prompt":"x","top_p":2}"#,
            InvalidRequest,
            "top_p: found 2, expected a number from 0",
        ),
        (
            r#"{"prompt":"x","temperature":NaN}"#,
            InvalidRequest,
            "temperature: found NaN",
        ),
        (
            r#"{"prompt":"x","temperature":1e400}"#,
            InvalidRequest,
            "temperature: found 1e400",
        ),
        (
            r#"{"messages":[{"role":"user","content":"x","weight":-Infinity}]}"#,
            InvalidRequest,
            "messages: found the number -Infinity",
        ),
        (
            r#"{"prompt":"x","max_new_tokens":2.5}"#,
            InvalidRequest,
            "max_new_tokens: found 2.5, expected an integer from 1",
        ),
        (
            r#"{"prompt":"x","max_new_tokens":-1}"#,
            InvalidRequest,
            "max_new_tokens: found -1",
        ),
        (
            r#"{"prompt":"x","max_new_tokens":"5"}"#,
            InvalidRequest,
            "max_new_tokens: found \"5\"",
        ),
        (
            r#"{"prompt":"x","seed":18446744073709551616}"#,
            InvalidRequest,
            "seed: found 18446744073709551616, expected a 64-bit integer, from -9223372036854775808 to 18446744073709551615",
        ),
        (
            r#"{"prompt":"\ud800"}"#,
            InvalidJson,
            "line 3 is not JSON: half of a surrogate pair",
        ),
        (r#"{"prompt":"x""#, InvalidJson, "it ends too early"),
        (
            r#"{"prompt":"x","min_p":1.5}"#,
            InvalidRequest,
            "min_p: found 1.5",
        ),
        (
            r#"{"prompt":"x","repetition_penalty":0}"#,
            InvalidRequest,
            "repetition_penalty: found 0",
        ),
        (
            r#"{"prompt":"x","seed":1.5}"#,
            InvalidRequest,
            "seed: found 1.5",
        ),
        (
            r#"{"prompt":"x","stop":["a",""]}"#,
            InvalidRequest,
            "stop: found an empty string",
        ),
        (
            r#"{"prompt":"x","stop_ids":[300]}"#,
            TokenOutOfRange,
            "stop_ids[0]: found 300",
        ),
        (
            r#"{"prompt":"x","stop_ids":[10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25]}"#,
            InvalidRequest,
            "stop_ids: found 17 ids with the end-of-sequence ids, expected at most 16",
        ),
        (
            r#"{"prompt":"x","ignore_eos":1}"#,
            InvalidRequest,
            "ignore_eos: found 1, expected true or false",
        ),
        (
            r#"{"prompt":"x","logprobs":21}"#,
            InvalidRequest,
            "logprobs: found 21, expected an integer from 0 to 20",
        ),
        (
            r#"{"prompt":"x","timeout_ms":0}"#,
            InvalidRequest,
            "timeout_ms: found 0",
        ),
    ];
    for (line, code, message) in cases {
        let error = prepared(line).expect_err(line);
        assert_eq!(error.code, *code, "{line}: {error}");
        assert!(error.message.contains(message), "{line}: {error}");
        assert!(!error.message.contains('\n'), "{line}: {error}");
    }
}

#[test]
fn a_broken_line_keeps_its_number_and_claims_no_id() {
    let row = parse(b"{\"id\": 9, oops", 4);
    assert_eq!(row.id.as_str(), "4");
    assert!(!row.claims_id);
}

/// What is found only against the model is named as the row's format, or the flag, has it.
#[test]
fn errors_name_the_fields_of_the_format() {
    let batch = |body: &str| {
        format!(r#"{{"custom_id":"c","url":"/v1/completions","body":{{"prompt":{body}}}}}"#)
    };
    let told = |line: &str, flags: Options| {
        let rules = Rules {
            max_context: 20,
            defaults: flags,
            ..rules()
        };
        let ask = parse(line.as_bytes(), 1).ask.unwrap();
        prepare(&rules, &CODEC, 0, &ask).unwrap_err().message
    };
    let none = Options::default;
    let limit = Options {
        max_new_tokens: Some(20),
        ..none()
    };
    let stops = |ids| Options {
        stop_ids: Some(ids),
        ..none()
    };
    for (line, flags, expected) in [
        (batch("[999]"), none(), "prompt[0]: found 999"),
        (batch("[]"), none(), "prompt: found no tokens"),
        (
            batch(r#""x","stop_token_ids":[1,999]"#),
            none(),
            "stop_token_ids[1]: found 999",
        ),
        (batch(r#""x","max_tokens":20"#), none(), "lower max_tokens"),
        (batch(r#""x""#), limit.clone(), "lower --max-new-tokens"),
        (
            batch(r#""x""#),
            stops(vec![999]),
            "--stop-ids[0]: found 999",
        ),
        (r#"{"input_ids":[999]}"#.to_owned(), none(), "input_ids[0]"),
        (
            r#"{"prompt":"x","stop_ids":[999]}"#.to_owned(),
            stops(vec![1]),
            "stop_ids[0]: found 999",
        ),
        (
            r#"{"prompt":"x","max_new_tokens":20}"#.to_owned(),
            limit,
            "lower max_new_tokens",
        ),
    ] {
        let message = told(&line, flags);
        assert!(message.contains(expected), "{line}: {message}");
    }
}
