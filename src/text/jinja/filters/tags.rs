//! `striptags`, as markupsafe has it: text without tags and comments, its space collapsed, its character references read.

use minijinja::{Error, Value};

use super::super::args::Bound;
use super::super::characters::is_space;
use super::super::value::wrong;
use super::super::{meter, print};

pub fn striptags(value: &Value, _: &Bound) -> Result<Value, Error> {
    let text = print::str(value)?;
    meter::charge(text.len().saturating_mul(4))?;
    let stripped = without_tags(&text);
    let words = stripped.split(is_space).filter(|word| !word.is_empty());
    let text = words.collect::<Vec<_>>().join(" ");
    unescaped(&text).map(Value::from)
}

fn without_tags(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let (open, close) = match rest[start..].starts_with("<!--") {
            true => (4, "-->"),
            false => (1, ">"),
        };
        let within = start + open;
        let Some(length) = rest[within..].find(close) else {
            break;
        };
        out.push_str(&rest[..start]);
        rest = &rest[within + length + close.len()..];
    }
    out + rest
}

/// Character references: of the names that HTML has, those that templates use.
fn unescaped(text: &str) -> Result<String, Error> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let is_reference = rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '#');
        if !is_reference {
            out.push('&');
            continue;
        }
        let unknown = || {
            let start: String = rest.chars().take(12).collect();
            wrong(format!(
                "striptags: the reference `&{start}` is not supported here, but for amp, lt, gt, quot, apos, nbsp and numbers, each with its semicolon"
            ))
        };
        let (name, after) = rest.split_once(';').ok_or_else(unknown)?;
        out.push(reference(name).ok_or_else(unknown)?);
        rest = after;
    }
    Ok(out + rest)
}

fn reference(name: &str) -> Option<char> {
    Some(match name {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => '\u{a0}',
        number => {
            let number = number.strip_prefix('#')?;
            let (digits, radix) = match number.strip_prefix(['x', 'X']) {
                Some(digits) => (digits, 16),
                None => (number, 10),
            };
            let all_digits = digits.chars().all(|c| c.is_digit(radix));
            let code = u32::from_str_radix(digits, radix).ok()?;
            // Others stand for something else, or for nothing.
            let stands_for_itself = matches!(code, 0x20..=0x7e | 0xa0..=0xd7ff | 0xe000..=0xfdcf);
            char::from_u32(code).filter(|_| all_digits && stands_for_itself)?
        }
    })
}
