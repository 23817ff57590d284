//! `wordwrap`, as Python's textwrap breaks lines.

use minijinja::{Error, Value};

use super::super::args::Bound;
use super::super::characters::is_space;
use super::super::value::{Type, type_of, wrong};
use super::super::{meter, methods};

struct Style {
    width: usize,
    break_long_words: bool,
    break_on_hyphens: bool,
}

/// Arguments: width, break_long_words, wrapstring, break_on_hyphens.
pub fn wordwrap(value: &Value, args: &Bound) -> Result<Value, Error> {
    if type_of(value) != Type::Str || value.is_safe() {
        return Err(wrong(
            "wordwrap: expected text that neither `escape` nor `safe` made",
        ));
    }
    let text = value.as_str().unwrap_or_default();
    let is_set = |at: usize| args.get(at).is_none_or(Value::is_true);
    let style = Style {
        width: usize::try_from(args.int(0, 79)?).unwrap_or(0),
        break_long_words: is_set(1),
        break_on_hyphens: is_set(3),
    };
    if style.width == 0 {
        return Err(args.unfit(0, "a width of at least 1"));
    }
    if style.break_on_hyphens && text.contains('-') && !text.is_ascii() {
        return Err(wrong(
            "wordwrap: hyphens in text beyond ASCII are not supported here: break_on_hyphens=false leaves them alone",
        ));
    }
    let end = args.text(2)?.unwrap_or("\n");
    let mut lines = Vec::new();
    for line in methods::lines(text, false) {
        meter::charge(line.len().saturating_mul(8))?;
        match wrapped(line, &style) {
            broken if broken.is_empty() => lines.push(String::new()),
            broken => lines.extend(broken),
        }
    }
    meter::charge(end.len().saturating_mul(lines.len()))?;
    Ok(Value::from(lines.join(end)))
}

fn is_blank(chunk: &[char]) -> bool {
    chunk.iter().all(|&c| is_space(c))
}

fn wrapped(line: &str, style: &Style) -> Vec<String> {
    let text: Vec<char> = line.chars().collect();
    let mut lines = Vec::new();
    // From the last to the first.
    let mut chunks = chunks(&text, style.break_on_hyphens);
    chunks.reverse();
    while let Some(&first) = chunks.last() {
        if is_blank(first) && !lines.is_empty() {
            chunks.pop();
        }
        let (mut current, mut length) = (Vec::new(), 0);
        while let Some(&chunk) = chunks.last()
            && length + chunk.len() <= style.width
        {
            chunks.pop();
            length += chunk.len();
            current.push(chunk);
        }
        if let Some(&long) = chunks.last()
            && long.len() > style.width
        {
            match (style.break_long_words, current.is_empty()) {
                (true, _) => {
                    let (start, rest) = long.split_at(break_at(long, style.width - length, style));
                    current.push(start);
                    chunks.pop();
                    chunks.push(rest);
                }
                (false, true) => {
                    chunks.pop();
                    current.push(long);
                }
                (false, false) => {}
            }
        }
        if current.last().is_some_and(|last| is_blank(last)) {
            current.pop();
        }
        if !current.is_empty() {
            lines.push(current.concat().into_iter().collect());
        }
    }
    lines
}

/// Where to break a word of which `room` characters fit: after its last hyphen among those, if it is not all hyphens.
fn break_at(word: &[char], room: usize, style: &Style) -> usize {
    let start = &word[..room];
    let hyphen = start.iter().rposition(|&c| c == '-');
    match hyphen.filter(|_| style.break_on_hyphens) {
        Some(hyphen) if start[..hyphen].iter().any(|&c| c != '-') => hyphen + 1,
        _ => room,
    }
}

/// Words and the space between them. A word may be broken behind a hyphen between letters, and before and behind dashes.
fn chunks(text: &[char], break_on_hyphens: bool) -> Vec<&[char]> {
    let is_separator = |c: char| matches!(c, '\t' | '\n' | '\u{b}' | '\u{c}' | '\r' | ' ');
    let mut chunks = Vec::new();
    let mut start = 0;
    while start < text.len() {
        let end = match is_separator(text[start]) {
            true => (start..text.len()).find(|&at| !is_separator(text[at])),
            false if break_on_hyphens && dashes_end(text, start).is_some() => {
                dashes_end(text, start)
            }
            false => (start + 1..text.len()).find_map(|at| {
                if break_on_hyphens && ends_in_hyphen(text, at) {
                    return Some(at + 1);
                }
                let ends =
                    is_separator(text[at]) || (break_on_hyphens && dashes_end(text, at).is_some());
                ends.then_some(at)
            }),
        };
        let end = end.unwrap_or(text.len());
        chunks.push(&text[start..end]);
        start = end;
    }
    chunks
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The end of two hyphens or more that begin at `at`, between words.
fn dashes_end(text: &[char], at: usize) -> Option<usize> {
    let before = *text.get(at.checked_sub(1)?)?;
    let follows_word = is_word(before) || "!\"'&.,?".contains(before);
    let end = (at..text.len()).find(|&end| text[end] != '-')?;
    (follows_word && end >= at + 2 && is_word(text[end])).then_some(end)
}

/// Whether there is a hyphen at `at` behind which a word may be broken: between two letters or more each.
fn ends_in_hyphen(text: &[char], at: usize) -> bool {
    let letter = |at: Option<usize>| {
        at.and_then(|at| text.get(at))
            .is_some_and(|&c| is_word(c) && !c.is_ascii_digit())
    };
    let before = |back: usize| at.checked_sub(back);
    let hyphen = |at: Option<usize>| at.and_then(|at| text.get(at)) == Some(&'-');
    let word_before =
        || before(1).is_some_and(|at| is_word(text[at]) || "!\"'&.,?".contains(text[at]));
    let behind = letter(before(1)) && letter(before(2))
        || letter(before(3)) && hyphen(before(2)) && word_before();
    let ahead = letter(Some(at + 1))
        && (letter(Some(at + 2)) || hyphen(Some(at + 2)) && letter(Some(at + 3)));
    text[at] == '-' && behind && ahead
}
