//! Chat templates against what transformers renders (tests/fixtures/text/make_chat.py), and where they are
//! found in a checkpoint.

use std::path::Path;

use chrono::{NaiveDate, NaiveDateTime};
use serde_json::{Value, json};
use tailgraph::text::{ChatTemplate, Tokenizer};

fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/text/chat.json")).unwrap()
}

/// The time the fixtures were made at.
fn clock() -> NaiveDateTime {
    let day = NaiveDate::from_ymd_opt(2024, 7, 4).unwrap();
    day.and_hms_opt(9, 5, 3).unwrap()
}

/// A checkpoint with this tokenizer_config.json.
fn load(dir: &Path, config: &Value) -> Result<Option<ChatTemplate>, String> {
    std::fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
    ChatTemplate::load(dir).map_err(|error| error.to_string())
}

/// Renders `template` in a checkpoint with the fixture's special tokens.
fn render(
    dir: &Path,
    template: &str,
    messages: &Value,
    tools: Option<&Value>,
    prompt: bool,
) -> Result<String, String> {
    let mut config = fixture()["tokens"].clone();
    config["chat_template"] = template.into();
    let mut template = load(dir, &config)?.unwrap();
    template.set_clock(clock);
    template.render(messages, tools, prompt)
}

#[test]
fn templates_render_as_in_transformers() {
    let dir = tempfile::tempdir().unwrap();
    for case in fixture()["cases"].as_array().unwrap() {
        let rendered = render(
            dir.path(),
            case["template"].as_str().unwrap(),
            &case["messages"],
            Some(&case["tools"]),
            case["add_generation_prompt"].as_bool().unwrap(),
        );
        match case["expected"].as_str() {
            Some(expected) => assert_eq!(rendered.as_deref(), Ok(expected), "{}", case["name"]),
            None => {
                let error = rendered.expect_err(case["name"].as_str().unwrap());
                assert!(!error.contains('\n'), "{error}");
            }
        }
    }
}

#[test]
fn expressions_evaluate_as_in_transformers() {
    let fixture = fixture();
    let context = fixture["context"].as_object().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let names: String = context
        .keys()
        .map(|name| format!("{{%- set {name} = messages[0]['{name}'] -%}}"))
        .collect();
    let messages = json!([context]);
    let mut wrong = Vec::new();
    for case in fixture["expressions"].as_array().unwrap() {
        let expression = case[0].as_str().unwrap();
        let template = format!("{names}{{{{ {expression} }}}}");
        let rendered = render(dir.path(), &template, &messages, None, false);
        if rendered.as_deref().ok() != case[1].as_str() {
            wrong.push(format!("{expression}\n  found {rendered:?}\n  expected {}", case[1]));
        }
    }
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
