//! Chat templates against what transformers renders, over a list and over random templates from a grammar, and the
//! bounds on what a template may take. The list and the grammar's templates are asked of transformers itself
//! (tests/python/setup); the random ones for TAILGRAPH_FUZZ_SECONDS (2 unless set), from TAILGRAPH_FUZZ_SEED or the same seed
//! every time.

mod common;

use std::time::{Duration, Instant};

use common::grammar::{Grammar, context};
use common::random::Random;
use common::text::{assert_none_differ, load_template};
use serde_json::{Value, json};
use tailgraph::text::Chat;
use tailgraph::text::threads::{DEFAULT_LIMIT, Threads};

fn time() -> Duration {
    common::fuzz::time(2.0)
}

/// `template` rendered with these variables.
fn render(template: &str, variables: &Value) -> Result<String, String> {
    let mut template = load_template(template)?;
    let day = chrono::NaiveDate::from_ymd_opt(2024, 7, 4).unwrap();
    template.set_clock(day.and_hms_opt(9, 5, 3).unwrap());
    let mut chat = Chat::new(variables["messages"].clone(), None);
    chat.kwargs = variables.as_object().unwrap().clone();
    let rendered = template.render(&chat);
    rendered.map_err(|error| error.to_string())
}

/// What transformers makes of each template: a text, or `None` where it refuses it.
fn ask(python: &std::path::Path, templates: &[String], variables: &Value) -> Vec<Option<String>> {
    let case = |template: &String| {
        let mut context = variables.clone();
        context["tools"] = Value::Null;
        context["documents"] = Value::Null;
        context["add_generation_prompt"] = true.into();
        json!({"template": template, "context": context})
    };
    let cases: Vec<Value> = templates.iter().map(case).collect();
    let answers = common::python::ask(python, "render_templates.py", &cases.into());
    let answers = answers.as_array().unwrap();
    assert_eq!(answers.len(), templates.len());
    answers
        .iter()
        .map(|answer| answer["text"].as_str().map(str::to_owned))
        .collect()
}

/// Python shows an object's address: no text that a prompt can mean, and an error here.
fn shows_an_address(text: &str) -> bool {
    text.contains(" at 0x") || text.contains("<class '")
}

/// What is refused here and renders in transformers: each is an error that quotes its expression.
const REFUSED: [&str; 5] = [
    "{{ none[1:] }}",
    "{% for a, b in ['xy'] %}{{ a }}{{ b }}{% endfor %}",
    "{% set loop = 1 %}",
    "{% set a = namespace(n=1) %}{% set b = namespace(a=a) %}{{ b.a.n }}",
    "{% with %}{{ s }}{% endwith %}{% block a %}{{ s }}{% endblock %}{% set s = 1 %}",
];

#[test]
fn templates_of_the_list_render_as_in_transformers() {
    const LIST: &str = include_str!("fixtures/text/jinja_templates.txt");
    let Some(python) =
        common::python::interpreter("templates_of_the_list_render_as_in_transformers")
    else {
        return;
    };
    // A template a line; ⏎ is a line end.
    let templates: Vec<String> = LIST.lines().map(|line| line.replace('⏎', "\n")).collect();
    assert!(templates.len() > 200);
    let variables = json!({
        "messages": [{"role": "user", "content": "hi ", "n": 1}, {"role": "assistant", "content": "yo", "n": 2}],
        "d": {"a": 1, "n": 3, "s": "x"},
        "l": [1, 2, 3],
        "s": "outer",
    });
    let expected = ask(&python, &templates, &variables);
    let mut wrong = Vec::new();
    for (template, expected) in templates.iter().zip(expected) {
        let rendered = render(template, &variables);
        let right = match &expected {
            Some(text) if shows_an_address(text) || REFUSED.contains(&template.as_str()) => {
                rendered
                    .as_ref()
                    .is_err_and(|error| error.contains("line 1: `"))
            }
            expected => rendered.as_ref().ok() == expected.as_ref(),
        };
        if !right {
            wrong.push(format!(
                "{template}\n  found {rendered:?}\n  expected {expected:?}"
            ));
        }
    }
    assert_none_differ(&wrong);
}

/// Never another text: what transformers renders is the same here or an error.
#[test]
fn random_templates_render_as_in_transformers_or_not_at_all() {
    const TEST: &str = "random_templates_render_as_in_transformers_or_not_at_all";
    let Some(python) = common::python::interpreter(TEST) else {
        return;
    };
    let mut random = Random::new(common::fuzz::seed(29));
    let (mut same, mut refused) = (0, 0);
    let end = Instant::now() + time();
    while Instant::now() < end {
        let templates: Vec<String> = (0..300)
            .map(|number| {
                let mut grammar = Grammar::new(&mut random);
                match number % 2 {
                    0 => format!("{{{{ {} }}}}", grammar.expression(3)),
                    _ => grammar.template(2),
                }
            })
            .collect();
        for (template, expected) in templates.iter().zip(ask(&python, &templates, &context())) {
            match (render(template, &context()), expected) {
                (Ok(text), Some(expected)) => {
                    assert_eq!(text, expected, "{template}");
                    same += 1;
                }
                (Err(error), expected) => {
                    assert!(
                        !error.contains('\n') && !error.contains("panicked"),
                        "{template}: {error}"
                    );
                    refused += u32::from(expected.is_some_and(|text| !shows_an_address(&text)));
                }
                // What transformers refuses has no right prompt.
                (Ok(_), None) => {}
            }
        }
    }
    // The first batch is whole, however little time there was.
    assert!(
        same >= 50 && refused < same / 10,
        "{same} the same, {refused} refused here only"
    );
}

/// Each would take all time, memory or stack. One may render, if it does so within the bounds.
#[test]
fn a_template_that_wants_too_much_is_an_error_soon() {
    let nested = |open: &str, inner: &str, close: &str, times: usize| {
        open.repeat(times) + inner + &close.repeat(times)
    };
    let templates = [
        "{{ '{:>1000000000000}'.format(5) }}".to_owned(),
        "{{ '%1000000000000d' % 5 }}".to_owned(),
        "{{ '%.1000000000d' % 5 }}{{ '%.1000000f' % 0.1 }}".to_owned(),
        "{{ 'x' * 1000000000000 }}".to_owned(),
        "{{ [1] * 100000000000 }}".to_owned(),
        "{{ 'x' | center(1000000000000) }}".to_owned(),
        "{{ 'x'.ljust(1000000000000) }}".to_owned(),
        "{{ 'x' | indent(1000000000000, true) }}".to_owned(),
        "{{ [[[1]]] | tojson(indent=1000000000) }}".to_owned(),
        "{{ [1] | batch(100000000000, 0) | list }}".to_owned(),
        "{{ [1] | slice(100000000000, 0) | list }}".to_owned(),
        "{{ 2 ** 100000000000 }}".to_owned(),
        "{{ '\t'.expandtabs(10000000000000) }}".to_owned(),
        "{{ ('ab' * 1000).replace('', 'x' * 1000).replace('', 'x' * 1000) }}".to_owned(),
        "{{ range(1000000000) }}".to_owned(),
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s='x') %}{% for a in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}".to_owned(),
        "{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}".to_owned(),
        "{% set ns = namespace(s=[1]) %}{% for a in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s == ns.s }}{{ ns.s | tojson }}".to_owned(),
        "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}".to_owned(),
        "{% set ns = namespace(x={}) %}{% for a in range(99999) %}{% set ns.x = {'x': ns.x} %}{% endfor %}".to_owned(),
        "{% set ns = namespace(x=1) %}{% for a in range(99999) %}{% set ns.x = namespace(x=ns.x) %}{% endfor %}".to_owned(),
        "{% set ns = namespace(x=[]) %}{% for a in range(99999) %}{% set ns.x = ns.x | map('string') %}{% endfor %}{{ ns.x | list }}".to_owned(),
        "{% set t = namespace(a=(1,)) %}{% for i in range(60) %}{% set t.a = (t.a, t.a) %}{% endfor %}{{ t.a in {1: 2} }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.x = ns %}{% set l = [ns] %}{% set ns.y = [l, ns] %}{{ l }}".to_owned(),
        "{% set ns = namespace(s='x' * 9999999) %}{% macro m() %}{{ ns.s }}{% endmacro %}{% set ns.m = m %}{{ ns }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns == ns }}{{ ns.x | tojson }}{{ ns.x }}".to_owned(),
        format!("{{% set x %}}{{% for a in range(99999) %}}{}{{% endfor %}}{{% endset %}}", "y".repeat(500_000)),
        format!("{{% for a in range(99999) %}}{}{{% endfor %}}", "y".repeat(500_000)),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro m(x) %}{{ m(x) }}{{ m(x) }}{% endmacro %}{{ m(1) }}".to_owned(),
        "{% for x in [[]] recursive %}{{ loop([[]]) }}{% endfor %}".to_owned(),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(3_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(3_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(1_900)),
        format!("{{{{ 1{} }}}}", "**1".repeat(1_300)),
        format!("{{{{ x{} }}}}", "[0]".repeat(1_300)),
        format!("{{{{ x{} }}}}", "|list".repeat(1_900)),
        format!("{{{{ {} }}}}", nested("[", "1", "]", 1_900)),
        format!("{{{{ {} }}}}", nested("(", "1", ")", 1_900)),
        format!("{{{{ {} }}}}", nested("{1:", "1", "}", 900)),
        nested("{% if 1 %}", "x", "{% endif %}", 4_000),
        nested("{% for x in [1] %}", "x", "{% endfor %}", 400),
        nested("{% filter upper %}", "x", "{% endfilter %}", 100),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(9_000)),
        "{{ 1 }}".repeat(200_000),
        "x".repeat(2 << 20),
        "{{ strftime_now('%c' * 10000000) }}".to_owned(),
        "{{ ((messages | string) * 1000) | wordcount }}{% for a in range(99999) %}{{ (('a' * 1000000) | upper) | length }}{% endfor %}".to_owned(),
        "{% for a in range(99999) %}{{ 'abc' * 2000000 in ('b' * 10000000) }}{% endfor %}".to_owned(),
        "{{ range(99999) | map('string') | map('center', 10000) | join | length }}".to_owned(),
        "{{ range(99999) | list | sort | unique | list | groupby('x') | length }}".to_owned(),
        "{% for a in range(99999) %}{{ range(99999) | list | length }}{% endfor %}".to_owned(),
    ];
    let threads = Threads::new(DEFAULT_LIMIT);
    let mut rendered = 0;
    for template in templates {
        let name: String = template.chars().take(100).collect();
        let variables = json!({"messages": [{"role": "user", "content": "x"}]});
        let work = move || render(&template, &variables);
        let result = threads
            .run(work)
            .unwrap_or_else(|late| Err(late.to_string()));
        match result {
            Ok(_) => rendered += 1,
            Err(error) => assert!(
                !error.contains("panicked") && error.len() < 2000,
                "{name}: {error}"
            ),
        }
    }
    // Those that are deep but within the bounds.
    assert!((5..20).contains(&rendered), "{rendered} rendered");
}

#[test]
fn what_is_not_supported_quotes_the_expression() {
    for (template, message) in [
        (
            "\n{{ [1, 2] | random }}",
            "line 2: `random`: the filter `random` is not supported",
        ),
        (
            "{{ 2 ** 200 }}",
            "line 1: `2 ** 200`: an integer of more than 128 bits",
        ),
        (
            "{{ messages.items }}{{ messages[0].items }}",
            "line 1: `[0].items`: found a value of type 'method' to print",
        ),
        (
            "{% include 'x' %}",
            "the tag `include` is not supported here",
        ),
        (
            "{% set f %}{% call(x) m() %}{{ varargs }}{% endcall %}{% endset %}",
            "`varargs` or `kwargs` of a call block",
        ),
        (
            "{{ self.x() }}",
            "line 1: `self`: the variable `self` is not supported here",
        ),
        (
            "{{ 'a' | urlize }}",
            "the filter `urlize` is not supported here",
        ),
        (
            "{{ 'x &hellip; y' | striptags }}",
            "the reference `&hellip; y` is not supported",
        ),
        ("{{ 'é-è' | wordwrap(2) }}", "hyphens in text beyond ASCII"),
        (
            "{% extends 'x' %}",
            "the tag `extends` is not supported here",
        ),
        (
            "{% import 'x' as y %}",
            "the tag `import` is not supported here",
        ),
        (
            "{% from 'x' import y %}",
            "the tag `from` is not supported here",
        ),
        (
            "{% for x in [[]] recursive %}{% set f = loop %}{{ f(x) }}{% endfor %}",
            "`loop`: this use of the `loop` of a recursive loop is not supported here",
        ),
        (
            "{{ messages[0].content.append(1) }}",
            "has no method `append`",
        ),
        ("{{ messages[0].update({}) }}", "templates may not"),
    ] {
        let variables = json!({"messages": [{"role": "user", "content": "x"}]});
        let error = render(template, &variables).unwrap_err();
        assert!(error.contains(message), "{template}: {error}");
    }
}
