//! Methods of Python's str, dict, list and tuple. Positions count characters, as in Python.
//!
//! - `changed`: those of a str that return another
//! - `pieces`: those that take it apart
//! - `search`: those that look for one in another

mod changed;
mod pieces;
mod search;

use crate::quote;
use minijinja::{Error, State, Value};

use super::args::{self, bind};
use super::characters::holds;
use super::value::{Dict, Key, SeqKind, Type, items_of, list, name, seq, tuple, type_of, wrong};
use super::{format, meter, ops};
pub use changed::{centered, replaced};
pub use pieces::lines;

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
            "a value of type '{}' has no method `{}`",
            name(value),
            quote::text(method)
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
    if let Some(result) = changed::changed(s, method, args)? {
        return Ok(Some(Value::from(result)));
    }
    if let Some(parts) = pieces::pieces(s, method, args)? {
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
    search::searched(s, method, args)
}
