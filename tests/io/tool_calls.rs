//! Tool calls: what is read between the markers is what Python or JSON reads, and nothing else is, and drafts in reasoning
//! are not; answers carry them as the OpenAI format does.

use crate::common::python::{ask, interpreter};
use crate::common::random::Random;
use crate::fakes::{CALL_END, CALL_START, CODEC, THINK, THOUGHT, outcome};
use serde_json::{Value, json};
use tailgraph::io::answer::{Finish, Label, Origin, Outcome, served};
use tailgraph::io::line::parse;
use tailgraph::io::openai_stream::Chunks;
use tailgraph::io::row::{Endpoint, Format, Id, OpenAi, Prompt};
use tailgraph::io::tool_calls::{Found, find};
use tailgraph::text::StopMatcher;

/// What the chunks of an answer come to.
fn in_chunks(label: &Label, outcome: &Outcome, origin: &Origin) -> Value {
    let Format::OpenAi(repeated) = label.format.clone() else {
        unreachable!("it is of that format");
    };
    let mut chunks = Chunks::new(repeated, label.line, 1, origin.clone(), CODEC.clone());
    let mut out = Vec::new();
    chunks.begin(&mut out);
    let mut text = CODEC.stream(StopMatcher::new(&[]), false).unwrap();
    for &id in &outcome.output_ids {
        text.push(id);
        chunks.token(&mut out, 0, (id, None, &text.certain()));
    }
    chunks.end(&mut out, 0, outcome);
    let out = String::from_utf8(out).unwrap();
    let mut message = json!({"role": "assistant"});
    let mut content = String::new();
    let mut finish = Value::Null;
    for event in out.split_terminator("\n\n") {
        let event: Value = serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap();
        let choice = &event["choices"][0];
        content += choice["delta"]["content"].as_str().unwrap_or_default();
        for name in ["tool_calls", "tool_call_error"] {
            if let Some(found) = choice["delta"].get(name) {
                message[name] = found.clone();
            }
        }
        finish = choice["finish_reason"].clone();
    }
    let mut alone = false;
    for (place, call) in message
        .get_mut("tool_calls")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .enumerate()
    {
        assert_eq!(
            call.as_object_mut().unwrap().remove("index"),
            Some(json!(place))
        );
        alone = true;
    }
    // A text of blanks that is out when a call begins cannot be taken back.
    message["content"] = if alone && content.trim().is_empty() {
        Value::Null
    } else {
        json!(content)
    };
    json!({"index": 0, "message": message, "logprobs": null, "finish_reason": finish})
}

/// The choice of an answer in which `<` and `>` are the markers of calls, and `«` and `»` those of reasoning as tokens of
/// their own; `<think>` is seven tokens.
pub fn choice(said: &[&str], tools: bool, finish: Finish) -> Value {
    let ids = said.iter().flat_map(|piece| match *piece {
        "<" => vec![CALL_START],
        ">" => vec![CALL_END],
        "«" => vec![THINK],
        "»" => vec![THOUGHT],
        text => text.bytes().map(u32::from).collect(),
    });
    let outcome = outcome(ids.collect(), finish);
    let label = Label {
        line: 4,
        id: Id::line(4),
        format: Format::OpenAi(OpenAi {
            endpoint: Endpoint::Chat,
            model: None,
            tools,
            n: None,
            stream: None,
        }),
    };
    let origin = Origin {
        model: "served".into(),
        created: 7,
    };
    let chunks = in_chunks(&label, &outcome, &origin);
    let line = served(&label, &[outcome], &CODEC, &origin);
    let answer: Value = serde_json::from_str(&line).unwrap();
    let choice = answer["response"]["body"]["choices"][0].clone();
    assert_eq!(chunks, choice, "{said:?}");
    choice
}

fn call(number: u32, name: &str, arguments: &str) -> Value {
    json!({"id": format!("call_4_0_{number}"), "type": "function", "function": {"name": name, "arguments": arguments}})
}

#[test]
fn calls_are_a_message_of_their_own_kind() {
    let two = [
        "Let me see. ",
        "<",
        "[f(x=1), g.h(y='a')]",
        ">",
        "<",
        "[f()]",
        ">",
        " Done.",
    ];
    let found = choice(&two, true, Finish::Stop);
    assert_eq!(found["finish_reason"], "tool_calls");
    let message = &found["message"];
    assert_eq!(message["content"], "Let me see.  Done.");
    let expected = [
        call(0, "f", "{\"x\": 1}"),
        call(1, "g.h", "{\"y\": \"a\"}"),
        call(2, "f", "{}"),
    ];
    assert_eq!(message["tool_calls"], json!(expected));

    let alone = choice(&["<", "[f(x=1)]", ">"], true, Finish::Length);
    assert_eq!(alone["message"]["content"], Value::Null);
    assert_eq!(alone["finish_reason"], "length");
    // Nobody has asked for calls.
    let untold = choice(&["<", "[f(x=1)]", ">"], false, Finish::Stop);
    assert_eq!(
        untold["message"],
        json!({"role": "assistant", "content": "[f(x=1)]"})
    );
    assert_eq!(choice(&["Hi"], true, Finish::Stop)["finish_reason"], "stop");
}

#[test]
fn what_is_no_call_stays_text_and_says_so() {
    for (said, reason) in [
        (
            &["a", "<", "[f(x=1)]"][..],
            "a call begins and does not end",
        ),
        (&["a", "<", "[f(1)]", ">"], "expected a name"),
        (
            &["a", "<", "[f(x=1)]", ">", "<", "[f(x=y)]", ">"],
            "found the name y, expected a value",
        ),
        (&["a", "<", "[f(x=1)] and", ">"], "after the calls"),
        (
            &["a", "<", "[f(x=1, x=2)]", ">"],
            "found the argument x twice",
        ),
        (
            &["<", r#"[{"name": "f", "arguments": [1]}]"#, ">"],
            "expected an object as the arguments of \"f\"",
        ),
        (
            &["<", r#"{"name": "f", "arguments": "{} {}"}"#, ">"],
            "after the calls",
        ),
        (
            &[
                "<",
                r#"{"name": "f", "arguments": {}, "parameters": {}}"#,
                ">",
            ],
            "found a call of \"f\" without arguments or with both",
        ),
        (
            &["<", r#"{"name": "f", "city": "Paris"}"#, ">"],
            "found a call of \"f\" without arguments or with both",
        ),
        (
            &["<", r#"{"arguments": {}}"#, ">"],
            "found an object without a name",
        ),
    ] {
        let found = choice(said, true, Finish::Stop);
        let text: String = said
            .iter()
            .filter(|piece| !["<", ">"].contains(*piece))
            .copied()
            .collect();
        let message = &found["message"];
        assert_eq!(message["content"], text.as_str());
        assert_eq!(message["tool_calls"], Value::Null);
        let error = message["tool_call_error"].as_str().unwrap();
        assert!(error.contains(reason), "{said:?}: {error}");
        assert_eq!(found["finish_reason"], "stop");
    }
}

/// The names and arguments of the calls that are read.
fn read(said: &[&str]) -> Option<Vec<(String, Value)>> {
    let message = choice(said, true, Finish::Stop)["message"].clone();
    let one = |call: &Value| {
        let function = &call["function"];
        let arguments = function["arguments"].as_str().unwrap();
        let name = function["name"].as_str().unwrap();
        (name.to_owned(), serde_json::from_str(arguments).unwrap())
    };
    Some(message["tool_calls"].as_array()?.iter().map(one).collect())
}

#[test]
fn objects_are_calls_too() {
    let x = json!({"x": 1});
    for said in [
        r#"[{"name": "f", "arguments": {"x": 1}}]"#,
        r#" {"name": "f", "arguments": {"x": 1}} "#,
        r#"{"id": "1", "type": "function", "name": "f", "parameters": {"x": 1}}"#,
        r#"[{"name": "f", "arguments": "{\"x\": 1}"}]"#,
        "[{'name': 'f', 'arguments': {'x': 1}}]",
        "f(x=1)",
    ] {
        assert_eq!(
            read(&["<", said, ">"]),
            Some(vec![("f".into(), x.clone())]),
            "{said}"
        );
    }
    let said = r#"[{"name": "a.b-c"}, {"name": "g", "arguments": {"s": "\/ \ud83d\ude00 \u00e9", "n": [-1.5, null]}}, f(s="\/")]"#;
    let expected = [
        ("a.b-c".to_owned(), json!({})),
        (
            "g".to_owned(),
            json!({"s": "/ \u{1f600} \u{e9}", "n": [-1.5, null]}),
        ),
        ("f".to_owned(), json!({"s": "\\/"})),
    ];
    assert_eq!(read(&["<", said, ">"]), Some(expected.into()));
}

#[test]
fn words_line_ends_and_numbers_are_those_of_either_language() {
    let said = "[f(a=true, b=[False, null], c={'d': None, \"e\": false}, s='one\ntwo', t=\"\r\n'\n\", n=+.5, m=-2.)]";
    let expected = json!({"a": true, "b": [false, null], "c": {"d": null, "e": false},
        "s": "one\ntwo", "t": "\r\n'\n", "n": 0.5, "m": -2.0});
    assert_eq!(read(&["<", said, ">"]), Some(vec![("f".into(), expected)]));
    let said = "{\"name\": \"f\", \"arguments\": {\"s\": \"one\ntwo\", \"a\": True}}";
    let expected = json!({"s": "one\ntwo", "a": true});
    assert_eq!(read(&["<", said, ">"]), Some(vec![("f".into(), expected)]));
}

#[test]
fn drafts_in_reasoning_are_no_calls() {
    let (draft, made) = ("[draft(a=1)]", "[made()]");
    let call = || Some(vec![("made".to_owned(), json!({}))]);
    for (said, calls, content) in [
        (
            &["<think>so ", "<", draft, ">", "</think>", "<", made, ">"][..],
            call(),
            "<think>so [draft(a=1)]</think>",
        ),
        (&["«", "<", draft, ">", "»", "<", made, ">"], call(), draft),
        // The prompt has begun the reasoning.
        (
            &["so ", "<", draft, ">", " no</think>", "<", made, ">", "!"],
            call(),
            "so [draft(a=1)] no</think>!",
        ),
        (&["<", "[f(]", ">", "»", "<", made, ">"], call(), "[f(]"),
        // A draft that is not ended, and reasoning that is not.
        (
            &["<think>", "<", "[draft(", "</think>", "<", made, ">"],
            call(),
            "<think>[draft(</think>",
        ),
        (&["<think>", "<", draft, ">"], None, "<think>[draft(a=1)]"),
        // Reasoning between calls.
        (
            &["<", made, ">", "«", "<", draft, ">", "»", "."],
            call(),
            "[draft(a=1)].",
        ),
    ] {
        assert_eq!(read(said), calls, "{said:?}");
        let message = choice(said, true, Finish::Stop)["message"].clone();
        assert_eq!(message["content"], content, "{said:?}");
        assert_eq!(message["tool_call_error"], Value::Null, "{said:?}");
    }
    // In a string of a call they are text.
    let expected = json!({"s": "</think><think>"});
    let said = ["<", "[f(s='</think><think>')]", ">", "<", made, ">"];
    let calls = vec![("f".to_owned(), expected), ("made".to_owned(), json!({}))];
    assert_eq!(read(&said), Some(calls));
}

#[test]
fn an_empty_list_of_calls_is_none() {
    for (said, content) in [
        (&["Nothing to do.", "<", "[]", ">"][..], "Nothing to do."),
        (&["<", " [ ] ", ">"], ""),
    ] {
        let found = choice(said, true, Finish::Stop);
        let expected = json!({"role": "assistant", "content": content});
        assert_eq!(found["message"], expected);
        assert_eq!(found["finish_reason"], "stop");
    }
    // One that is empty takes nothing from the others.
    let found = choice(&["<", "[]", ">", "<", "[f()]", ">"], true, Finish::Stop);
    assert_eq!(found["message"]["tool_calls"], json!([call(0, "f", "{}")]));
}

#[test]
fn many_calls_are_read_in_one_pass() {
    // By steps over the text for each call this would be 10^11 of them.
    const CALLS: usize = 150_000;
    let one = [CALL_START]
        .into_iter()
        .chain("[f()]".bytes().map(u32::from))
        .chain([CALL_END])
        .chain("é".bytes().map(u32::from));
    let ids: Vec<u32> = one.collect();
    let outcome = outcome(ids.repeat(CALLS), Finish::Stop);
    let start = std::time::Instant::now();
    let found = find(&outcome, &CODEC);
    let seconds = start.elapsed().as_secs_f64();
    let Found::Calls { calls, text } = found else {
        panic!("{found:?}")
    };
    assert_eq!((calls.len(), text), (CALLS, "é".repeat(CALLS)));
    assert!(seconds < 20.0, "{seconds} s");
}

/// A literal of the grammar, sometimes a wrong one.
fn literal(rng: &mut Random, depth: u32) -> String {
    let strings = [
        "'it\\'s'",
        "\"a \\\"b\\\" \\n\\t\\\\\"",
        "''",
        "\"\u{e9}\u{1f600}\"",
        "'''x 'y' ''z\nw'''",
        "'\\x41\\u00e9\\q'",
        "\"\\U0001F600\"",
        "'open",
        "r'raw'",
        "'\\ud83d'",
        "'\\N{BULLET}'",
        "\"\"\"\"q\"\"\"",
    ];
    let others = [
        "0",
        "-17",
        "123456789012345678901234567890",
        "0.5",
        "-1.25e-3",
        "1E5",
        "True",
        "False",
        "None",
        "true",
        "null",
        "x",
        "01",
        "1+2",
        "-",
        "(1)",
        "{}",
        "[]",
        "f(1)",
        "*a",
        "{1: 2}",
    ];
    match rng.below(10u32) {
        0..=3 => rng.pick(&strings).to_owned(),
        4..=7 => rng.pick(&others).to_owned(),
        8 if depth < 3 => {
            let items: Vec<String> = (0..rng.below(3u32))
                .map(|_| literal(rng, depth + 1))
                .collect();
            format!(
                "[{}{}]",
                items.join(", "),
                if rng.below(3u32) == 0 && !items.is_empty() {
                    ","
                } else {
                    ""
                }
            )
        }
        _ if depth < 3 => {
            let items: Vec<String> = (0..rng.below(3u32))
                .map(|i| format!("\"k{}\": {}", i % 2, literal(rng, depth + 1)))
                .collect();
            format!("{{{}}}", items.join(" , "))
        }
        _ => "7".to_owned(),
    }
}

#[test]
fn calls_are_read_as_python_reads_them() {
    let Some(python) = interpreter("calls_are_read_as_python_reads_them") else {
        return;
    };
    let mut rng = Random::new(35);
    let texts: Vec<String> = (0..3000)
        .map(|_| {
            let calls: Vec<String> = (0..1 + rng.below(2u32))
                .map(|_| {
                    let names = ["f", "get_weather", "a.b", "_x1"];
                    let name = rng.pick(&names);
                    let arguments: Vec<String> = (0..rng.below(3u32))
                        .map(|i| format!("a{i} = {}", literal(&mut rng, 0)))
                        .collect();
                    format!("{name}({})", arguments.join(","))
                })
                .collect();
            format!("[{}]", calls.join(", "))
        })
        .collect();
    let said = ask(&python, "tool_calls.py", &json!({"texts": texts}));
    let mut both = 0;
    for (text, python) in texts.iter().zip(said["calls"].as_array().unwrap()) {
        if let Some(ours) = read(&["<", text, ">"]) {
            both += 1;
            let ours = ours
                .iter()
                .map(|(name, arguments)| json!({"name": name, "arguments": arguments}));
            assert_eq!(json!(ours.collect::<Vec<_>>()), *python, "{text}");
        } else {
            // Raw strings, names of characters, values in parentheses and sums are Python's too, and left as text.
            let beyond = ["r'", "\\N", "(1)"].iter().any(|part| text.contains(part));
            assert!(python.is_null() || beyond, "{text}: {python}");
        }
    }
    assert!((600..2700).contains(&both), "{both} of {}", texts.len());
}

#[test]
fn rows_with_tools_ask_for_calls() {
    let tools = |body: &str| {
        let line = format!(
            r#"{{"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{{"messages":[{{"role":"user","content":"x"}}]{body}}}}}"#
        );
        let row = parse(line.as_bytes(), 1);
        assert!(matches!(row.ask.unwrap().prompt, Prompt::Messages(_)));
        matches!(row.format, Format::OpenAi(OpenAi { tools: true, .. }))
    };
    assert!(!tools(""));
    assert!(tools(
        r#","tools":[{"type":"function","function":{"name":"f"}}]"#
    ));
    assert!(!tools(
        r#","tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"none""#
    ));
}
