//! Attributes, items and slices, as the sandboxed environment of Jinja2 gives them.

use crate::quote;
use minijinja::{Error, ErrorKind, Value};

use super::meter;
use super::methods::names;
use super::value::numbers;
use super::value::{
    self, Key, Method, Namespace, Seq, SeqKind, Type, items_of, length, name, seq, type_of, wrong,
};

/// `object.attribute`: first what Python's type has, then an item of that name.
pub fn attribute(object: &Value, attribute: &str) -> Result<Value, Error> {
    if let Some(value) = own(object, attribute)? {
        return Ok(value);
    }
    Ok(match type_of(object) {
        Type::Dict => value::entry(object, &Key::Str(attribute.into())).unwrap_or_default(),
        _ => Value::UNDEFINED,
    })
}

/// `object[key]`: first an item, then, if the key is a string, what Python's type has of that name.
pub fn item(object: &Value, key: &Value) -> Result<Value, Error> {
    let found = match type_of(object) {
        Type::Undefined => return Err(undefined(&format!("[{}]", super::print::brief(key)))),
        // A list as a key is a TypeError there, which gives an undefined value.
        Type::Dict => Key::of(key).ok().and_then(|key| value::entry(object, &key)),
        Type::Str | Type::List | Type::Tuple | Type::Range => match type_of(key) {
            Type::Bool | Type::Int => at(object, numbers::int(key)?)?,
            _ => None,
        },
        _ => None,
    };
    match (found, key.as_str()) {
        (Some(value), _) => Ok(value),
        (None, Some(key)) => Ok(own(object, key)?.unwrap_or_default()),
        (None, None) => Ok(Value::UNDEFINED),
    }
}

fn undefined(what: &str) -> Error {
    Error::new(
        ErrorKind::UndefinedError,
        format!("found an undefined value, expected one that has {what}"),
    )
}

/// What an object's type has of this name; an undefined value where the sandbox forbids it.
fn own(object: &Value, attribute: &str) -> Result<Option<Value>, Error> {
    let kind = type_of(object);
    if kind == Type::Undefined {
        return Err(undefined(&format!("`{}`", quote::text(attribute))));
    }
    if let Some(namespace) = object.downcast_object_ref::<Namespace>() {
        return Ok(namespace.get(attribute));
    }
    if let Some(Seq {
        kind: SeqKind::Group,
        items,
        ..
    }) = object.downcast_object_ref::<Seq>()
    {
        match attribute {
            "grouper" => return Ok(items.first().cloned()),
            "list" => return Ok(items.get(1).cloned()),
            _ => {}
        }
    }
    if attribute.starts_with("__") && names::is_internal(attribute) {
        return Ok(Some(Value::UNDEFINED));
    }
    if names::is_mutating(kind, attribute) {
        return Ok(Some(Value::UNDEFINED));
    }
    if names::exists(kind, attribute) {
        return Ok(Some(Value::from_object(Method {
            of: object.clone(),
            name: attribute.to_owned(),
        })));
    }
    if kind == Type::Other {
        return object.get_attr(attribute).map(Some);
    }
    if names::is_rare(kind, attribute) {
        return Err(wrong(format!(
            "`{}` of a value of type '{}' is not supported here, though Python has it",
            quote::text(attribute),
            name(object)
        )));
    }
    Ok(None)
}

/// The item at a position, which counts from the end where it is negative.
fn at(object: &Value, position: i128) -> Result<Option<Value>, Error> {
    if let Some(items) = items_of(object) {
        let position = match position < 0 {
            true => position + items.len() as i128,
            false => position,
        };
        return Ok(usize::try_from(position)
            .ok()
            .and_then(|position| items.get(position))
            .cloned());
    }
    let text = object.as_str().unwrap_or_default();
    let found = match usize::try_from(position) {
        Ok(position) => text.chars().nth(position),
        Err(_) => usize::try_from(-(position + 1))
            .ok()
            .and_then(|position| text.chars().rev().nth(position)),
    };
    Ok(found.map(|c| like(object, c.to_string())))
}

/// Text cut from `object`: of what `escape` or `safe` made, Python's Markup, that is Markup too.
fn like(object: &Value, text: String) -> Value {
    match object.is_safe() {
        true => Value::from_safe_string(text),
        false => Value::from(text),
    }
}

/// `object[start:stop:step]`.
pub fn slice(object: &Value, [start, stop, step]: [&Value; 3]) -> Result<Value, Error> {
    let bound = |value: &Value| -> Result<Option<i128>, Error> {
        match type_of(value) {
            Type::None => Ok(None),
            Type::Bool | Type::Int => numbers::int(value).map(Some),
            _ => Err(wrong("slice indices must be integers or None")),
        }
    };
    let kind = match type_of(object) {
        Type::Undefined => return Err(undefined("a slice")),
        Type::Str => None,
        Type::List => Some(SeqKind::List),
        Type::Tuple => Some(SeqKind::Tuple),
        Type::Range => object.downcast_object_ref::<Seq>().map(|seq| seq.kind),
        _ => return Err(wrong(format!("'{}' object cannot be sliced", name(object)))),
    };
    let length = length(object)? as i128;
    let step = bound(step)?.unwrap_or(1);
    if step == 0 {
        return Err(wrong("slice step cannot be zero"));
    }
    let clamp = |position: i128, low: i128, high: i128| match position < 0 {
        true => position.saturating_add(length).max(low),
        false => position.min(high),
    };
    let (low, high, first, last) = match step > 0 {
        true => (0, length, 0, length),
        false => (-1, length - 1, length - 1, -1),
    };
    let from = bound(start)?.map_or(first, |start| clamp(start, low, high));
    let end = bound(stop)?.map_or(last, |stop| clamp(stop, low, high));
    let mut position = from;
    let mut positions = Vec::new();
    if step == 1 && kind.is_none() {
        let text = object.as_str().unwrap_or_default();
        meter::charge(text.len())?;
        let count = usize::try_from(end - position).unwrap_or(0);
        let chars = text.chars().skip(usize::try_from(position).unwrap_or(0));
        return Ok(like(object, chars.take(count).collect()));
    }
    meter::charge_items(usize::try_from(length).unwrap_or(0))?;
    while (step > 0 && position < end) || (step < 0 && position > end) {
        positions.push(usize::try_from(position).unwrap_or(0));
        position = position.saturating_add(step);
    }
    match kind {
        Some(mut kind) => {
            let items = items_of(object).unwrap_or_default();
            if let SeqKind::Range {
                start: first,
                stop,
                step: each,
            } = &mut kind
            {
                let at =
                    |position: i128| saturated(i128::from(*first) + position * i128::from(*each));
                (*first, *stop, *each) = (
                    at(from),
                    at(end),
                    saturated(step.saturating_mul((*each).into())),
                );
            }
            seq(
                kind,
                positions.iter().map(|&at| items[at].clone()).collect(),
            )
        }
        None => {
            let chars: Vec<char> = object.as_str().unwrap_or_default().chars().collect();
            Ok(like(
                object,
                positions.iter().map(|&at| chars[at]).collect(),
            ))
        }
    }
}

/// A bound of a range. A range has at most 100,000 items, so that only one of none can have such bounds.
fn saturated(bound: i128) -> i64 {
    i64::try_from(bound).unwrap_or(if bound < 0 { i64::MIN } else { i64::MAX })
}
