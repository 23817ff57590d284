//! Templates print values as Python does. What would be another text than in transformers is refused, and so is what goes
//! beyond the bounds on a rendering.

mod common;

use std::time::{Duration, Instant};

use common::text::{assert_none_differ, load_template};
use serde_json::json;
use tailgraph::text::Chat;

fn render(template: &str) -> Result<String, String> {
    let mut template = load_template(template)?;
    let day = chrono::NaiveDate::from_ymd_opt(2024, 7, 4).unwrap();
    template.set_clock(day.and_hms_opt(9, 5, 3).unwrap());
    let messages = json!([
        {"role": "user", "content": "it's \u{a0}\u{200b}é\n", "n": 1e-7, "items": 5},
        {"role": "assistant", "content": "yo", "n": 1e22, "list": [1, null, true, 2.5, "a\"'"]},
    ]);
    template
        .render(&Chat::new(messages, None))
        .map_err(|error| error.to_string())
}

/// The expected texts were made with transformers 5.24 and jinja2 3.1.6.
#[test]
fn values_print_as_in_python() {
    let mut wrong = Vec::new();
    for (template, expected) in [
        (
            "{{ none }} {{ true }} {{ 1.0 }} {{ 1e16 }} {{ 0.00001 }} {{ [] }}",
            "None True 1.0 1e+16 1e-05 []",
        ),
        (
            "{{ messages[0] }}",
            r#"{'role': 'user', 'content': "it's \xa0\u200bé\n", 'n': 1e-07, 'items': 5}"#,
        ),
        (
            "{{ messages[1].list }} {{ messages[1].list ~ '' }}",
            r#"[1, None, True, 2.5, 'a"\''] [1, None, True, 2.5, 'a"\'']"#,
        ),
        (
            "{{ [messages[0].n, 1e22] ~ messages[0].n ~ 1e16 }} {{ messages[0].n < 1 }} {{ [1e16] | join }} {{ 1e16 | upper }}",
            "[1e-07, 1e+22]1e-071e+16 True 1e+16 1E+16",
        ),
        (
            "{{ messages[0].n }} {{ messages[0].n is number }} {{ messages[0].n | tojson }}",
            "1e-07 True 1e-07",
        ),
        (
            "{{ messages[1].list | tojson }} {{ messages[1].list[3:] | tojson(indent=1) }}",
            "[1, null, true, 2.5, \"a\\\"'\"] [\n 2.5,\n \"a\\\"'\"\n]",
        ),
        (
            "{{ messages[0].content | tojson }} {{ messages[0].content[5:] | tojson(ensure_ascii=True) }}",
            "\"it's \u{a0}\u{200b}é\\n\" \"\\u00a0\\u200b\\u00e9\\n\"",
        ),
        (
            "{{ {'a': (1,), 2: {}} | tojson(separators=(',', ':')) }}",
            r#"{"a":[1],"2":{}}"#,
        ),
        (
            "{{ (1,) }} {{ ('a', [(2, 3)]) }} {{ {'k': ()} }}",
            "(1,) ('a', [(2, 3)]) {'k': ()}",
        ),
        (
            "{{ messages[0].keys() | list }} {{ messages[0]['items'] }} {{ 'items' in messages[1] }}",
            "['role', 'content', 'n', 'items'] 5 False",
        ),
        (
            "{{ '\u{1c} a \u{1f}'.strip() }}|{{ ' a \u{1d} b'.split() }}|{{ 'a' | trim }}",
            "a|['a', 'b']|a",
        ),
        (
            "{% if messages | select('undefined') %}yes{% endif %}{{ messages | selectattr('list', 'defined') | map(attribute='role') | list }}",
            "yes['assistant']",
        ),
        (
            "{% set a %}{% set b = 1 %}{{ b }}{% endset %}{{ a }}{{ b is defined }}",
            "1False",
        ),
        (
            "{{ 'a' ~ 2 * 3.0 ~ 7 // 2 ~ [4 * 1, 'b' * 2 ~ 'c'] }} {{ 1 + 2 if 'x' * 2 ~ 'y' == 'xxy' else 0 }}",
            "a6.03[4, 'bbc'] 3",
        ),
        (
            "{{ 'aXb' | replace('X', 1e16) }} {{ ','.join(['b', 'a' | safe]) }} {{ 'ab'.replace('b', 'cc') }} {{ 'ab'.replace('', '-') }}",
            "a1e+16b b,a acc -a-b-",
        ),
        (
            "{{ 'a' is sequence }} {{ none is iterable }} {{ true is number }} {{ messages is sequence }}",
            "True False True True",
        ),
    ] {
        let found = render(template);
        if found.as_deref() != Ok(expected) {
            wrong.push(format!(
                "{template}\n  found {found:?}\n  expected {expected:?}"
            ));
        }
    }
    assert_none_differ(&wrong);
}

/// What would be another text than Python's is an error that quotes the expression, or the template does not load.
#[test]
fn what_is_otherwise_in_python_is_refused() {
    let mut wrong = Vec::new();
    for (template, message) in [
        (
            "\n{{ [1, 2] | random }}",
            "line 2: `random`: filter random is unknown",
        ),
        (
            "{{ '%s' % 'a' }}",
            "line 1: `'%s' % 'a'`: tried to use % operator",
        ),
        (
            "\n{% for tool in tools if tool %}{% endfor %}",
            "line 2: `for`: found none to loop over",
        ),
        (
            "{{ messages[0].items }}",
            "line 1: `[0].items`: Python has a method `items` there",
        ),
        (
            "{{ messages[1]['items'] }}",
            "line 1: `[1]['items']`: found no `items`",
        ),
        ("{{ messages | map('upper') }}", "to print"),
        (
            "{{ (messages | map(attribute='role'))[0] }}",
            "found a generator",
        ),
        (
            "{{ messages[0].keys() }}{{ messages[0].keys() | tojson }}",
            "to print",
        ),
        ("{{ namespace(a=1) }}", "to print"),
        ("{{ ('a' | safe) + '<b>' }}", "tried to use + operator"),
        ("{{ 2 ** 0.5 }}", "the operator `**` is not supported"),
        ("{{ 'a' ~ messages is string }}", "`is` behind `~`"),
        (
            "{{ messages | selectattr('items') | list }}",
            "an attribute by the name `items`",
        ),
        ("{{ ['É', 'e'] | sort }}", "letters outside of ASCII"),
        ("{{ ('a' | safe)[0] }}", "found a text of the filter `safe`"),
        (
            "{% set m = messages | map(attribute='role') %}{{ m | list }}{{ m | list }}",
            "gone through before",
        ),
        (
            "{{ 'é'.isalpha() }}",
            "the method `isalpha` differs in Python",
        ),
        (
            "{{ 'a\\rb'.splitlines() }}",
            "the method `splitlines` differs",
        ),
        ("{{ '{:1000}'.format(1) }}", "the method `format` differs"),
        (
            "{{ strftime_now('%Q') }}",
            "the format \"%Q\" is not supported",
        ),
        ("{{ 'a\\N{DASH}' }}", "the escape `\\N`"),
        (
            "{% include 'x' %}",
            "the tag `include` is not supported here",
        ),
        (
            "{% block a %}{% endblock %}",
            "the tag `block` is not supported here",
        ),
        (
            "{% for x in [[]] recursive %}{{ loop(x) }}{% endfor %}",
            "a recursive loop is not supported",
        ),
        (
            "{% with a = 1, b = a %}{% endwith %}",
            "a `with` that names something twice is not supported",
        ),
        (
            "{% for x in [] %}{% else %}{% set q = 1 %}{% endfor %}",
            "`set` in the `else` of a loop",
        ),
        (
            "{% for x in [1] %}{% set t %}{% break %}{% endset %}{% endfor %}",
            "`break` or `continue` in a block",
        ),
        (
            "{{ messages[0].update({}) }}{{ messages.append(1) }}",
            "no method named update",
        ),
        ("{% raw %}{% endraw ", "expected `%}`"),
        ("{{ 'a", "the string is not closed"),
        ("a\n{# b", "line 2: the comment is not closed"),
    ] {
        let found = render(template);
        if !found.as_ref().is_err_and(|error| error.contains(message)) {
            wrong.push(format!(
                "{template}\n  found {found:?}\n  expected {message:?}"
            ));
        }
    }
    assert_none_differ(&wrong);
}

/// Each would take all time, memory or stack. One may render, if it does so within the bounds.
#[test]
fn a_template_that_wants_too_much_is_an_error_soon() {
    let nested = |open: &str, inner: &str, close: &str, times: usize| {
        open.repeat(times) + inner + &close.repeat(times)
    };
    // A namespace carries a value from one turn of a loop to the next.
    let grown = |first: &str, next: &str, shown: &str| {
        format!(
            "{{% set ns = namespace(x={first}) %}}{{% for b in range(9) %}}{{% for a in range(90000) %}}{{% set ns.x = {next} %}}{{% endfor %}}{{% endfor %}}{shown}"
        )
    };
    let templates = [
        "{{ '{:>1000000000000}'.format(5) }}".to_owned(),
        "{{ '%1000000000000d' | format(5) }}".to_owned(),
        "{{ 'x' * 1000000000000 }}".to_owned(),
        "{{ [1] * 100000000000 }}".to_owned(),
        "{{ 'x' | indent(1000000000000, true) }}".to_owned(),
        "{{ [[[1]]] | tojson(indent=1000000000) }}".to_owned(),
        "{{ (['y' * 5000000] * 100000) | tojson }}".to_owned(),
        "{{ (['y' * 5000000] * 100000) | join }}".to_owned(),
        "{{ (['y' * 5000000] * 100000) ~ '' }}".to_owned(),
        "{{ ''.join(['y' * 5000000] * 100000) }}".to_owned(),
        "{{ range(1000) | list | tojson(separators=('y' * 9000000, ':')) }}".to_owned(),
        "{{ ('{0:999}' * 5000000).format(1) }}".to_owned(),
        "{{ ('{0}' * 1000000).format('y' * 5000000) }}".to_owned(),
        "{{ ('%s' * 100000) | format(*(['y' * 5000000] * 100000)) }}".to_owned(),
        "{{ (['a'] * 60000000) | reverse | list | length }}".to_owned(),
        "{{ ('a' * 1000000) | replace('a', 'y' * 1000000) | length }}".to_owned(),
        "{{ ('a' * 1000000).replace('a', 'y' * 1000000, 999999) | length }}".to_owned(),
        format!("{{% set {} = 1 %}}", nested("(", "a", ")", 400_000)),
        "{% for a in range(99999) %}{{ ['y' * 5000000, 'z'] | sort | length }}{% endfor %}"
            .to_owned(),
        "{{ ".to_owned() + &nested("[", "range(90000) | list", "]", 60) + " | tojson(indent=64) }}",
        "{{ [1] | batch(100000000000, 0) | list }}".to_owned(),
        "{{ [1] | slice(100000000000, 0) | list }}".to_owned(),
        "{{ 2 ** 100000000000 }}".to_owned(),
        "{{ ('ab' * 1000).replace('', 'x' * 1000).replace('', 'x' * 1000) }}".to_owned(),
        "{{ range(1000000000) }}".to_owned(),
        "{{ strftime_now('%c' * 10000000) }}".to_owned(),
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}".to_owned(),
        "{% for a in range(99999) %}{{ 'abc' * 2000000 in ('b' * 10000000) }}{% endfor %}"
            .to_owned(),
        "{% for a in range(99999) %}{{ range(99999) | list | sort | unique | list }}{% endfor %}"
            .to_owned(),
        format!(
            "{{% set x %}}{{% for a in range(99999) %}}{}{{% endfor %}}{{% endset %}}",
            "y".repeat(500_000)
        ),
        format!(
            "{{% for a in range(99999) %}}{}{{% endfor %}}",
            "y".repeat(500_000)
        ),
        grown("'x'", "ns.x + ns.x", ""),
        grown("'x'", "ns.x ~ ns.x", ""),
        grown("[1]", "ns.x + ns.x", ""),
        grown("[1]", "[ns.x, ns.x]", "{{ ns.x }}"),
        grown("(1,)", "(ns.x, ns.x)", "{{ ns.x in {1: 2} }}"),
        grown("[]", "[ns.x]", "{{ ns.x ~ '' }}"),
        grown("{}", "{'x': ns.x}", "{{ ns.x | tojson }}"),
        grown("1", "namespace(x=ns.x)", ""),
        grown("[]", "ns.x[0:]", "{{ ns.x | list }}"),
        grown("[]", "ns.x | map('string')", "{{ ns.x | list }}"),
        grown("[]", "[ns.x] | map('list')", ""),
        grown("[]", "{'a': [ns.x]}.items()", "{{ ns.x | list }}"),
        grown("[]", "ns.x + ([1] | map('string'))", ""),
        "{{ ('y\n' * 30000000) | indent(64) | length }}".to_owned(),
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns ~ '' }}".to_owned(),
        "{% set ns = namespace() %}{% set l = [ns] %}{% set ns.x = l %}{{ ns == l }}".to_owned(),
        "{{ a }}".to_owned() + &"{% set a = [1] %}{% set a = a + a %}".repeat(60),
        "{% set a = [1] %}".to_owned() + &"{% set a = a + a %}".repeat(60),
        "{% set a = 1 %}".to_owned() + &"{% set a = [a, a] %}".repeat(300) + "{{ a }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro m(x) %}{{ m([x]) }}{{ m(x) }}{% endmacro %}{{ m(1) }}".to_owned(),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(3_000)),
        format!("{{{{ 1{} }}}}", "+1".repeat(8_000)),
        format!("{{{{ 1{} }}}}", "**1".repeat(5_000)),
        format!("{{{{ x{} }}}}", "[0]".repeat(5_000)),
        format!("{{{{ x{} }}}}", "|list".repeat(3_000)),
        format!("{{{{ {} }}}}", nested("[", "1", "]", 1_900)),
        format!("{{{{ {} }}}}", nested("(", "1", ")", 1_900)),
        nested("{% if 1 %}", "x", "{% endif %}", 4_000),
        nested("{% for x in [1] %}", "x", "{% endfor %}", 400),
        nested("{% filter upper %}", "x", "{% endfilter %}", 100),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(9_000)),
        "{{ 1 }}".repeat(100_000),
        "x".repeat(2 << 20),
    ];
    let mut rendered = 0;
    for template in templates {
        let start = Instant::now();
        let result = render(&template);
        let name: String = template.chars().take(100).collect();
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{name}: {:?}",
            start.elapsed()
        );
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
    common::memory::assert_peak_below_a_gib();
}
