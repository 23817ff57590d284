//! Methods of Python's str, dict, list and tuple. Positions count characters, as in Python.
//!
//! - `changed`: those of a str that return another
//! - `pieces`: those that take it apart
//! - `names`: which there are
//! - `search`: those that look for one in another

mod changed;
pub mod names;
mod pieces;
mod search;

use std::sync::Arc;

use crate::quote;
use minijinja::value::{Object, ObjectRepr};
use minijinja::{Error, State, Value};

use super::args::{self, bind};
use super::characters::holds;
use super::value::{
    Dict, Key, Method, SeqKind, Type, items_of, list, name, seq, tuple, type_of, wrong,
};
use super::{access, compare, format, meter};
pub use changed::{centered, replaced};
pub use pieces::lines;

impl Object for Method {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn call(self: &Arc<Self>, _: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        call(&self.of, &self.name, args)
    }
}

/// `object.method(arguments)`, which may be an attribute that can be called.
///
/// # Errors
/// The object has no such method, or it fails.
pub fn call_on(
    state: &State,
    object: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let kind = type_of(object);
    if names::exists(kind, method) && !names::is_mutating(kind, method) {
        return call(object, method, args);
    }
    if kind == Type::Other {
        if method == "cycle" && args.is_empty() {
            return Err(wrong("cycle: no items for cycling given"));
        }
        // A loop's or a cycler's own.
        return object.call_method(state, method, args);
    }
    match access::attribute(object, method)? {
        value if value.is_undefined() => Err(wrong(match names::is_mutating(kind, method) {
            true => format!(
                "`{}` would change a value of type '{}': templates may not, as in transformers",
                quote::text(method),
                name(object)
            ),
            false => format!(
                "a value of type '{}' has no method `{}`",
                name(object),
                quote::text(method)
            ),
        })),
        value => value.call(state, args),
    }
}

/// Calls `value.method(args)`.
///
/// # Errors
/// The value has no such method, or the method fails.
fn call(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
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
                count += i64::from(compare::equal(item, args.required(0)?)?);
            }
            Value::from(count)
        }
        "index" => {
            let args = bind("index", &["value"], args)?;
            for (at, item) in items.iter().enumerate() {
                if compare::equal(item, args.required(0)?)? {
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
