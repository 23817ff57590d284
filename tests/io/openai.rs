//! Rows of the OpenAI batch format.

use crate::fakes::{CODEC, outcome};
use crate::rows::{ROW, rules};
use serde_json::{Value, json};
use tailgraph::io::answer::{Finish, Label, Origin, failed, served};
use tailgraph::io::line::parse;
use tailgraph::io::openai::Carrier;
use tailgraph::io::prepare::{Rules, prepare};
use tailgraph::io::row::{Endpoint, Format, Prompt};
use tailgraph::io::{Code, openai, openai_answer};
use tailgraph::runtime::Logits;

fn chat(body: &str) -> tailgraph::io::Row {
    let line = format!(
        r#"{{"custom_id":"c1","method":"POST","url":"/v1/chat/completions","body":{{"model":"m","messages":[{{"role":"user","content":"hi"}}]{body}}}}}"#
    );
    parse(line.as_bytes(), 1)
}

#[test]
fn chat_options_are_read() {
    let ask = chat(r#","max_completion_tokens":4,"temperature":0.25,"stop":["a"],"logprobs":true,"top_logprobs":2,"seed":3,"user":"u","n":1,"stream":false,"stop_token_ids":[5]"#)
        .ask
        .unwrap();
    assert_eq!(ask.options.max_new_tokens, Some(4));
    assert_eq!(ask.options.temperature, Some(0.25));
    assert_eq!(ask.options.logprobs, Some(2));
    assert_eq!(ask.options.seed, Some(3));
    assert_eq!(ask.options.stop_ids, Some(vec![5]));
    assert_eq!(
        chat(r#","logprobs":true"#).ask.unwrap().options.logprobs,
        Some(0)
    );
    assert_eq!(chat("").ask.unwrap().options.logprobs, None);
    // vLLM's spelling of "all tokens" was refused.
    let all = chat(r#","top_k":-1"#).ask.unwrap().options.top_k;
    assert_eq!(all, Some(0));
}

#[test]
fn completions_take_text_or_ids() {
    let prompt = |given: &str| {
        let line =
            format!(r#"{{"custom_id":1,"url":"/v1/completions","body":{{"prompt":{given}}}}}"#);
        parse(line.as_bytes(), 1).ask.map(|ask| ask.prompt)
    };
    assert_eq!(prompt("\"x\""), Ok(Prompt::Text("x".into())));
    assert_eq!(prompt("[\"x\"]"), Ok(Prompt::Text("x".into())));
    assert_eq!(prompt("[1,2]"), Ok(Prompt::Ids(vec![1, 2])));
    assert_eq!(prompt("[[1,2]]"), Ok(Prompt::Ids(vec![1, 2])));
    assert_eq!(prompt("7").unwrap_err().code, Code::InvalidRequest);
}

#[test]
fn a_prompt_is_repeated_where_that_is_asked_for() {
    let prepared = |fields: &str, prompt_logprobs: bool| {
        let line = format!(
            r#"{{"custom_id":1,"url":"/v1/completions","body":{{"prompt":"h\u00e9",{fields}}}}}"#
        );
        let rules = Rules {
            prompt_logprobs,
            ..rules()
        };
        prepare(&rules, &CODEC, ROW, &parse(line.as_bytes(), 1).ask?)
    };
    let plain = prepared(r#""echo":true"#, false).unwrap();
    assert_eq!(plain.request.logits, Logits::None);
    let echo = plain.echo.unwrap();
    assert_eq!(
        (echo.text.as_str(), echo.logprobs.as_deref()),
        ("h\u{e9}", None)
    );
    assert_eq!(echo.ids, plain.request.prompt);
    assert!(echo.offsets.ends_with(&[0, 1, 1]), "{:?}", echo.offsets);
    for (fields, logits) in [
        (r#""echo":true,"logprobs":2"#, Logits::All),
        (r#""echo":true,"logprobs":0,"max_tokens":0"#, Logits::All),
        (r#""echo":true,"max_tokens":0"#, Logits::Last),
    ] {
        assert_eq!(
            prepared(fields, true).unwrap().request.logits,
            logits,
            "{fields}"
        );
        let error = prepared(fields, false).unwrap_err();
        assert_eq!(error.code, Code::Unsupported);
        assert!(error.message.contains("--prompt-logprobs"), "{error}");
    }
    for fields in [r#""max_tokens":0"#, r#""echo":false,"max_tokens":0"#] {
        let error = prepared(fields, true).unwrap_err();
        assert!(error.message.contains("max_tokens: found 0"), "{error}");
    }
    let error = chat(r#","echo":true"#).ask.unwrap_err();
    assert!(error.message.contains("body.echo: found true"), "{error}");
}

#[test]
fn several_answers_are_asked_for() {
    let choices = |body: &str| {
        let line = format!(r#"{{"custom_id":1,"url":"/v1/completions","body":{{{body}}}}}"#);
        parse(line.as_bytes(), 1)
            .ask
            .map(|ask| (ask.prompt, ask.choices))
    };
    let text = |text: &str| Prompt::Text(text.into());
    let (first, found) = choices(r#""prompt":["x","y",[7]],"n":3"#).unwrap();
    assert_eq!((first, found.count()), (text("x"), 9));
    assert_eq!(found.more, [text("y"), Prompt::Ids(vec![7])]);
    assert_eq!(choices(r#""prompt":[1,2]"#).unwrap().1.count(), 1);
    for (body, message) in [
        (
            r#""prompt":"x","n":0"#,
            "n: found 0, expected an integer from 1 to 128",
        ),
        (r#""prompt":"x","n":129"#, "n: found 129"),
        (r#""prompt":["x",7]"#, "prompt[1]: found 7"),
        (r#""prompt":["x",["a"]]"#, "prompt[1][0]: found"),
    ] {
        let error = choices(body).unwrap_err();
        assert!(error.message.contains(message), "{error}");
    }
    let many = format!(r#""prompt":[{}"x"],"n":128"#, "\"x\",".repeat(16));
    assert!(
        choices(&many)
            .unwrap_err()
            .message
            .contains("expected at most 2048 answers")
    );
}

#[test]
fn what_cannot_be_honoured_is_refused() {
    for (body, field) in [
        (r#","stream":true"#, "body.stream: found true"),
        (
            r#","response_format":{"type":"json_object"}"#,
            "body.response_format",
        ),
        (r#","tool_choice":"required""#, "body.tool_choice"),
        (r#","modalities":["audio"]"#, "body.modalities"),
        // What it is elsewhere: in our own rows, in vLLM's, in another endpoint's.
        (r#","max_new_tokens":1"#, "expected max_tokens"),
        (r#","guided_json":{}"#, "body.guided_json"),
        (r#","suffix":"x""#, "body.suffix"),
    ] {
        let error = chat(body).ask.unwrap_err();
        assert_eq!(error.code, Code::Unsupported, "{error}");
        assert!(error.message.contains(field), "{error}");
    }
    let error = chat(r#","top_logprobs":2"#).ask.unwrap_err();
    assert!(
        error
            .message
            .contains("top_logprobs: found 2 without logprobs"),
        "{error}"
    );
    let error = chat(r#","max_tokens":2,"max_completion_tokens":3"#)
        .ask
        .unwrap_err();
    assert!(error.message.contains("max_tokens: found 2"), "{error}");
}

#[test]
fn what_nobody_knows_is_ignored_and_named() {
    let row = chat(r#","temprature":1,"n":1,"future":null"#);
    assert_eq!(row.ignored, ["body.temprature"]);
    assert!(row.ask.is_ok());
    let line = r#"{"custom_id":"a","note":1,"url":"/v1/completions","body":{"prompt":"x"}}"#;
    assert_eq!(parse(line.as_bytes(), 1).ignored, ["note"]);
}

#[test]
fn the_envelope_is_checked() {
    for (line, message) in [
        (
            r#"{"custom_id":"a","method":"GET","url":"/v1/completions","body":{}}"#,
            "method: found \"GET\"",
        ),
        (
            r#"{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{}}"#,
            "url: found \"/v1/embeddings\"",
        ),
        (
            r#"{"custom_id":"a","method":"POST","body":{}}"#,
            "url: found null",
        ),
        (
            r#"{"custom_id":"a","method":"POST","url":"/v1/completions"}"#,
            "body: found null",
        ),
        (
            r#"{"custom_id":{},"method":"POST","url":"/v1/completions","body":{"prompt":"x"}}"#,
            "custom_id: found an object",
        ),
    ] {
        let error = parse(line.as_bytes(), 1).ask.unwrap_err();
        assert_eq!(error.code, Code::InvalidRequest);
        assert!(error.message.contains(message), "{error}");
    }
}

/// What carries a body changes nothing about it: a line of a file, or a request.
#[test]
fn a_body_is_asked_and_answered_apart_from_its_line() {
    let chat = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}]});
    let completion = json!({"prompt": "hi", "n": 2, "logprobs": 0});
    let origin = Origin {
        model: "served".into(),
        created: 7,
    };
    for (endpoint, url, body) in [
        (Endpoint::Chat, "/v1/chat/completions", chat),
        (Endpoint::Completions, "/v1/completions", completion),
    ] {
        let line = json!({"custom_id": "c", "method": "POST", "url": url, "body": body});
        let row = parse(line.to_string().as_bytes(), 5);
        let (ask, repeated) = openai::ask(endpoint, Carrier::Row, &body).unwrap();
        let outcomes = vec![outcome(vec![72, 105], Finish::Stop); ask.choices.count()];
        assert_eq!(row.ask, Ok(ask));
        assert_eq!(row.format, Format::OpenAi(repeated.clone()));

        let label = Label {
            line: row.line,
            id: row.id,
            format: row.format,
        };
        let line: Value =
            serde_json::from_str(&served(&label, &outcomes, &CODEC, &origin)).unwrap();
        let answer = openai_answer::body(&repeated, 5, &outcomes, &CODEC, &origin);
        let answer = serde_json::to_value(answer).unwrap();
        assert_eq!(line["response"]["body"], answer);
        assert_eq!(
            answer["choices"].as_array().map(Vec::len),
            Some(outcomes.len())
        );

        let error = openai::ask(endpoint, Carrier::Row, &json!({"stream": true})).unwrap_err();
        assert!(
            error.message.starts_with("body.stream: found true"),
            "{error}"
        );
        let line: Value = serde_json::from_str(&failed(&label, &error)).unwrap();
        assert_eq!(line["response"]["body"], openai_answer::error(&error));
    }
}
