//! What rows of both formats mean by a conversation.

use crate::rows::prepared;
use tailgraph::io::Code;
use tailgraph::io::line::parse;
use tailgraph::io::row::Prompt;

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

/// A message may hold more than text: what says something is said, and the rest is refused.
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
