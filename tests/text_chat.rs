//! Chat templates against what transformers renders (tests/fixtures/text/make_chat.py), and where they are
//! found in a checkpoint.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use chrono::{NaiveDate, NaiveDateTime};
use common::text::load_both;
use serde_json::{Value, json};
use tailgraph::io::row::Prompt;
use tailgraph::text::{Chat, ChatTemplate, Tokenizer};

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
    load_both(dir).map(|(_, template)| template)
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
    template.set_clock(clock());
    let mut chat = Chat::new(messages.clone(), tools.cloned());
    chat.add_generation_prompt = prompt;
    let rendered = template.render(&chat);
    rendered.map_err(|error| error.to_string())
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
fn templates_are_found_where_checkpoints_keep_them() {
    let dir = tempfile::tempdir().unwrap();
    let render = |tools: Option<&Value>| {
        let template = load_both(dir.path()).unwrap().1.unwrap();
        template.render(&Chat::new(json!([]), tools.cloned()))
    };
    let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
    assert!(load_both(dir.path()).unwrap().1.is_none());
    assert!(
        load(dir.path(), &json!({"bos_token": "<s>"}))
            .unwrap()
            .is_none()
    );
    assert!(
        load(dir.path(), &json!({"chat_template": null}))
            .unwrap()
            .is_none()
    );

    write(
        "tokenizer_config.json",
        r#"{"chat_template": "one {{ bos_token }}{{ eos_token }}|{{ image_token }}{{ unk_token }}",
        "bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "unk_token": null,
        "extra_special_tokens": {"image_token": "<image>"}}"#,
    );
    assert_eq!(render(None).unwrap(), "one <s></s>|<image>");

    write(
        "tokenizer_config.json",
        r#"{"chat_template": [
        {"name": "default", "template": "default {{ tools is none }}"},
        {"name": "tool_use", "template": "tool use {{ tools|length }}"}]}"#,
    );
    assert_eq!(render(None).unwrap(), "default True");
    assert_eq!(render(Some(&Value::Null)).unwrap(), "default True");
    assert_eq!(render(Some(&json!([]))).unwrap(), "tool use 0");

    write("chat_template.jinja", "file {{ tools is none }}\n");
    assert_eq!(render(Some(&json!([1]))).unwrap(), "file False");
    std::fs::create_dir(dir.path().join("additional_chat_templates")).unwrap();
    write("additional_chat_templates/tool_use.jinja", "file for tools");
    assert_eq!(render(Some(&json!([1]))).unwrap(), "file for tools");
    assert_eq!(render(None).unwrap(), "file True");
}

#[test]
fn the_built_in_template_is_made_of_the_byte_tokenizers_specials() {
    let messages = json!([{"role": "user", "content": "hi"}]);
    let template = ChatTemplate::built_in().unwrap();
    let text = template.render(&Chat::new(messages, None)).unwrap();
    assert_eq!(
        text,
        "<|startoftext|><|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    );
    let ids = Tokenizer::bytes().encode(&text, false).unwrap();
    assert_eq!(
        (ids[0], ids[1], ids.iter().filter(|&&id| id < 8).count()),
        (1, 6, 4)
    );
}

#[test]
fn errors_name_the_file_and_the_line() {
    let dir = tempfile::tempdir().unwrap();
    for (template, part) in [
        ("one\n{% if %}", "line 2"),
        ("{% for x in y %}", "tokenizer_config.json"),
        ("{{ 'open", "default"),
    ] {
        let error = load(dir.path(), &json!({"chat_template": template})).unwrap_err();
        assert!(error.contains(part) && !error.contains('\n'), "{error}");
    }
    for config in [
        json!({"chat_template": 5}),
        json!({"chat_template": [{"name": "x"}]}),
    ] {
        let error = load(dir.path(), &config).unwrap_err();
        assert!(error.contains("chat_template: expected"), "{error}");
    }
    std::fs::write(dir.path().join("tokenizer_config.json"), "{").unwrap();
    let error = load_both(dir.path()).unwrap_err();
    assert!(
        error.contains("tokenizer_config.json: found broken JSON"),
        "{error}"
    );

    let refused = "\n\n{{ raise_exception('roles\\nmust alternate') }}";
    let error = render(dir.path(), refused, &json!([]), None, true).unwrap_err();
    assert!(
        error.ends_with("tokenizer_config.json: line 3: `raise_exception('roles\\nmust alternate')`: roles must alternate"),
        "{error}"
    );
    let named = json!({"chat_template": [{"name": "rag", "template": "x"}]});
    let template = load(dir.path(), &named).unwrap().unwrap();
    assert!(
        template
            .render(&Chat::new(json!([]), None))
            .unwrap_err()
            .to_string()
            .contains("`default`")
    );
}

/// The conversations of tests/fixtures/text/conversations.json become transformers' prompts, as rows of both formats, by the
/// published templates of TAILGRAPH_REAL_FILES and by ours, which are written in the ways of published ones.
/// tests/python/chat_prompts.py first makes of the messages what the OpenAI format means by them.
#[test]
fn conversations_become_the_prompts_of_transformers() {
    const TEST: &str = "conversations_become_the_prompts_of_transformers";
    let Some(python) = common::python::interpreter(TEST) else {
        return;
    };
    let fixture = fixture();
    let cases = fixture["cases"].as_array().unwrap().iter();
    let cases = cases.map(|case| case["template"].as_str().unwrap().to_owned());
    let mut templates: Vec<String> = OURS.map(str::to_owned).into();
    templates.extend(common::text::templates());
    templates.extend(cases.collect::<BTreeSet<_>>());
    if let Some(folder) = common::python::real_files(TEST) {
        let mut paths: Vec<_> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| {
                path.extension()
                    .is_some_and(|extension| extension == "jinja")
            })
            .collect();
        paths.sort();
        assert!(!paths.is_empty());
        templates.extend(
            paths
                .iter()
                .map(|path| std::fs::read_to_string(path).unwrap()),
        );
    }
    let conversations: Vec<Value> =
        serde_json::from_str(include_str!("fixtures/text/conversations.json")).unwrap();
    assert!(conversations.len() >= 40);
    let asked = json!({"templates": templates, "conversations": conversations});
    let expected = common::python::ask(&python, "chat_prompts.py", &asked);
    let dir = tempfile::tempdir().unwrap();
    let mut rendered = 0;
    for (at, template) in templates.iter().enumerate() {
        let mut config = fixture["tokens"].clone();
        config["chat_template"] = template.as_str().into();
        let mut loaded = load(dir.path(), &config).unwrap().unwrap();
        loaded.set_clock(clock());
        for (number, body) in conversations.iter().enumerate() {
            let batch = json!({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body});
            for row in [&batch, body] {
                let row = tailgraph::io::line::parse(row.to_string().as_bytes(), 1);
                let Prompt::Messages(chat) = row.ask.unwrap().prompt else {
                    panic!("no messages");
                };
                let found = loaded.render(&loaded.fit(*chat));
                let expected = expected[at][number].as_str();
                assert_eq!(
                    found.as_ref().ok().map(String::as_str),
                    expected,
                    "template {at}, {body}: {found:?}"
                );
                rendered += u32::from(found.is_ok());
            }
        }
    }
    assert!(rendered as usize >= templates.len() * 50, "{rendered}");
}

/// Templates that take content as parts only, as either, and as text; and one that reads all of a call.
const OURS: [&str; 4] = [
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}:{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }};{% endif %}{% endfor %}]{% endfor %}{% if add_generation_prompt %}[assistant:{% endif %}",
    "{% for message in messages %}[{{ message.role }}:{% set content = message.content %}{% if content is string %}{{ content }}{% else %}{% for part in content %}<{{ part.text }}>{% endfor %}{% endif %}]{% endfor %}",
    "{% for message in messages %}[{{ message.role }}:{{ message.content | trim }}{% for call in message.tool_calls or [] %}{{ (call.function or call).name }}({% for name, value in (call.function or call).arguments.items() %}{{ name }}={{ value }};{% endfor %}){% endfor %}]{% endfor %}{{ tools | tojson if tools else '' }}",
    "{{ bos_token }}{% for message in messages %}{{ message | tojson }}{% endfor %}{% if message_of_kwargs is defined %}!{% endif %}{{ keep_past_thinking is defined }}",
];

/// From a row's text to what a template prints: every digit of an integer, as Python's json and jinja2 have it.
#[test]
fn integers_past_64_bits_are_shown_digit_by_digit() {
    let wide = "18446744073709551616";
    let line = format!(
        r#"{{"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","tool_calls":[{{"function":{{"name":"f","arguments":"{{\"id\":-{wide}}}"}}}}]}}],"tools":[{{"name":"f","maximum":{wide}}}],"chat_template_kwargs":{{"n":{wide},"zero":-0,"float":1e20}}}}"#
    );
    let Prompt::Messages(chat) = tailgraph::io::line::parse(line.as_bytes(), 1)
        .ask
        .unwrap()
        .prompt
    else {
        panic!("not messages")
    };
    let template = "{{ n }} {{ n + 1 }} {{ zero }} {{ float }} {{ tools | tojson }} \
        {{ messages[1].tool_calls[0].function.arguments }}";
    let dir = tempfile::tempdir().unwrap();
    let template = load(dir.path(), &json!({"chat_template": template}))
        .unwrap()
        .unwrap();
    assert_eq!(
        template.render(&chat).unwrap(),
        format!(
            "{wide} 18446744073709551617 0 1e+20 [{{\"name\": \"f\", \"maximum\": {wide}}}] {{'id': -{wide}}}"
        )
    );
}
