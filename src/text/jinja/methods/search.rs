//! Methods of a str that look for another in it.

use minijinja::{Error, Value};

use crate::text::jinja::args::bind;
use crate::text::jinja::value::numbers;
use crate::text::jinja::value::{Type, items_of, name, type_of, wrong};

/// Methods that look for a string inside another, optionally between two positions.
pub fn searched(s: &str, method: &str, args: &[Value]) -> Result<Option<Value>, Error> {
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
            Some(value) => Ok(Some(
                i64::try_from(numbers::int(value)?).unwrap_or(i64::MAX),
            )),
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
