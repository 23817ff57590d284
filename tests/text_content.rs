//! In which form a template takes a message's content: a text stays one and parts stay parts, unless the template can
//! take nothing else.

mod common;

use common::text::{assert_none_differ, load_template};
use serde_json::{Value, json};
use tailgraph::text::Chat;

const TEXT: [&str; 24] = [
    "{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% for m in messages %}{{ m['content'] | trim }}{% endfor %}",
    "{% for m in messages %}{{ m.get('content') }}{% endfor %}",
    "{% for m in messages %}{{ m.get('content', '') ~ '!' }}{% endfor %}",
    "{% for m in messages %}{{ '<s>' + m.role + m.content + '</s>' }}{% endfor %}",
    "{% set ns = namespace(text='') %}{% for m in messages %}{% set ns.text = ns.text ~ m.content %}{% endfor %}{{ ns.text }}",
    "{% for i in range(messages | length) %}{{ messages[i].content }}{% endfor %}",
    "{% for i in range(messages | length) %}{% set m = messages[i] %}{{ m.content }}{% endfor %}",
    "{% set loop_messages = messages[1:] if messages[0].role == 'system' else messages %}{% for m in loop_messages %}{{ m.content }}{% endfor %}",
    "{{ messages[-1].content }}",
    "{{ (messages | last).content }}",
    "{{ (messages | selectattr('role', 'equalto', 'user') | list | first)['content'] }}",
    "{{ messages | map(attribute='content') | join('\n') }}",
    "{{ messages | join('\n', attribute='content') }}",
    "{% for text in messages | map(attribute='content') %}{{ text }}{% endfor %}",
    "{% macro show(text, role) %}{{ role }}: {{ text }}{% endmacro %}{% for m in messages %}{{ show(m.content, role=m.role) }}{% endfor %}",
    "{% macro show(m) %}{{ m.content }}{% endmacro %}{% for m in messages %}{{ show(m=m) }}{% endfor %}",
    "{% for m in messages %}{% with text = m.content %}{{ text }}{% endwith %}{% endfor %}",
    // Neither loop goes through a message's content.
    "{% for d in documents or [] %}{% for part in d.content %}{{ part.text }}{% endfor %}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}",
    "{% macro list(content) %}{% for x in content %}{{ x.a }}{% endfor %}{% endmacro %}{{ list([{'a': 1}]) }}{% for m in messages %}{{ m.content }}{% endfor %}",
    // A text is asked for, but parts are only ever printed.
    "{% for m in messages %}{% set content = m.content %}{% if content is not string %}{% set content = content | tojson %}{% endif %}{{ content }}{% endfor %}",
    "{% for m in messages %}{% if m.content is mapping %}{{ m.content.text }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "{% for m in messages %}{% if '</think>' in m.content %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content[:100] }}{% endif %}{% endfor %}",
    "{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}",
];

const PARTS: [&str; 12] = [
    "{% for m in messages %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% for part in m.content or [] %}{{ part['text'] }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{{ m.content[0].text }}{% endfor %}",
    "{% for m in messages %}{% for i in range(m.content | length) %}{{ m['content'][i]['text'] }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{{ (m.content | first).text }}{% endfor %}",
    "{% for m in messages %}{{ m.content | map(attribute='text') | join }}{% endfor %}",
    "{% for m in messages %}{{ m.content | join('', attribute='text') }}{% endfor %}",
    "{% for m in messages %}{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}{% endfor %}",
    "{% macro show(parts) %}{% for part in parts %}{{ part.text }}{% endfor %}{% endmacro %}{% for m in messages %}{{ show(m.content) }}{% endfor %}",
    "{% set ns = namespace(m=none) %}{% for m in messages %}{% set ns.m = m %}{% for part in ns.m.content %}{{ part.text }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{% with parts = m.content %}{% for part in parts %}{{ part.text }}{% endfor %}{% endwith %}{% endfor %}",
    "{% for m in messages[1:] + [messages[0]] %}{% set content = m.content %}{% for part in content %}{{ part.text }}{% endfor %}{% endfor %}",
];

const BOTH: [&str; 5] = [
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}",
    "{% for m in messages %}{{ m.content if m.content is string else m.content[0].text }}{% endfor %}",
    "{% for m in messages %}{{ m.content if m.content is string else m.content | map(attribute='text') | join }}{% endfor %}",
    "{% macro show(content) %}{% if content is string %}{{ content }}{% else %}{% for item in content %}{{ item.text }}{% endfor %}{% endif %}{% endmacro %}{% for m in messages %}{% set content = show(m.content) | trim %}{{ content }}{% endfor %}",
    "{% for m in messages %}{% if m.content is string %}{% set parts = [{'type': 'text', 'text': m.content}] %}{% else %}{% set parts = m.content %}{% endif %}{% for part in parts %}{{ part.text }}{% endfor %}{% endfor %}",
];

const UNKNOWN: [&str; 5] = [
    "{% for m in messages %}{{ m | tojson }}{% endfor %}",
    "{{ messages }}",
    "no messages",
    "{% for m in messages %}{% for name, value in m.items() %}{{ value }}{% endfor %}{% endfor %}",
    "{% for m in messages %}{{ m.content }}{{ undefined_function(m.content) }}{% endfor %}",
];

/// What a content of each form becomes, and what is said of parts.
fn fitted(source: &str) -> (Value, Value, Vec<String>) {
    let template = load_template(source).unwrap_or_else(|error| panic!("{source}: {error}"));
    let given = |content: Value| {
        Chat::new(
            json!([{"role": "system", "content": content}, {"role": "user"}]),
            None,
        )
    };
    let text = given("hi".into());
    let parts = given(json!([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]));
    assert!(template.doubts(&text).is_empty(), "{source}");
    let doubts = template
        .doubts(&parts)
        .into_iter()
        .map(|doubt| doubt.name)
        .collect();
    let content = |chat: Chat| template.fit(chat).messages[0]["content"].clone();
    (content(text), content(parts), doubts)
}

#[test]
fn contents_keep_their_form_unless_a_template_takes_the_other_alone() {
    let text = Value::from("hi");
    let parts = json!([{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]);
    let one_part = json!([{"type": "text", "text": "hi"}]);
    let unsure = vec!["messages[].content".to_owned()];
    let cases = [
        (&TEXT[..], (text.clone(), text.clone(), vec![])),
        (&PARTS[..], (one_part, parts.clone(), vec![])),
        (&BOTH[..], (text.clone(), parts.clone(), vec![])),
        (&UNKNOWN[..], (text, parts, unsure)),
    ];
    let mut wrong = Vec::new();
    for (templates, expected) in cases {
        for template in templates {
            let found = fitted(template);
            if found != expected {
                wrong.push(format!(
                    "{template}\n  found {found:?}\n  expected {expected:?}"
                ));
            }
        }
    }
    assert_none_differ(&wrong);
}

/// A field that a template reads under no name is told of; one is read where messages are shown whole.
#[test]
fn fields_of_messages_that_a_template_does_not_read_are_told_of() {
    const PLAIN: &str = "{% for m in messages %}{{ m.role }}{{ m.content }}";
    let chat = Chat::new(
        json!([
            {"role": "user", "content": "hi", "name": "Ann", "odd": null},
            {"role": "assistant", "content": "", "reasoning": "r", "tool_calls": [{"name": "f", "arguments": {}}]},
            {"role": "tool", "content": "1", "tool_call_id": "c"},
        ]),
        Some(json!([{"name": "f"}])),
    );
    let all = [
        "tools",
        "messages[].name",
        "messages[].reasoning",
        "messages[].tool_call_id",
        "messages[].tool_calls",
    ];
    for (more, read) in [
        ("", &[][..]),
        ("{{ m.name }}", &["messages[].name"]),
        (
            "{{ m['name'] if 'tool_calls' in m }}",
            &["messages[].name", "messages[].tool_calls"],
        ),
        ("{{ m.get('thinking') }}", &["messages[].reasoning"]),
        (
            "{% if m.reasoning_content is defined %}{{ tools }}{% endif %}",
            &["messages[].reasoning", "tools"],
        ),
        ("{{ m | tojson }}", &all[1..]),
        ("{{ messages[1:] }}", &all[1..]),
        ("{% for key in m %}{{ m[key] }}{% endfor %}", &all[1..]),
        (
            "{% for key, value in m.items() %}{{ key }}={{ value }}{% endfor %}",
            &all[1..],
        ),
        // Its text is no prompt.
        ("{{ raise_exception(m | tojson) }}", &[]),
        // What else is shown whole is no message.
        ("{{ tools | tojson }}{{ m.content | tojson }}", &["tools"]),
    ] {
        let template = load_template(&format!("{PLAIN}{more}{{% endfor %}}")).unwrap();
        let doubts: Vec<String> = template
            .doubts(&chat)
            .into_iter()
            .map(|doubt| doubt.name)
            .collect();
        let expected: Vec<&str> = all
            .into_iter()
            .filter(|name| !read.contains(name))
            .collect();
        assert_eq!(doubts, expected, "{more}");
    }
}
