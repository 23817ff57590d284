//! Tool calls in the form that Liquid AI documents for LFM2.

use crate::tool_calls::choice;
use serde_json::{Value, json};
use tailgraph::io::answer::Finish;

/// What an assistant says in 30 conversations, in the form that Liquid AI documents for LFM2: between the markers a list of
/// calls, with text before or after. `<` and `>` stand for the markers; the calls, or none where it stays text.
#[test]
fn conversations_in_the_documented_form() {
    let conversations: [(&[&str], &str, Option<Value>); 30] = [
        // The example of the model card, and its kin.
        (
            &[
                "<",
                "[get_candidate_status(candidate_id=\"12345\")]",
                ">",
                "Checking the current status of candidate ID 12345.",
            ],
            "Checking the current status of candidate ID 12345.",
            Some(json!([["get_candidate_status", {"candidate_id": "12345"}]])),
        ),
        (
            &["<", "[get_time()]", ">"],
            "",
            Some(json!([["get_time", {}]])),
        ),
        (
            &["Sure. ", "<", "[search(query='rust cuda', limit=5)]", ">"],
            "Sure. ",
            Some(json!([["search", {"query": "rust cuda", "limit": 5}]])),
        ),
        (
            &["One moment. ", "<", "[f(a=1)]", ">", " Done."],
            "One moment.  Done.",
            Some(json!([["f", {"a": 1}]])),
        ),
        // Several calls, in one list or one after the other.
        (
            &[
                "<",
                "[get_weather(city=\"Paris\"), get_weather(city=\"Rome\")]",
                ">",
            ],
            "",
            Some(json!([["get_weather", {"city": "Paris"}], ["get_weather", {"city": "Rome"}]])),
        ),
        (
            &["<", "[f(a=1)]", ">", "<", "[g(b=2)]", ">"],
            "",
            Some(json!([["f", {"a": 1}], ["g", {"b": 2}]])),
        ),
        (
            &[
                "First ", "<", "[f(a=1)]", ">", " then ", "<", "[g()]", ">", ".",
            ],
            "First  then .",
            Some(json!([["f", {"a": 1}], ["g", {}]])),
        ),
        (
            &["<", "[a(), b(), c(), d()]", ">"],
            "",
            Some(json!([["a", {}], ["b", {}], ["c", {}], ["d", {}]])),
        ),
        // Strings with escapes and quotes of either kind.
        (
            &["<", r#"[say(text="She said \"hi\"")]"#, ">"],
            "",
            Some(json!([["say", {"text": "She said \"hi\""}]])),
        ),
        (
            &["<", r"[say(text='it\'s')]", ">"],
            "",
            Some(json!([["say", {"text": "it's"}]])),
        ),
        (
            &[
                "<",
                r#"[write(path="C:\\tmp\\a.txt", text="one\ntwo\t3")]"#,
                ">",
            ],
            "",
            Some(json!([["write", {"path": "C:\\tmp\\a.txt", "text": "one\ntwo\t3"}]])),
        ),
        (
            &["<", r#"[say(text="caf\u00e9 \U0001F600 \x41")]"#, ">"],
            "",
            Some(json!([["say", {"text": "caf\u{e9} \u{1f600} A"}]])),
        ),
        (
            &[
                "<",
                "[say(text=\"\u{65e5}\u{672c}\u{8a9e} \u{1f600}\")]",
                ">",
            ],
            "",
            Some(json!([["say", {"text": "\u{65e5}\u{672c}\u{8a9e} \u{1f600}"}]])),
        ),
        (
            &[
                "<",
                "[sql(query=\"SELECT * FROM t WHERE a = 'x' AND b < 3\")]",
                ">",
            ],
            "",
            Some(json!([["sql", {"query": "SELECT * FROM t WHERE a = 'x' AND b < 3"}]])),
        ),
        (
            &["<", "[say(text=\"brackets ] ) } , = [f(x=1)]\")]", ">"],
            "",
            Some(json!([["say", {"text": "brackets ] ) } , = [f(x=1)]"}]])),
        ),
        (
            &["<", "[say(text='''line one\nline two''')]", ">"],
            "",
            Some(json!([["say", {"text": "line one\nline two"}]])),
        ),
        // Booleans, None and numbers.
        (
            &["<", "[set(on=True, dim=False, color=None)]", ">"],
            "",
            Some(json!([["set", {"on": true, "dim": false, "color": null}]])),
        ),
        (
            &["<", "[move(x=-3, y=-0.5, z=1e3, w=0)]", ">"],
            "",
            Some(json!([["move", {"x": -3, "y": -0.5, "z": 1e3, "w": 0}]])),
        ),
        // Lists and dictionaries in each other.
        (
            &["<", "[mail(to=[\"a@x.org\", \"b@x.org\"], cc=[])]", ">"],
            "",
            Some(json!([["mail", {"to": ["a@x.org", "b@x.org"], "cc": []}]])),
        ),
        (
            &[
                "<",
                "[make(spec={\"name\": \"n\", \"tags\": [\"a\", {\"b\": [1, -2, None]}], \"deep\": {\"er\": {}}})]",
                ">",
            ],
            "",
            Some(
                json!([["make", {"spec": {"name": "n", "tags": ["a", {"b": [1, -2, null]}], "deep": {"er": {}}}}]]),
            ),
        ),
        (
            &["<", "[plot(points=[[0, 1.5], [2, -3]], closed=True)]", ">"],
            "",
            Some(json!([["plot", {"points": [[0, 1.5], [2, -3]], "closed": true}]])),
        ),
        // Spaces and lines as a model sets them.
        (
            &["<", "\n[ f ( a = 1 ,\n  b = 'x' , ) ]\n", ">"],
            "",
            Some(json!([["f", {"a": 1, "b": "x"}]])),
        ),
        (
            &["<", "[calendar.events.add(title=\"x\")]", ">"],
            "",
            Some(json!([["calendar.events.add", {"title": "x"}]])),
        ),
        // One call without its list, and one as JSON, which the model writes when it is told to.
        (&["<", "f(x=1)", ">"], "", Some(json!([["f", {"x": 1}]]))),
        (
            &["<", "{\"name\": \"f\", \"arguments\": {}}", ">"],
            "",
            Some(json!([["f", {}]])),
        ),
        // Nothing of the kind, or not quite: it stays text.
        (
            &["No tool is needed: f(x=1)."],
            "No tool is needed: f(x=1).",
            None,
        ),
        (&["<", "[f(x=1)", ">"], "[f(x=1)", None),
        (
            &["<", "[f(\"positional\")]", ">"],
            "[f(\"positional\")]",
            None,
        ),
        (&["<", "[f(x=undefined)]", ">"], "[f(x=undefined)]", None),
        (
            &["<", "[f(x=\"open)]", ">", " and so on"],
            "[f(x=\"open)] and so on",
            None,
        ),
    ];
    for (said, text, calls) in conversations {
        let found = choice(said, true, Finish::Stop);
        let message = &found["message"];
        assert_eq!(message["content"].as_str().unwrap_or(""), text, "{said:?}");
        let read = message["tool_calls"].as_array().map(|calls| {
            let one = |call: &Value| {
                let arguments = call["function"]["arguments"].as_str().unwrap();
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                json!([call["function"]["name"], arguments])
            };
            json!(calls.iter().map(one).collect::<Vec<_>>())
        });
        assert_eq!(read, calls, "{said:?}");
        let reason = if calls.is_some() {
            "tool_calls"
        } else {
            "stop"
        };
        assert_eq!(found["finish_reason"], reason, "{said:?}");
        let markers = said.contains(&"<");
        let told = !message["tool_call_error"].is_null();
        assert_eq!(told, markers && calls.is_none(), "{said:?}");
    }
}
