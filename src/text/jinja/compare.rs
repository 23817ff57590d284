//! Python's comparisons: `==`, the orders, `in`.

use std::cmp::Ordering;

use minijinja::{Error, Value};

use super::value::numbers::{float, int, is_int, is_number};
use super::value::{self, Dict, Key, Type, items_of, name, type_of, wrong};

/// One comparison, by its spelling in a template.
pub fn holds(operator: &str, a: &Value, b: &Value) -> Result<bool, Error> {
    let ordered = |accepts: fn(Ordering) -> bool| Ok(order(operator, a, b)?.is_some_and(accepts));
    match operator {
        "==" => equal(a, b),
        "!=" => Ok(!equal(a, b)?),
        "<" => ordered(Ordering::is_lt),
        "<=" => ordered(Ordering::is_le),
        ">" => ordered(Ordering::is_gt),
        ">=" => ordered(Ordering::is_ge),
        "in" => contains(b, a),
        _ => Ok(!contains(b, a)?),
    }
}

/// Python's `==`.
pub fn equal(a: &Value, b: &Value) -> Result<bool, Error> {
    use Type::{Bool, Dict, Float, Int, List, None, Range, Str, Tuple, Undefined, View};
    Ok(match (type_of(a), type_of(b)) {
        (Undefined, Undefined) | (None, None) => true,
        (Bool | Int, Bool | Int) => int(a)? == int(b)?,
        (Bool | Int | Float, Bool | Int | Float) => number_order(a, b)? == Some(Ordering::Equal),
        (Str, Str) => a.as_str() == b.as_str(),
        (List, List) | (Tuple, Tuple) | (Range, Range) => {
            let (a, b) = (
                items_of(a).unwrap_or_default(),
                items_of(b).unwrap_or_default(),
            );
            a.len() == b.len() && all(a.iter().zip(b), |(a, b)| equal(a, b))?
        }
        (Dict, Dict) => match (
            a.downcast_object_ref::<value::Dict>(),
            b.downcast_object_ref::<value::Dict>(),
        ) {
            (Some(a), Some(b)) => a.len() == b.len() && dicts_equal(a, b)?,
            _ => false,
        },
        (View, View) => {
            return Err(wrong(
                "comparing views of dicts is not supported here: compare lists",
            ));
        }
        _ => value::address(a) != 0 && value::address(a) == value::address(b),
    })
}

fn dicts_equal(a: &Dict, b: &Dict) -> Result<bool, Error> {
    all(a.iter(), |(key, value)| match b.get(&Key::of(key)?) {
        Some(other) => equal(value, other),
        None => Ok(false),
    })
}

fn all<T>(
    items: impl Iterator<Item = T>,
    mut holds: impl FnMut(T) -> Result<bool, Error>,
) -> Result<bool, Error> {
    for item in items {
        if !holds(item)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn number_order(a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    Ok(match is_int(a) && is_int(b) {
        true => Some(int(a)?.cmp(&int(b)?)),
        false => float(a)?.partial_cmp(&float(b)?),
    })
}

/// The order of two values; `None` where one is not a number. `operator` is for the message.
pub fn order(operator: &str, a: &Value, b: &Value) -> Result<Option<Ordering>, Error> {
    use Type::{List, Str, Tuple};
    match (type_of(a), type_of(b)) {
        _ if is_number(a) && is_number(b) => number_order(a, b),
        (Str, Str) => Ok(Some(a.as_str().cmp(&b.as_str()))),
        (List, List) | (Tuple, Tuple) => {
            let (a, b) = (
                items_of(a).unwrap_or_default(),
                items_of(b).unwrap_or_default(),
            );
            for (a, b) in a.iter().zip(b) {
                if !equal(a, b)? {
                    return order(operator, a, b);
                }
            }
            Ok(Some(a.len().cmp(&b.len())))
        }
        _ if a.is_undefined() || b.is_undefined() => {
            Err(wrong(format!("operand of {operator} is undefined")))
        }
        _ => Err(wrong(format!(
            "'{operator}' not supported between instances of '{}' and '{}'",
            name(a),
            name(b)
        ))),
    }
}

/// Python's `item in container`.
pub fn contains(container: &Value, item: &Value) -> Result<bool, Error> {
    match type_of(container) {
        Type::Str => match item.as_str().filter(|_| type_of(item) == Type::Str) {
            Some(item) => {
                let text = container.as_str().unwrap_or_default();
                Ok(text.contains(item))
            }
            None => Err(wrong(format!(
                "'in <string>' requires string as left operand, not {}",
                name(item)
            ))),
        },
        Type::Dict => Ok(value::entry(container, &Key::of(item)?).is_some()),
        Type::Undefined => Ok(false),
        Type::Generator => {
            let generator = container.downcast_object_ref::<value::Generator>();
            while let Some(other) = generator.and_then(value::Generator::next) {
                if equal(&other, item)? {
                    return Ok(true);
                }
            }
            Ok(false)
        }
        _ => match items_of(container) {
            Some(items) => {
                for other in items {
                    if equal(other, item)? {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            None => Err(wrong(format!(
                "argument of type '{}' is not iterable",
                name(container)
            ))),
        },
    }
}
