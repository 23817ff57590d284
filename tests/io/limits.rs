//! How much a row may hold and ask for, and what is said of more.

use crate::fakes::CODEC;
use crate::rows::{prepared, rules};
use tailgraph::io::Code;
use tailgraph::io::line::parse;
use tailgraph::io::prepare::{Rules, prepare};
use tailgraph::io::row::{MAX_ID_BYTES, MAX_VALUES, Options};

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
    assert!(prepared(&stops(64, 4096)).is_ok());
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
        prepare(&rules, &CODEC, 0, &ask).map(|prepared| prepared.request.max_new_tokens)
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
            let error = prepare(&rules(), &CODEC, 0, &ask).unwrap_err();
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
    let prompt = prepare(&rules, &CODEC, 0, &ask).unwrap().request.prompt;
    assert_eq!(prompt.len(), 500_001);
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
        let error = prepare(&rules, &CODEC, 0, &ask).unwrap_err().to_string();
        assert_eq!(error.contains("--max-context"), raise, "{error}");
        assert_eq!(error.contains("the model's own limit"), !raise, "{error}");
    }
}
