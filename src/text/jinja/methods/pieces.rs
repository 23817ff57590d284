//! Methods of a str that take it apart.

use minijinja::{Error, Value};

use crate::text::jinja::args::bind;
use crate::text::jinja::characters::is_space;
use crate::text::jinja::meter;
use crate::text::jinja::value::wrong;

/// Methods that return a list or tuple of strings.
pub fn pieces(s: &str, method: &str, args: &[Value]) -> Result<Option<Vec<String>>, Error> {
    let bound;
    let parts: Vec<&str> = match method {
        "split" | "rsplit" => {
            bound = bind("split", &["sep", "maxsplit"], args)?;
            let separator = bound.text(0)?;
            let count = usize::try_from(bound.int(1, -1)?).unwrap_or(usize::MAX);
            let limit = count.saturating_add(1);
            match (separator, method) {
                (Some(""), _) => return Err(wrong(format!("{method}: the separator is empty"))),
                (Some(separator), "split") => s.splitn(limit, separator).collect(),
                (Some(separator), _) => {
                    let mut parts: Vec<_> = s.rsplitn(limit, separator).collect();
                    parts.reverse();
                    parts
                }
                (None, "split") => words(s, count),
                (None, _) => words_from_end(s, count),
            }
        }
        "splitlines" => lines(s, bind("splitlines", &["keepends"], args)?.truth(0)),
        "partition" | "rpartition" => {
            bound = bind("partition", &["sep"], args)?;
            let separator = bound.required_text(0)?;
            if separator.is_empty() {
                return Err(wrong(format!("{method}: the separator is empty")));
            }
            let split = match method {
                "partition" => s.split_once(separator),
                _ => s.rsplit_once(separator),
            };
            match (split, method) {
                (Some((before, after)), _) => vec![before, separator, after],
                (None, "partition") => vec![s, "", ""],
                (None, _) => vec!["", "", s],
            }
        }
        _ => return Ok(None),
    };
    meter::charge_items(parts.len())?;
    Ok(Some(parts.into_iter().map(str::to_owned).collect()))
}

/// `split()`: at runs of spaces, at most `count` times.
fn words(s: &str, count: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = s.trim_start_matches(is_space);
    while !rest.is_empty() {
        let end = match parts.len() < count {
            true => rest.find(is_space).unwrap_or(rest.len()),
            false => rest.len(),
        };
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(is_space);
    }
    parts
}

fn words_from_end(s: &str, count: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = s.trim_end_matches(is_space);
    while !rest.is_empty() {
        let space = rest.char_indices().rev().find(|&(_, c)| is_space(c));
        let start = match space {
            Some((i, c)) if parts.len() < count => i + c.len_utf8(),
            _ => 0,
        };
        parts.push(&rest[start..]);
        rest = rest[..start].trim_end_matches(is_space);
    }
    parts.reverse();
    parts
}

pub fn lines(s: &str, keep: bool) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = s;
    let is_end = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'
                ..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    while let Some(end) = rest.find(is_end) {
        let ending = match rest[end..].starts_with("\r\n") {
            true => 2,
            false => rest[end..].chars().next().map_or(0, char::len_utf8),
        };
        parts.push(&rest[..end + if keep { ending } else { 0 }]);
        rest = &rest[end + ending..];
    }
    if !rest.is_empty() {
        parts.push(rest);
    }
    parts
}
