//! Methods of Python's str, list and dict. Positions count characters, as in Python.

use minijinja::value::{Kwargs, ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat;

/// Calls `value.method(args)` for values that have no such method of their own.
pub fn call(state: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let result = match value.kind() {
        ValueKind::String => string(value.as_str().unwrap_or_default(), method, args)?,
        ValueKind::Seq | ValueKind::Iterable => list(value, method, args)?,
        _ => None,
    };
    match result {
        Some(result) => Ok(result),
        // dict's methods and str.format are the same there.
        None => pycompat::unknown_method_callback(state, value, method, args),
    }
}

fn list(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match method {
        "count" => {
            let (item,): (&Value,) = from_args(args)?;
            Value::from(value.try_iter()?.filter(|other| other == item).count())
        }
        "index" => {
            let (item,): (&Value,) = from_args(args)?;
            let position = value.try_iter()?.position(|other| other == *item);
            Value::from(position.ok_or_else(|| wrong("index: the item is not in the list"))?)
        }
        "copy" => {
            let () = from_args(args)?;
            value.try_iter()?.collect()
        }
        _ => return Ok(None),
    }))
}

fn string(s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if let Some(result) = changed(s, method, args)? {
        return Ok(Some(Value::from(result)));
    }
    if let Some(result) = pieces(s, method, args)? {
        return Ok(Some(Value::from(result)));
    }
    if let Some(holds) = holds(s, method) {
        let () = from_args(args)?;
        return Ok(Some(Value::from(holds)));
    }
    searched(s, method, args)
}

/// Methods that return a string.
fn changed(s: &str, method: &str, args: &[Value]) -> Result<Option<String>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let (chars,): (Option<&str>,) = from_args(args)?;
            let cut = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
            match method {
                "strip" => s.trim_matches(cut),
                "lstrip" => s.trim_start_matches(cut),
                _ => s.trim_end_matches(cut),
            }
            .to_owned()
        }
        "upper" | "lower" | "casefold" | "capitalize" | "title" | "swapcase" => {
            let () = from_args(args)?;
            recased(s, method)
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            s.strip_prefix(prefix).unwrap_or(s).to_owned()
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            s.strip_suffix(suffix).unwrap_or(s).to_owned()
        }
        "replace" => {
            let (old, new, count, named): (&str, &str, Option<i64>, Kwargs) = from_args(args)?;
            let count = count.or(named.get("count")?);
            named.assert_all_used()?;
            match count.map(usize::try_from) {
                Some(Ok(count)) => s.replacen(old, new, count),
                _ => s.replace(old, new),
            }
        }
        "join" => {
            let (items,): (&Value,) = from_args(args)?;
            let mut joined = String::new();
            for (i, item) in items.try_iter()?.enumerate() {
                let item = item.as_str().ok_or_else(|| {
                    wrong(&format!(
                        "join: item {i} is of type {}, expected a string",
                        item.kind()
                    ))
                })?;
                joined.push_str(if i > 0 { s } else { "" });
                joined.push_str(item);
            }
            joined
        }
        "ljust" | "rjust" | "center" | "zfill" => padded(s, method, args)?,
        _ => return Ok(None),
    }))
}

fn recased(s: &str, method: &str) -> String {
    match method {
        "upper" => s.to_uppercase(),
        "lower" | "casefold" => s.to_lowercase(),
        "capitalize" => {
            let mut chars = s.chars();
            chars.next().map_or(String::new(), |first| {
                first
                    .to_uppercase()
                    .chain(chars.as_str().to_lowercase().chars())
                    .collect()
            })
        }
        "swapcase" => s
            .chars()
            .flat_map(|c| match c.is_uppercase() {
                true => c.to_lowercase().collect::<Vec<_>>(),
                false => c.to_uppercase().collect(),
            })
            .collect(),
        // title: a letter after a letter is lower case, any other upper case.
        _ => {
            let mut after_letter = false;
            let mut out = String::with_capacity(s.len());
            for c in s.chars() {
                match after_letter {
                    true => out.extend(c.to_lowercase()),
                    false => out.extend(c.to_uppercase()),
                }
                after_letter = c.is_lowercase() || c.is_uppercase();
            }
            out
        }
    }
}

/// Wider than this no template needs; without a limit one line could ask for all memory.
const MAX_WIDTH: usize = 1 << 20;

fn padded(s: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    let (width, fill): (i64, Option<&str>) = from_args(args)?;
    let mut fill = fill.unwrap_or(" ").to_owned();
    if fill.chars().count() != 1 {
        return Err(wrong(&format!(
            "{method}: the fill is {fill:?}, expected one character"
        )));
    }
    let width = usize::try_from(width).unwrap_or(0);
    if width > MAX_WIDTH {
        return Err(wrong(&format!(
            "{method}: the width is {width}, expected at most {MAX_WIDTH}"
        )));
    }
    let missing = width.saturating_sub(s.chars().count());
    let (mut sign, mut s) = ("", s);
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        // CPython puts the odd one left where the width is odd.
        "center" => missing / 2 + (missing & width & 1),
        _ => {
            fill = "0".to_owned();
            (sign, s) = s.split_at(s.starts_with(['+', '-']).into());
            missing
        }
    };
    Ok([sign, &fill.repeat(left), s, &fill.repeat(missing - left)].concat())
}

/// Methods that return a list of strings (partition's is a tuple in Python; it prints differently only).
fn pieces(s: &str, method: &str, args: &[Value]) -> Result<Option<Vec<String>>, Error> {
    let parts: Vec<&str> = match method {
        "split" | "rsplit" => {
            let (separator, count, named): (Option<&str>, Option<i64>, Kwargs) = from_args(args)?;
            let separator = separator.or(named.get("sep")?);
            let count = count.or(named.get("maxsplit")?);
            named.assert_all_used()?;
            let count = count
                .and_then(|count| usize::try_from(count).ok())
                .unwrap_or(usize::MAX);
            let limit = count.saturating_add(1);
            match (separator, method) {
                (Some(""), _) => return Err(wrong(&format!("{method}: the separator is empty"))),
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
        "splitlines" => {
            let (keep, named): (Option<bool>, Kwargs) = from_args(args)?;
            let keep = keep.or(named.get("keepends")?).unwrap_or(false);
            named.assert_all_used()?;
            lines(s, keep)
        }
        "partition" | "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            if separator.is_empty() {
                return Err(wrong(&format!("{method}: the separator is empty")));
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

fn lines(s: &str, keep: bool) -> Vec<&str> {
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

/// Methods without arguments that say what a string consists of.
fn holds(s: &str, method: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| !s.is_empty() && s.chars().all(is);
    let cased =
        |is: fn(char) -> bool, other: fn(char) -> bool| s.chars().any(is) && !s.chars().any(other);
    Some(match method {
        "isspace" => all(is_space),
        // Python tells decimals, digits and numbers apart only beyond ASCII.
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric),
        "isalpha" => all(char::is_alphabetic),
        "isalnum" => all(char::is_alphanumeric),
        "isascii" => s.is_ascii(),
        "islower" => cased(char::is_lowercase, char::is_uppercase),
        "isupper" => cased(char::is_uppercase, char::is_lowercase),
        "istitle" => cased(char::is_uppercase, |_| false) && recased(s, "title") == s,
        _ => return None,
    })
}

/// Methods that look for a string inside another, optionally between two positions.
fn searched(s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if !matches!(
        method,
        "startswith" | "endswith" | "find" | "rfind" | "index" | "rindex" | "count"
    ) {
        return Ok(None);
    }
    let (what, start, end): (&Value, Option<i64>, Option<i64>) = from_args(args)?;
    let (s, offset) = window(s, start, end);
    if matches!(method, "startswith" | "endswith") {
        let one = |what: &Value| match (what.as_str(), method) {
            (Some(what), "startswith") => Ok(s.starts_with(what)),
            (Some(what), _) => Ok(s.ends_with(what)),
            (None, _) => Err(wrong(&format!(
                "{method}: found a value of type {}, expected a string or a tuple of strings",
                what.kind()
            ))),
        };
        let found = match what.kind() {
            ValueKind::Seq | ValueKind::Iterable => {
                let mut found = false;
                for what in what.try_iter()? {
                    found |= one(&what)?;
                }
                found
            }
            _ => one(what)?,
        };
        return Ok(Some(Value::from(found)));
    }
    let what = what.as_str().ok_or_else(|| {
        wrong(&format!(
            "{method}: found a value of type {}, expected a string",
            what.kind()
        ))
    })?;
    if method == "count" {
        return Ok(Some(Value::from(s.matches(what).count())));
    }
    let byte = match method {
        "find" | "index" => s.find(what),
        _ => s.rfind(what),
    };
    match byte {
        Some(byte) => Ok(Some(Value::from(offset + s[..byte].chars().count()))),
        None if method.ends_with("find") => Ok(Some(Value::from(-1))),
        None => Err(wrong(&format!(
            "{method}: the substring {what:?} is not in the string"
        ))),
    }
}

/// `s[start:end]` in characters, and how many come before it.
fn window(s: &str, start: Option<i64>, end: Option<i64>) -> (&str, usize) {
    if start.is_none() && end.is_none() {
        return (s, 0);
    }
    let length = s.chars().count();
    let clamp = |position: i64| match usize::try_from(position) {
        Ok(position) => position.min(length),
        Err(_) => length.saturating_sub(position.unsigned_abs() as usize),
    };
    let start = start.map_or(0, clamp);
    let end = end.map_or(length, clamp).max(start);
    let byte = |position| {
        s.char_indices()
            .nth(position)
            .map_or(s.len(), |(byte, _)| byte)
    };
    (&s[byte(start)..byte(end)], start)
}

/// Python's `str.isspace`, which also counts the four separators of ASCII.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{1c}'..='\u{1f}')
}

fn wrong(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
}
