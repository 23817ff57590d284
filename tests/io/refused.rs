//! Fields that would change prompt or answer, and are not supported, are refused by name in rows of both formats.

use tailgraph::io::Code;
use tailgraph::io::line::parse;
use tailgraph::io::row::Row;

const HI: &str = r#""messages":[{"role":"user","content":"hi"}]"#;

/// The same fields as a row of our own and as the body of a batch row.
fn both(fields: &str) -> [Row; 2] {
    let body = format!("{{{fields}}}");
    let batch = format!(
        r#"{{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{body}}}"#
    );
    [body, batch].map(|line| parse(line.as_bytes(), 1))
}

#[test]
fn tools_and_calls_are_of_functions() {
    const CALL: &str = r#"{"id":"c","type":"custom","custom":{"name":"f","input":"x"}}"#;
    for (fields, part) in [
        (
            format!(
                r#"{HI},"tools":[{{"type":"function","function":{{}}}},{{"type":"custom","custom":{{"name":"f"}}}}]"#
            ),
            "tools[1].type: found \"custom\", expected \"function\"",
        ),
        (
            format!(r#"{HI},"tools":[{{"custom":{{"name":"f"}}}}]"#),
            "tools[0].type: found \"custom\"",
        ),
        (
            format!(r#"{HI},"tools":[{{"type":"web_search"}}]"#),
            "tools[0].type: found \"web_search\"",
        ),
        (
            format!(r#"{HI},"tools":[{{"type":5}}]"#),
            "tools[0].type: found 5",
        ),
        (format!(r#"{HI},"tools":["f"]"#), "tools[0]: found \"f\""),
        (
            format!(r#""messages":[{{"role":"assistant","tool_calls":[{CALL}]}}]"#),
            "messages[0].tool_calls[0].type: found \"custom\", expected \"function\"",
        ),
        (
            format!(r#"{HI},"tools":[{{"name":"f"}}],"parallel_tool_calls":false"#),
            "parallel_tool_calls: found false beside tools, expected true",
        ),
        (
            format!(r#"{HI},"tools":[{{"name":"f"}}],"parallel_tool_calls":"no""#),
            "parallel_tool_calls: found \"no\", expected true or false",
        ),
    ] {
        for row in both(&fields) {
            let error = row.ask.unwrap_err().to_string();
            assert!(error.contains(part), "{fields}: {error}");
        }
    }
    // What changes nothing, and schemas without a type, as transformers' users write them.
    for fields in [
        format!(r#"{HI},"parallel_tool_calls":false"#),
        format!(r#"{HI},"tools":[],"parallel_tool_calls":false"#),
        format!(
            r#"{HI},"tools":[{{"name":"f"}}],"tool_choice":"none","parallel_tool_calls":false"#
        ),
        format!(r#"{HI},"tools":[{{"name":"f"}}],"parallel_tool_calls":true"#),
        format!(r#"{HI},"tools":[{{"type":null,"name":"f"}}]"#),
    ] {
        for row in both(&fields) {
            assert!(row.ask.is_ok(), "{fields}: {:?}", row.ask);
            assert!(row.ignored.is_empty(), "{fields}: {:?}", row.ignored);
        }
    }
}

#[test]
fn what_other_formats_ask_for_is_refused_by_name() {
    for (field, value) in [
        ("functions", r#"[{"name":"f"}]"#),
        ("function_call", r#"{"name":"f"}"#),
        ("tool_choice", "\"required\""),
        ("web_search_options", "{}"),
        ("verbosity", "\"low\""),
        ("modalities", r#"["text","audio"]"#),
        ("audio", "{}"),
        ("moderation", "{}"),
        ("reasoning_effort", "\"none\""),
        ("response_format", r#"{"type":"json_object"}"#),
        ("stream", "true"),
        ("prompt_embeds", "\"AAAA\""),
        ("return_token_ids", "true"),
        ("grammar", "\"root ::= x\""),
        ("repeat_penalty", "1.2"),
        ("typical_p", "0.5"),
        ("min_length", "9"),
        ("bad_words_ids", "[[5]]"),
        ("extra_body", r#"{"top_k":1}"#),
        ("sampling_params", r#"{"max_tokens":1}"#),
        ("options", r#"{"num_predict":1}"#),
        ("parameters", r#"{"max_new_tokens":1}"#),
        ("format", "\"json\""),
        ("num_predict", "5"),
        ("stop_regex", "\"[a-z]\""),
        ("mirostat", "2"),
        ("mirostat_tau", "5"),
        ("dry_multiplier", "0.8"),
        ("dry_base", "1.75"),
        ("xtc_probability", "0.5"),
        ("xtc_threshold", "0.1"),
        ("top_n_sigma", "1.0"),
        ("tfs_z", "0.9"),
        ("repeat_last_n", "64"),
        ("dynatemp_range", "0.5"),
        ("samplers", "[\"top_k\"]"),
        ("guided_json", "{}"),
        ("structured_outputs", "{}"),
        ("structural_tag", "\"x\""),
        ("length_penalty", "0.8"),
        ("early_stopping", "true"),
        ("use_beam_search", "true"),
        ("watermark", "true"),
        ("enable_thinking", "false"),
        ("custom_logit_processor", "\"x\""),
    ] {
        for row in both(&format!(r#"{HI},"{field}":{value}"#)) {
            let error = row.ask.unwrap_err();
            assert_eq!(error.code, Code::Unsupported);
            assert!(
                error
                    .message
                    .trim_start_matches("body.")
                    .starts_with(&format!("{field}: found")),
                "{error}"
            );
        }
    }
    for (field, value) in [
        ("do_sample", "false"),
        ("min_new_tokens", "3"),
        ("num_return_sequences", "2"),
        ("no_repeat_ngram_size", "3"),
        ("add_special_tokens", "false"),
        ("include_stop_str_in_output", "true"),
        ("truncate_prompt_tokens", "5"),
    ] {
        let [own, _] = both(&format!(r#"{HI},"{field}":{value}"#));
        let error = own.ask.unwrap_err().to_string();
        assert!(
            error.contains(&format!("{field}: found {value}, expected")),
            "{error}"
        );
    }
    // Values at which they ask for nothing.
    for (field, value) in [
        ("functions", "[]"),
        ("function_call", "\"auto\""),
        ("tool_choice", "\"auto\""),
        ("verbosity", "\"medium\""),
        ("modalities", r#"["text"]"#),
        ("response_format", r#"{"type":"text"}"#),
        ("stream", "false"),
        ("return_token_ids", "false"),
        ("repeat_penalty", "1.0"),
        ("typical_p", "1"),
        ("min_length", "0"),
        ("n", "1"),
        ("frequency_penalty", "0"),
        ("logit_bias", "{}"),
        ("audio", "null"),
        ("extra_body", "{}"),
        ("options", r#"["A","B"]"#),
        ("format", "\"essay\""),
        ("mirostat", "0"),
        ("dry_multiplier", "0.0"),
        ("xtc_probability", "0"),
        ("top_n_sigma", "-1"),
        ("tfs_z", "1.0"),
        ("length_penalty", "1"),
        ("use_beam_search", "false"),
    ] {
        for row in both(&format!(r#"{HI},"{field}":{value}"#)) {
            assert!(
                row.ask.is_ok() && row.ignored.is_empty(),
                "{field}: {row:?}"
            );
        }
    }
}
