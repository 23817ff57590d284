//! What str's methods know of each character, and what they make of it, against Python.

mod common;

use common::text::{assert_none_differ, load_template};
use serde_json::json;
use std::collections::HashSet;
use tailgraph::text::Chat;

/// A line for each character: what it is, and what it becomes alone, after a letter and before one.
const TEMPLATE: &str = "{% for c in text %}{% if c.isdecimal() %}decimal {% endif %}{% if c.isdigit() %}digit {% endif %}\
    {% if c.isnumeric() %}numeric {% endif %}{% if c.isalpha() %}alpha {% endif %}{% if c.isalnum() %}alnum {% endif %}\
    {% if c.isidentifier() %}start {% endif %}{% if ('a' + c).isidentifier() %}continue {% endif %}\
    {% if c.isspace() %}space {% endif %}{% if c.isprintable() %}printable {% endif %}{% if c.islower() %}lower {% endif %}\
    {% if c.isupper() %}upper {% endif %}{% if c.istitle() %}title {% endif %}{% if ('A' + c).istitle() %}after {% endif %}\
    {{ [c.upper(), c.lower(), c.casefold(), c.capitalize(), c.swapcase(), ('a' + c + 'b').title()] | join('|') }}\u{1}{% endfor %}";

/// Planes 4 to 13 have no characters, and 15 and 16 private ones alone.
const RANGES: [(u32, u32, usize); 9] = [
    (0x2, 0x3400, 1),
    (0x3400, 0xa000, FEW),
    (0xa000, 0xac00, 1),
    (0xac00, 0xd7a4, FEW),
    (0xd7a4, 0xd800, 1),
    (0xe000, 0x1_2400, 1),
    (0x1_2400, 0x2_0000, 4),
    (0x2_0000, 0x3_3500, FEW),
    (0xe_0000, 0xe_0200, 4),
];
/// Of ideographs and syllables, which are all alike, one in this many.
const FEW: usize = 19;

/// Characters of Unicode 14, Python 3.11's, of which Unicode 17 says something else: small letters that got a capital
/// (U+019B, U+0264, U+A7D3, U+A7D5) or a folding (U+AB4B, U+AB4C), letters that are or are no longer small ones, marks
/// that may go on with an identifier (U+200C, U+200D, U+30FB, U+FF65), cuneiform that counts.
const CHANGED: [u32; 26] = [
    0x019b, 0x0264, 0x0277, 0x027c, 0x0295, 0x10fc, 0x200c, 0x200d, 0x30fb, 0xa7d3, 0xa7d5, 0xa7f2,
    0xa7f3, 0xa7f4, 0xab4b, 0xab4c, 0xab69, 0xff65, 0x1_2038, 0x1_2039, 0x1_2079, 0x1_2226,
    0x1_222b, 0x1_230b, 0x1_230d, 0x1_2399,
];

#[test]
fn characters_are_those_of_python() {
    let Some(python) = common::python::interpreter("characters_are_those_of_python") else {
        return;
    };
    let template = load_template(TEMPLATE).unwrap();
    let codes: Vec<u32> = RANGES
        .iter()
        .flat_map(|&(first, end, step)| (first..end).step_by(step))
        .filter(|&code| char::from_u32(code).is_some())
        .collect();
    let texts: Vec<&[u32]> = codes.chunks(4096).collect();
    let asked = json!({"template": TEMPLATE, "texts": texts});
    let expected = common::python::ask(&python, "characters.py", &asked);
    assert_eq!(expected["unicode"], "14.0.0");
    let unassigned: HashSet<u64> = expected["unassigned"]
        .as_array()
        .unwrap()
        .iter()
        .map(|code| code.as_u64().unwrap())
        .collect();
    let mut wrong = Vec::new();
    let (mut compared, mut later) = (0, 0);
    for (codes, expected) in texts.iter().zip(expected["rendered"].as_array().unwrap()) {
        let text: String = codes.iter().copied().filter_map(char::from_u32).collect();
        let mut chat = Chat::new(json!([]), None);
        chat.kwargs.insert("text".to_owned(), text.into());
        let found = template.render(&chat).unwrap();
        let (found, expected) = (
            found.split('\u{1}'),
            expected.as_str().unwrap().split('\u{1}'),
        );
        for ((&code, found), expected) in codes.iter().zip(found).zip(expected) {
            compared += 1;
            match found == expected {
                true => {}
                false if unassigned.contains(&code.into()) => later += 1,
                false if CHANGED.contains(&code) => {}
                false => wrong.push(format!(
                    "U+{code:04X}\n  found {found}\n  expected {expected}"
                )),
            }
        }
    }
    assert_none_differ(&wrong);
    assert!(compared > 50_000 && later < 5_000, "{compared} {later}");
}

#[test]
fn a_sigma_at_a_words_end_is_that_of_python() {
    let words = [
        "ΑΣ",
        "ΑΣ.",
        "ΑΣΑ",
        "Σ",
        "Α'Σ'",
        "Α'Σ'Α",
        "ΑΣ ΑΣ",
        "aΣ\u{301}b",
        "ΣΣ",
    ];
    let methods = ["lower", "capitalize", "title", "swapcase", "casefold"];
    let lines = methods
        .map(|method| format!("{{% for word in words %}}{{{{ word.{method}() }}}};{{% endfor %}}"));
    let source = lines.concat();
    let Some(python) = common::python::interpreter("a_sigma_at_a_words_end_is_that_of_python")
    else {
        return;
    };
    let asked = json!([{"template": source, "context": {"words": words}}]);
    let expected = common::python::ask(&python, "render_templates.py", &asked);
    let mut chat = Chat::new(json!([]), None);
    chat.kwargs
        .insert("words".to_owned(), words.to_vec().into());
    let found = load_template(&source).unwrap().render(&chat).unwrap();
    assert_eq!(expected[0]["text"], found);
}
