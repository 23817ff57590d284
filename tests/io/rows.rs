//! One line in, a question or a clear error out.

use crate::fakes::Bytes;
use std::time::Duration;
use tailgraph::io::line::parse;
use tailgraph::io::prepare::{Prepared, Rules, prepare, sampling_key};
use tailgraph::io::row::{MAX_ID_BYTES, MAX_VALUES, Options, Prompt};
use tailgraph::io::{Code, Codec, RowError, TextStream};
use tailgraph::json;
use tailgraph::text::{Chat, Doubt};

pub fn rules() -> Rules {
    Rules {
        vocab_size: 300,
        max_context: 100,
        model_context: 200,
        eos_ids: vec![7],
        defaults: Options {
            max_new_tokens: Some(5),
            ..Options::default()
        },
        advised_new_tokens: None,
        run_seed: 0,
    }
}

fn prepared(line: &str) -> Result<Prepared, RowError> {
    let row = parse(line.as_bytes(), 3);
    prepare(&rules(), &Bytes, ROW, &row.ask?)
}

/// Where the row stands in the input.
const ROW: u64 = 2;

#[test]
fn every_option_reaches_the_request() {
    let got = prepared(
        r#"{"id":"x","input_ids":[1,2,3],"max_new_tokens":9,"temperature":0.5,"top_k":4,"top_p":0.9,"min_p":0.1,
        "repetition_penalty":1.1,"seed":-1,"stop":"END","stop_ids":[9,7],"logprobs":3,"timeout_ms":1500}"#,
    )
    .unwrap();
    let request = got.request;
    assert_eq!(request.prompt, [1, 2, 3]);
    assert_eq!(request.max_new_tokens, 9);
    assert_eq!(request.stop_ids, [7, 9]);
    assert_eq!(
        request.timeout,
        Some(std::time::Duration::from_millis(1500))
    );
    let sampling = request.sampling;
    assert_eq!(
        (
            sampling.temperature,
            sampling.top_k,
            sampling.top_p,
            sampling.min_p
        ),
        (0.5, 4, 0.9, 0.1)
    );
    assert_eq!(sampling.repetition_penalty, 1.1);
    assert_eq!(sampling.key, u64::MAX);
    assert_eq!(sampling.logprobs, Some(3));
    assert_eq!(got.stop, ["END"]);
}

#[test]
fn defaults_fill_gaps_and_places_key_the_sampling() {
    let got = prepared(r#"{"id":"x","prompt":"hi","stop":null}"#).unwrap();
    assert_eq!(got.request.prompt, [256, 104, 105]);
    assert_eq!(got.request.max_new_tokens, 5);
    assert_eq!(got.request.stop_ids, [7]);
    assert_eq!(got.request.sampling.temperature, 0.0);
    assert_eq!(got.request.sampling.key, sampling_key(0, ROW));
    assert_ne!(sampling_key(0, ROW), sampling_key(1, ROW));
    assert_ne!(sampling_key(0, ROW), sampling_key(0, ROW + 1));
    let ignoring = prepared(r#"{"prompt":"hi","ignore_eos":true,"stop_ids":[]}"#).unwrap();
    assert!(ignoring.request.stop_ids.is_empty());
}

#[test]
fn ids_and_unknown_fields() {
    let named = |line: &str| serde_json::to_string(&parse(line.as_bytes(), 8).id).unwrap();
    assert_eq!(named(r#"{"id":"a","prompt":"x"}"#), "\"a\"");
    assert_eq!(named(r#"{"id":-5,"prompt":"x"}"#), "-5");
    assert_eq!(named(r#"{"prompt":"x"}"#), "8");
    assert_eq!(named(r#"{"id":null,"prompt":"x"}"#), "8");
    assert_eq!(named(r#"{"id":1.5,"prompt":"x"}"#), "8");
    assert_eq!(named(r#"{"id":2.0,"prompt":"x"}"#), "2");
    assert_eq!(
        named(r#"{"id":18446744073709551615,"prompt":"x"}"#),
        "18446744073709551615"
    );
    assert_eq!(
        named(r#"{"id":18446744073709551617,"prompt":"x"}"#),
        "18446744073709551617"
    );
    let row = parse(br#"{"prompt":"x","temprature":1}"#, 1);
    assert_eq!(row.ignored, ["temprature"]);
    assert!(row.ask.is_ok());
    // Refused, or neutral: not ignored.
    let known = parse(br#"{"prompt":"a","n":1,"max_length":3}"#, 1);
    assert!(known.ask.is_err() && known.ignored.is_empty());
}

#[test]
fn a_limit_goes_by_either_name() {
    let limit = |fields: &str| {
        let row = parse(format!(r#"{{"prompt":"x"{fields}}}"#).as_bytes(), 1);
        row.ask.map(|ask| ask.options.max_new_tokens)
    };
    assert_eq!(limit(""), Ok(None));
    for name in ["max_tokens", "max_new_tokens"] {
        assert_eq!(limit(&format!(r#","{name}":7"#)), Ok(Some(7)));
    }
    assert_eq!(limit(r#","max_tokens":7,"max_new_tokens":7"#), Ok(Some(7)));
    let error = limit(r#","max_tokens":7,"max_new_tokens":8"#).unwrap_err();
    assert!(
        error
            .message
            .contains("max_new_tokens: found 8, expected 7 like max_tokens"),
        "{error}"
    );
}

#[test]
fn conversations() {
    let row = parse(
        br#"{"messages":[{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}],"tools":[{"name":"f"}]}"#,
        1,
    );
    let Prompt::Messages(chat) = row.ask.unwrap().prompt else {
        panic!("not messages")
    };
    assert_eq!(chat.messages[0]["content"][1]["text"], "b");
    assert_eq!(chat.tools.unwrap()[0]["name"], "f");
    // A rendered template is encoded without BOS.
    let got = prepared(r#"{"messages":[{"role":"user","content":"hi"}]}"#).unwrap();
    assert_eq!(got.request.prompt, [104, 105]);
}

/// Both formats mean the same by a conversation.
#[test]
fn messages_mean_what_the_format_means_by_them() {
    let chat = |fields: &str| {
        let own = parse(format!("{{{fields}}}").as_bytes(), 1).ask;
        let batch = format!(
            r#"{{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{{{fields}}}}}"#
        );
        let batch = parse(batch.as_bytes(), 1).ask;
        let chat = |ask: Result<_, _>| match ask {
            Ok(tailgraph::io::row::Ask {
                prompt: Prompt::Messages(chat),
                ..
            }) => Ok(*chat),
            Ok(_) => panic!("no messages"),
            Err(error) => Err(error),
        };
        let (own, batch) = (chat(own), chat(batch));
        assert_eq!(own.is_ok(), batch.is_ok(), "{fields}");
        if let (Ok(own), Ok(batch)) = (&own, &batch) {
            assert_eq!(own, batch);
        }
        own.map_err(|error| error.to_string())
    };
    let call = |arguments: &str| {
        chat(&format!(
            r#""messages":[{{"role":"assistant","content":null,"tool_calls":[{{"function":{{"name":"f","arguments":{arguments}}}}}]}}]"#
        ))
    };
    let arguments = |given: &str| {
        let chat = call(given).unwrap();
        assert_eq!(chat.messages[0]["content"], "");
        chat.messages[0]["tool_calls"][0]["function"]["arguments"].to_string()
    };
    assert_eq!(arguments(r#""{\"a\": [1]}""#), r#"{"a":[1]}"#);
    assert_eq!(arguments(r#"{"a":1}"#), r#"{"a":1}"#);
    assert_eq!(arguments(r#""""#), "{}");
    assert_eq!(arguments("null"), "{}");
    for wrong in [r#""{""#, r#""[1]""#, "5"] {
        let error = call(wrong).unwrap_err();
        assert!(
            error.contains("messages[0].tool_calls[0].function.arguments: found"),
            "{error}"
        );
    }
    let said = chat(
        r#""messages":[{"role":"assistant","content":[{"type":"refusal","refusal":"no"}],"tool_calls":[],"name":null}],"tools":[]"#,
    )
    .unwrap();
    assert_eq!(
        said.messages.to_string(),
        r#"[{"role":"assistant","content":[{"type":"text","text":"no"}]}]"#
    );
    assert!(said.tools.is_none() && said.add_generation_prompt);

    const HI: &str = r#""messages":[{"role":"user","content":"hi"}],"#;
    let with = |fields: &str| chat(&format!("{HI}{fields}"));
    let set = with(r#""chat_template_kwargs":{"x":1,"add_generation_prompt":false}"#).unwrap();
    assert!(set.kwargs["x"] == 1 && set.kwargs.len() == 1 && !set.add_generation_prompt);
    let continued = with(r#""continue_final_message":true"#).unwrap();
    assert_eq!(continued.continue_final_message.as_deref(), Some("content"));
    assert!(!continued.add_generation_prompt);
    for (fields, part) in [
        (
            r#""continue_final_message":true,"add_generation_prompt":true"#,
            "continue_final_message: found it with",
        ),
        (
            r#""continue_final_message":5"#,
            "continue_final_message: found 5",
        ),
        (
            r#""add_generation_prompt":"no""#,
            "add_generation_prompt: found \"no\"",
        ),
        (
            r#""add_generation_prompt":true,"chat_template_kwargs":{"add_generation_prompt":false}"#,
            "expected false like",
        ),
        (
            r#""chat_template_kwargs":[]"#,
            "chat_template_kwargs: found an empty array",
        ),
        (
            r#""chat_template_kwargs":{"messages":[]}"#,
            "chat_template_kwargs.messages",
        ),
        (r#""chat_template":"x""#, "chat_template: found \"x\""),
        (r#""documents":[]"#, "documents: found"),
        (
            r#""response_format":{"type":"json_object"}"#,
            "response_format: found",
        ),
        (
            r#""tool_choice":"required""#,
            "tool_choice: found \"required\"",
        ),
    ] {
        let error = with(fields).unwrap_err();
        assert!(error.contains(part), "{error}");
    }
}

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
fn limits_are_named() {
    let long = "x".repeat(MAX_ID_BYTES + 1);
    let stops = |count: usize, bytes: usize| {
        let one = format!("\"{}\"", "s".repeat(bytes));
        format!(
            "{{\"prompt\":\"x\",\"stop\":[{}]}}",
            vec![one; count].join(",")
        )
    };
    for (line, code, message) in [
        (
            format!("{{\"id\":\"{long}\",\"prompt\":\"x\"}}"),
            Code::InvalidRequest,
            "id: found a string of 4097 bytes, expected at most 4096",
        ),
        (
            stops(65, 1),
            Code::InvalidRequest,
            "stop: found an array of 65, expected at most 64 strings",
        ),
        (
            stops(1, 4097),
            Code::InvalidRequest,
            "stop: found a string of 4097 bytes, expected at most 4096",
        ),
        (
            format!(
                "{{\"prompt\":\"x\",\"deep\":{}{}}}",
                "[".repeat(127),
                "]".repeat(127)
            ),
            Code::InvalidJson,
            "found nesting deeper than 127, expected at most that (column",
        ),
        (
            format!("{{\"input_ids\":[{}1]}}", "1,".repeat(MAX_VALUES)),
            Code::InvalidJson,
            "line 3: found more than 1048576 values",
        ),
    ] {
        let error = prepared(&line).unwrap_err();
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.contains(message), "{error}");
        assert!(error.message.len() < 300);
    }
    assert_eq!(prepared(&stops(64, 4096)).unwrap().stop.len(), 64);
}

#[test]
fn numbers_may_be_written_as_json_allows() {
    let plain = prepared(
        r#"{"id":"a","input_ids":[1,2],"max_new_tokens":10,"seed":3,"top_k":5,"stop_ids":[4],"logprobs":2,"timeout_ms":50,"temperature":1}"#,
    );
    let pointed = prepared(
        r#"{"id":"a","input_ids":[1.0,2e0],"max_new_tokens":1e1,"seed":3.0,"top_k":5.0,"stop_ids":[4.0],"logprobs":2.0,"timeout_ms":5e1,"temperature":1,"unread":[NaN,-Infinity,1e400]}"#,
    );
    assert_eq!(pointed, plain);
    let key = |seed: &str| {
        let line = format!("{{\"prompt\":\"x\",\"seed\":{seed}}}");
        prepared(&line).unwrap().request.sampling.key
    };
    assert_eq!(key("18446744073709551615"), key("-1"));
    assert_eq!(key("-9223372036854775808"), 1 << 63);
    assert_eq!(key("null"), sampling_key(0, ROW));
    for (all, k) in [("-1", 0), ("0", 0), ("null", 0), ("-1.0", 0), ("2.0", 2)] {
        let line = format!("{{\"prompt\":\"x\",\"top_k\":{all}}}");
        assert_eq!(prepared(&line).unwrap().request.sampling.top_k, k, "{all}");
    }
}

/// Below the steps of f32 at a logit's size there is nothing to draw from but ties; and f32 overflows not much below.
#[test]
fn tiny_temperatures_and_top_p_0_are_greedy() {
    let temperature = |options: &str| {
        let line = format!("{{\"prompt\":\"x\",{options}}}");
        prepared(&line).unwrap().request.sampling.temperature
    };
    for tiny in [
        "0", "0.0", "-0.0", "1e-45", "1e-38", "1e-30", "9e-6", "1e-400",
    ] {
        assert_eq!(
            temperature(&format!("\"temperature\":{tiny}")),
            0.0,
            "{tiny}"
        );
    }
    assert_eq!(temperature("\"temperature\":1e-5"), 1e-5);
    assert_eq!(temperature("\"temperature\":3e38"), 3e38);
    assert_eq!(temperature("\"temperature\":1.5,\"top_p\":0"), 0.0);
    assert_eq!(temperature("\"temperature\":1.5,\"top_p\":0.01"), 1.5);
    assert_eq!(temperature("\"temperature\":1.5,\"top_p\":1.0"), 1.5);
}

/// The limit of a row, a flag, generation_config.json, the row's format: in that order. Only the first two are asked
/// for, and so an error where they do not fit.
#[test]
fn limits_that_nobody_asked_for_end_with_the_context() {
    let chat = r#"{"custom_id":"c","url":"/v1/chat/completions","body":{"messages":[{"role":"user","content":"PROMPT"}]}}"#;
    let completion = r#"{"custom_id":"c","url":"/v1/completions","body":{"prompt":"PROMPT"}}"#;
    let own = r#"{"prompt":"PROMPT"}"#;
    let limit = |line: &str, letters: usize, flag, advised| {
        let line = line.replace("PROMPT", &"x".repeat(letters));
        let rules = Rules {
            max_context: 200,
            advised_new_tokens: advised,
            defaults: Options {
                max_new_tokens: flag,
                ..Options::default()
            },
            ..rules()
        };
        let ask = parse(line.as_bytes(), 1).ask.unwrap();
        prepare(&rules, &Bytes, 0, &ask).map(|prepared| prepared.request.max_new_tokens)
    };
    assert_eq!(limit(chat, 10, None, None), Ok(190));
    assert_eq!(limit(chat, 199, None, None), Ok(1));
    assert_eq!(limit(completion, 9, None, None), Ok(16));
    assert_eq!(limit(completion, 189, None, None), Ok(10));
    assert_eq!(limit(own, 9, None, None), Ok(128));
    assert_eq!(limit(own, 99, None, None), Ok(100));
    for line in [chat, completion, own] {
        assert_eq!(limit(line, 9, None, Some(50)), Ok(50));
        assert_eq!(limit(line, 9, Some(20), Some(50)), Ok(20));
        let error = limit(line, 190, Some(20), None).unwrap_err();
        assert_eq!(error.code, Code::ContextLength);
        assert!(error.message.contains("20 new ones"), "{error}");
        let error = limit(line, 200, None, None).unwrap_err();
        assert_eq!(error.code, Code::ContextLength);
        assert!(error.message.contains("at least 1 new one"), "{error}");
    }
    assert_eq!(limit(own, 189, None, Some(50)), Ok(10));
}

/// The tokenizer's BOS is a prompt; where it has none there is nothing to go on from.
#[test]
fn an_empty_prompt_is_its_bos() {
    assert_eq!(prepared(r#"{"prompt":""}"#).unwrap().request.prompt, [256]);
    let batch = r#"{"custom_id":"c","url":"/v1/completions","body":{"prompt":[""]}}"#;
    assert_eq!(prepared(batch).unwrap().request.prompt, [256]);
    let ask = parse(br#"{"prompt":""}"#, 1).ask.unwrap();
    let error = prepare(&rules(), &WithoutBos, 0, &ask).unwrap_err();
    assert_eq!(error.code, Code::EmptyPrompt);
    assert!(error.message.contains("prompt: found no tokens"), "{error}");
}

struct WithoutBos;

impl Codec for WithoutBos {
    fn encode(&self, text: &str, _: bool) -> Result<Vec<u32>, String> {
        Bytes.encode(text, false)
    }

    fn render(&self, chat: &Chat, timeout: Option<Duration>) -> Result<String, String> {
        Bytes.render(chat, timeout)
    }

    fn doubts(&self, chat: &Chat) -> Vec<Doubt> {
        Bytes.doubts(chat)
    }

    fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        Bytes.token_bytes(id)
    }

    fn stream(&self, stop: &[String], from: usize, special: bool) -> Box<dyn TextStream> {
        Bytes.stream(stop, from, special)
    }
}

/// Python keeps every digit of an integer; what a template shows of one has 128 bits of them.
#[test]
fn integers_past_64_bits_keep_their_digits() {
    let chat = |extra: &str, call: &str| {
        let line = format!(
            r#"{{"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","tool_calls":[{{"function":{{"name":"f","arguments":{call}}}}}]}}],{extra}}}"#
        );
        parse(line.as_bytes(), 1).ask.map(|ask| match ask.prompt {
            Prompt::Messages(chat) => *chat,
            other => panic!("{other:?}"),
        })
    };
    let wide = "170141183460469231731687303715884105727";
    let written = chat(
        &format!("\"chat_template_kwargs\":{{\"n\":{wide},\"zero\":-0,\"float\":1e20}}"),
        &format!("\"{{\\\"id\\\":-{wide}}}\""),
    )
    .unwrap();
    assert_eq!(json::as_written(&written.kwargs["n"]), Some(wide));
    assert_eq!(written.kwargs["zero"].as_u64(), Some(0));
    assert!(written.kwargs["float"].is_f64());
    let id = &written.messages[1]["tool_calls"][0]["function"]["arguments"]["id"];
    assert_eq!(json::integer(id), Some(-i128::MAX));
    // As a mapping, too.
    let written = chat("\"seed\":1", &format!("{{\"id\":{wide}}}")).unwrap();
    let id = &written.messages[1]["tool_calls"][0]["function"]["arguments"]["id"];
    assert_eq!(json::as_written(id), Some(wide));
    for (extra, call, field) in [
        (
            format!("\"tools\":[{{\"maximum\":{wide}0}}]"),
            "{}".to_owned(),
            "tools",
        ),
        (
            "\"seed\":1".to_owned(),
            format!("\"{{\\\"id\\\":{wide}0}}\""),
            "messages[1].tool_calls[0].function.arguments",
        ),
        (
            "\"seed\":1".to_owned(),
            "\"{\\\"id\\\":NaN}\"".to_owned(),
            "messages[1].tool_calls[0].function.arguments",
        ),
    ] {
        let error = chat(&extra, &call).unwrap_err();
        let start = format!("{field}: found the number ");
        assert!(error.message.starts_with(&start), "{error}");
        assert!(error.message.ends_with("at most 128 bits"), "{error}");
    }
    // A number is no object, wherever an object is expected.
    for line in ["99999999999999999999", "NaN"] {
        let error = prepared(line).unwrap_err();
        assert!(
            error
                .message
                .contains(&format!("found {line}, expected a JSON object")),
            "{error}"
        );
    }
    for (extra, call) in [
        ("\"tools\":[99999999999999999999]", "{}"),
        ("\"seed\":1", "99999999999999999999"),
    ] {
        let error = chat(extra, call).unwrap_err();
        assert!(
            error
                .message
                .contains("found 99999999999999999999, expected a"),
            "{error}"
        );
    }
}

#[test]
fn ids_keep_their_digits() {
    for id in [
        "18446744073709551616",
        "-170141183460469231731687303715884105728",
    ] {
        let row = parse(format!("{{\"id\":{id},\"prompt\":\"x\"}}").as_bytes(), 1);
        assert_eq!(row.id.as_str(), id);
        assert_eq!(serde_json::to_string(&row.id).unwrap(), id);
    }
    let row = parse(b"{\"id\":-0,\"prompt\":\"x\"}", 1);
    assert_eq!(serde_json::to_string(&row.id).unwrap(), "0");
    let wide = "9".repeat(40);
    let row = parse(format!("{{\"id\":{wide},\"prompt\":\"x\"}}").as_bytes(), 1);
    let error = row.ask.unwrap_err();
    assert!(
        error.message.contains("an integer of at most 128 bits"),
        "{error}"
    );
}

/// Arguments are JSON in a string of JSON: their values count as those of the row do.
#[test]
fn arguments_are_bounded_before_they_are_parsed() {
    let text = format!("{{\\\"a\\\":[{}1]}}", "1,".repeat(MAX_VALUES / 2));
    let call = format!("{{\"function\":{{\"name\":\"f\",\"arguments\":\"{text}\"}}}}");
    let line = |calls: &str| {
        format!("{{\"messages\":[{{\"role\":\"assistant\",\"tool_calls\":[{calls}]}}]}}")
    };
    assert!(parse(line(&call).as_bytes(), 1).ask.is_ok());
    let error = parse(line(&format!("{call},{call}")).as_bytes(), 1)
        .ask
        .unwrap_err();
    assert!(
        error.message.starts_with("messages[0].tool_calls[1].function.arguments: found a text that makes more than 1048576 values"),
        "{error}"
    );
}

/// A number has as many digits as a line has room for.
#[test]
fn numbers_of_any_length_are_answered() {
    for digits in [65_535, 65_536, 1_000_000] {
        let number = "1".repeat(digits);
        assert!(prepared(&format!("{{\"prompt\":\"x\",\"unread\":{number}}}")).is_ok());
        let error = prepared(&format!("{{\"prompt\":\"x\",\"seed\":{number}}}")).unwrap_err();
        assert!(error.message.len() < 300, "{error}");
    }
}

/// A text that is clearly too long costs as much work as the context has tokens, not as it has bytes.
#[test]
fn long_texts_are_refused_by_their_size() {
    let line = |text: &str| {
        [
            format!("{{\"prompt\":\"{text}\"}}"),
            format!("{{\"messages\":[{{\"role\":\"user\",\"content\":\"{text}\"}}]}}"),
        ]
    };
    for text in ["word ".repeat(2_000_000), "é".repeat(5_000_000)] {
        for (line, field) in line(&text).iter().zip(["prompt", "messages"]) {
            let ask = parse(line.as_bytes(), 1).ask.unwrap();
            let error = prepare(&rules(), &Bytes, 0, &ask).unwrap_err();
            assert_eq!(error.code, Code::ContextLength);
            let said = format!("{field}: found 10000000 bytes of text, of which the first ");
            let rest = error.message.strip_prefix(&said).expect(&error.message);
            let (bytes, rest) = rest.split_once(' ').unwrap();
            assert!(bytes.parse::<usize>().unwrap() <= 1 << 18, "{error}");
            assert_eq!(
                rest,
                "make more than 100 tokens, expected at most 100 tokens"
            );
        }
    }
    // A long text that fits goes through whole.
    let text = "word ".repeat(100_000);
    let rules = Rules {
        max_context: 600_000,
        ..rules()
    };
    let ask = parse(line(&text)[0].as_bytes(), 1).ask.unwrap();
    let prompt = prepare(&rules, &Bytes, 0, &ask).unwrap().request.prompt;
    assert_eq!(prompt.len(), 500_001);
}

#[test]
fn a_broken_line_keeps_its_number_and_claims_no_id() {
    let row = parse(b"{\"id\": 9, oops", 4);
    assert_eq!(row.id.as_str(), "4");
    assert!(!row.claims_id);
}

/// To raise --max-context helps only up to the model's own limit.
#[test]
fn a_prompt_that_is_too_long_gets_advice_that_helps() {
    let line = format!("{{\"prompt\":\"{}\"}}", "x".repeat(150));
    let row = parse(line.as_bytes(), 1);
    let ask = row.ask.unwrap();
    for (model_context, raise) in [(200, true), (100, false)] {
        let rules = Rules {
            model_context,
            ..rules()
        };
        let error = prepare(&rules, &Bytes, 0, &ask).unwrap_err().to_string();
        assert_eq!(error.contains("--max-context"), raise, "{error}");
        assert_eq!(error.contains("the model's own limit"), !raise, "{error}");
    }
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
        prepare(&rules, &Bytes, 0, &ask).unwrap_err().message
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

/// Of what a message may hold beside text, what says something is said and the rest refused.
#[test]
fn a_refusal_is_what_was_said_and_audio_is_refused() {
    let row = |message: &str| {
        parse(
            format!(r#"{{"messages":[{{"role":"user","content":"q"}},{message}]}}"#).as_bytes(),
            1,
        )
    };
    let said = row(r#"{"role":"assistant","content":null,"refusal":"no"}"#);
    let Prompt::Messages(chat) = said.ask.unwrap().prompt else {
        panic!("no messages")
    };
    assert_eq!(
        chat.messages[1],
        serde_json::json!({"role": "assistant", "content": "no"})
    );
    let heard = row(r#"{"role":"assistant","content":null,"audio":{"id":"a"}}"#);
    let error = heard.ask.unwrap_err();
    assert_eq!(error.code, Code::Unsupported);
    assert!(error.message.contains("messages[1].audio"), "{error}");
}
