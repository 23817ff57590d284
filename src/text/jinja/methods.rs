//! Methods of Python's str, dict, list and tuple. Positions count characters, as in Python.

use minijinja::{Error, State, Value};

use super::args::{self, bind};
use super::value::{
    Dict, Key, SeqKind, Type, items_of, iterate, list, name, seq, tuple, type_of, wrong,
};
use super::{format, meter, ops};

const STRING: [&str; 41] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "title",
];
const MORE_STRING: [&str; 3] = ["swapcase", "upper", "zfill"];
const DICT: [&str; 5] = ["copy", "get", "items", "keys", "values"];
const MUTATING_DICT: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
const MUTATING_LIST: [&str; 8] = [
    "append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort",
];

/// Whether a value of this type has such a method, and we too.
pub fn exists(kind: Type, name: &str) -> bool {
    match kind {
        Type::Str => STRING.contains(&name) || MORE_STRING.contains(&name),
        Type::Dict => DICT.contains(&name),
        Type::List => matches!(name, "copy" | "count" | "index"),
        Type::Tuple | Type::Range => matches!(name, "count" | "index"),
        _ => false,
    }
}

/// Methods that would change a value: the sandbox of transformers shows them as undefined.
pub fn is_mutating(kind: Type, name: &str) -> bool {
    match kind {
        Type::Dict => MUTATING_DICT.contains(&name),
        Type::List => MUTATING_LIST.contains(&name),
        _ => false,
    }
}

/// What Python's types have beside these, and no template needs.
pub fn is_rare(kind: Type, name: &str) -> bool {
    match kind {
        Type::Str => matches!(name, "encode" | "maketrans" | "translate"),
        Type::Dict => name == "fromkeys",
        Type::Int | Type::Bool => matches!(
            name,
            "as_integer_ratio"
                | "bit_count"
                | "bit_length"
                | "conjugate"
                | "denominator"
                | "from_bytes"
                | "imag"
                | "numerator"
                | "real"
                | "to_bytes"
        ),
        Type::Float => matches!(
            name,
            "as_integer_ratio" | "conjugate" | "fromhex" | "hex" | "imag" | "is_integer" | "real"
        ),
        Type::View => matches!(name, "isdisjoint" | "mapping"),
        Type::Range => matches!(name, "start" | "step" | "stop"),
        Type::Generator => matches!(name, "close" | "send" | "throw"),
        _ => false,
    }
}

/// Python's own attributes, `__class__` and the like: the sandbox shows them as undefined.
pub fn is_internal(name: &str) -> bool {
    name.starts_with("__") && name.ends_with("__")
}

/// Calls `value.method(args)`.
///
/// # Errors
/// The value has no such method, or the method fails.
pub fn call(_: &State, value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    let kind = type_of(value);
    let result = match kind {
        Type::Str if value.is_safe() && !args.is_empty() => {
            return Err(wrong(format!(
                "{method} of text that `escape` or `safe` made is not supported here"
            )));
        }
        Type::Str if method == "format" => return format::braces(value, args),
        Type::Str if method == "format_map" => {
            return format::map(value, bind("format_map", &["mapping"], args)?.required(0)?);
        }
        Type::Str => {
            let text = value.as_str().unwrap_or_default();
            meter::charge(text.len())?;
            string(text, method, args)?
        }
        Type::Dict => dict(value, method, args)?,
        Type::List | Type::Tuple | Type::Range => list_method(value, method, args)?,
        _ => None,
    };
    let result = result.ok_or_else(|| {
        wrong(format!(
            "a value of type '{}' has no method `{method}`",
            name(value)
        ))
    })?;
    match (value.is_safe(), type_of(&result)) {
        (true, Type::Str) => Ok(Value::from_safe_string(
            result.as_str().unwrap_or_default().to_owned(),
        )),
        (true, Type::List | Type::Tuple) => Err(wrong(format!(
            "{method} of text that `escape` or `safe` made is not supported here"
        ))),
        _ => Ok(result),
    }
}

fn dict(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let Some(dict) = value.downcast_object_ref::<Dict>() else {
        return Err(wrong("methods of keyword arguments are not supported here"));
    };
    meter::charge_items(dict.len())?;
    Ok(Some(match method {
        "get" => {
            let (positional, named) = args::split(args)?;
            match (positional, named) {
                ([key], None) => dict.get(&Key::of(key)?).cloned().unwrap_or(Value::from(())),
                ([key, other], None) => dict.get(&Key::of(key)?).unwrap_or(other).clone(),
                _ => return Err(wrong("get: expected one or two arguments, without names")),
            }
        }
        "keys" => {
            bind("keys", &[], args)?;
            seq(
                SeqKind::Keys,
                dict.iter().map(|(key, _)| key.clone()).collect(),
            )?
        }
        "values" => {
            bind("values", &[], args)?;
            seq(
                SeqKind::Values,
                dict.iter().map(|(_, value)| value.clone()).collect(),
            )?
        }
        "items" => {
            bind("items", &[], args)?;
            seq(SeqKind::Items, pairs(dict)?)?
        }
        "copy" => {
            bind("copy", &[], args)?;
            value.clone()
        }
        _ => return Ok(None),
    }))
}

/// A dict's pairs as tuples.
pub fn pairs(dict: &Dict) -> Result<Vec<Value>, Error> {
    dict.iter()
        .map(|(key, value)| tuple(vec![key.clone(), value.clone()]))
        .collect()
}

fn list_method(value: &Value, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let items = items_of(value).unwrap_or_default();
    Ok(Some(match method {
        "count" => {
            let args = bind("count", &["value"], args)?;
            let mut count = 0i64;
            for item in items {
                count += i64::from(ops::equal(item, args.required(0)?)?);
            }
            Value::from(count)
        }
        "index" => {
            let args = bind("index", &["value"], args)?;
            for (at, item) in items.iter().enumerate() {
                if ops::equal(item, args.required(0)?)? {
                    return Ok(Some(Value::from(at)));
                }
            }
            return Err(wrong("index: the item is not in the list"));
        }
        "copy" => {
            bind("copy", &[], args)?;
            list(items.to_vec())?
        }
        _ => return Ok(None),
    }))
}

fn string(s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    if let Some(result) = changed(s, method, args)? {
        return Ok(Some(Value::from(result)));
    }
    if let Some(parts) = pieces(s, method, args)? {
        let parts: Vec<Value> = parts.into_iter().map(Value::from).collect();
        return Ok(Some(match method {
            "partition" | "rpartition" => tuple(parts)?,
            _ => list(parts)?,
        }));
    }
    if let Some(holds) = holds(s, method) {
        bind("the method", &[], args)?;
        return Ok(Some(Value::from(holds)));
    }
    searched(s, method, args)
}

/// Methods that return a string.
fn changed(s: &str, method: &str, args: &[Value]) -> Result<Option<String>, Error> {
    Ok(Some(match method {
        "strip" | "lstrip" | "rstrip" => {
            let args = bind("strip", &["chars"], args)?;
            let chars = args.text(0)?;
            let cut = |c: char| chars.map_or_else(|| is_space(c), |chars| chars.contains(c));
            match method {
                "strip" => s.trim_matches(cut),
                "lstrip" => s.trim_start_matches(cut),
                _ => s.trim_end_matches(cut),
            }
            .to_owned()
        }
        "upper" | "lower" | "casefold" | "capitalize" | "title" | "swapcase" => {
            bind("the method", &[], args)?;
            recased(s, method)
        }
        "removeprefix" => {
            let args = bind("removeprefix", &["prefix"], args)?;
            s.strip_prefix(args.required_text(0)?)
                .unwrap_or(s)
                .to_owned()
        }
        "removesuffix" => {
            let args = bind("removesuffix", &["suffix"], args)?;
            s.strip_suffix(args.required_text(0)?)
                .unwrap_or(s)
                .to_owned()
        }
        "replace" => {
            // Only Python 3.13 takes `count` by name.
            let args = bind("replace", &["old", "new", "count"], args)?;
            replaced(
                s,
                args.required_text(0)?,
                args.required_text(1)?,
                args.int(2, -1)?,
            )?
        }
        "join" => {
            let args = bind("join", &["iterable"], args)?;
            joined(s, &iterate(args.required(0)?)?)?
        }
        "expandtabs" => expanded(s, bind("expandtabs", &["tabsize"], args)?.int(0, 8)?)?,
        "ljust" | "rjust" | "center" | "zfill" => padded(s, method, args)?,
        _ => return Ok(None),
    }))
}

fn joined(separator: &str, items: &[Value]) -> Result<String, Error> {
    let mut joined = String::new();
    for (i, item) in items.iter().enumerate() {
        let text = item
            .as_str()
            .filter(|_| type_of(item) == Type::Str)
            .ok_or_else(|| {
                wrong(format!(
                    "sequence item {i}: expected str instance, {} found",
                    name(item)
                ))
            })?;
        meter::charge(text.len() + separator.len())?;
        joined.push_str(if i > 0 { separator } else { "" });
        joined.push_str(text);
    }
    Ok(joined)
}

/// `text.replace(old, new, count)`; a negative count is no limit.
pub fn replaced(text: &str, old: &str, new: &str, count: i128) -> Result<String, Error> {
    let limit = usize::try_from(count).unwrap_or(usize::MAX);
    let found = text.matches(old).count().min(limit);
    meter::charge(text.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(text.replacen(old, new, limit))
}

fn expanded(text: &str, size: i128) -> Result<String, Error> {
    let size = usize::try_from(size).unwrap_or(0);
    meter::charge(text.matches('\t').count().saturating_mul(size))?;
    let (mut out, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = if size == 0 { 0 } else { size - column % size };
                out.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            '\n' | '\r' => {
                out.push(c);
                column = 0;
            }
            c => {
                out.push(c);
                column += 1;
            }
        }
    }
    Ok(out)
}

pub fn recased(s: &str, method: &str) -> String {
    match method {
        "upper" => s.to_uppercase(),
        "lower" => s.to_lowercase(),
        // Only the German sharp s is common among what folds to something else.
        "casefold" => s.to_lowercase().replace('ß', "ss"),
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

fn padded(s: &str, method: &str, args: &[Value]) -> Result<String, Error> {
    let args = bind("the method", &["width", "fillchar"], args)?;
    args.required(0)?;
    let width = usize::try_from(args.int(0, 0)?).unwrap_or(0);
    let mut fill = args.text(1)?.unwrap_or(" ").to_owned();
    if fill.chars().count() != 1 {
        return Err(args.unfit(1, "one character"));
    }
    let missing = width.saturating_sub(s.chars().count());
    meter::charge(missing.saturating_mul(fill.len()))?;
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

/// `text.center(width)`.
pub fn centered(text: &str, width: i128) -> Result<String, Error> {
    padded(text, "center", &[ops::from_int(width)])
}

/// Methods that return a list or tuple of strings.
fn pieces(s: &str, method: &str, args: &[Value]) -> Result<Option<Vec<String>>, Error> {
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

/// Methods without arguments that say what a string consists of.
pub fn holds(s: &str, method: &str) -> Option<bool> {
    let all = |is: fn(char) -> bool| !s.is_empty() && s.chars().all(is);
    let cased =
        |is: fn(char) -> bool, other: fn(char) -> bool| s.chars().any(is) && !s.chars().any(other);
    Some(match method {
        "isspace" => all(is_space),
        // Python tells decimals, digits and numbers apart only beyond ASCII.
        "isdigit" | "isdecimal" | "isnumeric" => all(char::is_numeric),
        "isprintable" => s.chars().all(super::print::is_printable),
        "isidentifier" => {
            let first = |c: char| c == '_' || c.is_alphabetic();
            s.chars().next().is_some_and(first)
                && s.chars().all(|c| first(c) || c.is_alphanumeric())
        }
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
    let args = bind("the method", &["sub", "start", "end"], args)?;
    let bound = |at: usize| -> Result<Option<i64>, Error> {
        match args.some(at) {
            None => Ok(None),
            Some(value) => Ok(Some(i64::try_from(ops::int(value)?).unwrap_or(i64::MAX))),
        }
    };
    let what = args.required(0)?;
    let whole = s.chars().count();
    if bound(1)?.is_some_and(|start| start > whole as i64) {
        // Past the end not even the empty string is found.
        return match method {
            "startswith" | "endswith" => Ok(Some(Value::from(false))),
            "count" => Ok(Some(Value::from(0))),
            "find" | "rfind" => Ok(Some(Value::from(-1))),
            _ => Err(wrong(format!(
                "{method}: the substring is not in the string"
            ))),
        };
    }
    let (s, offset) = window(s, bound(1)?, bound(2)?);
    let unfit = |what: &Value, expected: &str| {
        wrong(format!(
            "{method}: found a value of type '{}', expected {expected}",
            name(what)
        ))
    };
    if matches!(method, "startswith" | "endswith") {
        let one = |what: &Value| match (what.as_str(), method) {
            (Some(what), "startswith") => Ok(s.starts_with(what)),
            (Some(what), _) => Ok(s.ends_with(what)),
            (None, _) => Err(unfit(what, "a string or a tuple of strings")),
        };
        let found = match (type_of(what), items_of(what)) {
            (Type::Tuple, Some(items)) => {
                let mut found = false;
                for what in items {
                    found = found || one(what)?;
                }
                found
            }
            _ => one(what)?,
        };
        return Ok(Some(Value::from(found)));
    }
    let what = what.as_str().ok_or_else(|| unfit(what, "a string"))?;
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
        None => Err(wrong(format!(
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
