//! Numbers as JSON allows them, digit by digit.

use crate::rows::{ROW, prepared};
use tailgraph::io::line::parse;
use tailgraph::io::prepare::sampling_key;
use tailgraph::io::row::Prompt;
use tailgraph::json;

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
    // The arguments may be a mapping, too.
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
