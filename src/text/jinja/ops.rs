//! Python's operators. `rewrite` turns those of a template into filters of these names, which no template can
//! spell: `{{ a + b }}` becomes a filter `+` of a with the argument b.

use std::cmp::Ordering;

use minijinja::{Error, Value};

use super::value::{
    self, Dict, Key, SeqKind, Type, items_of, list, name, seq, tuple, type_of, wrong,
};
use super::{access, format, meter, print};

/// # Errors
/// `value` is no integer.
pub fn int(value: &Value) -> Result<i128, Error> {
    match type_of(value) {
        Type::Bool => Ok(i128::from(value.is_true())),
        Type::Int => i128::try_from(value.clone()).map_err(|_| overflow()),
        _ => Err(wrong(format!(
            "'{}' object cannot be interpreted as an integer",
            name(value)
        ))),
    }
}

/// # Errors
/// `value` is no number.
pub fn float(value: &Value) -> Result<f64, Error> {
    match type_of(value) {
        Type::Bool | Type::Int => Ok(int(value)? as f64),
        Type::Float => f64::try_from(value.clone()),
        _ => Err(wrong(format!("must be real number, not {}", name(value)))),
    }
}

/// Python's integers have no end; ours have 128 bits.
fn overflow() -> Error {
    wrong("an integer of more than 128 bits: not supported here, though Python has them")
}

pub fn from_int(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| Value::from(value), Value::from)
}

fn is_int(value: &Value) -> bool {
    matches!(type_of(value), Type::Bool | Type::Int)
}

pub fn is_number(value: &Value) -> bool {
    matches!(type_of(value), Type::Bool | Type::Int | Type::Float)
}

fn unsupported(operator: &str, a: &Value, b: &Value) -> Error {
    match [a, b].iter().any(|value| value.is_undefined()) {
        true => wrong(format!("operand of {operator} is undefined")),
        false => wrong(format!(
            "unsupported operand type(s) for {operator}: '{}' and '{}'",
            name(a),
            name(b)
        )),
    }
}

pub fn binary(operator: &'static str, a: &Value, b: &Value) -> Result<Value, Error> {
    match operator {
        "~" => text(&[print::str(a)?.as_ref(), print::str(b)?.as_ref()]),
        "+" if type_of(a) == Type::Str && type_of(b) == Type::Str => join(a, b),
        "+" if type_of(a) == Type::List && type_of(b) == Type::List => list(chain(a, b)?),
        "+" if type_of(a) == Type::Tuple && type_of(b) == Type::Tuple => tuple(chain(a, b)?),
        "*" if is_int(b) && is_sequence(a) => repeat(a, int(b)?),
        "*" if is_int(a) && is_sequence(b) => repeat(b, int(a)?),
        "%" if type_of(a) == Type::Str => format::percent(a, b),
        _ if is_int(a) && is_int(b) => integers(operator, int(a)?, int(b)?),
        _ if is_number(a) && is_number(b) => floats(operator, float(a)?, float(b)?),
        _ => Err(unsupported(operator, a, b)),
    }
}

fn text(parts: &[&str]) -> Result<Value, Error> {
    meter::charge(parts.iter().map(|part| part.len()).sum())?;
    Ok(Value::from(parts.concat()))
}

/// `+` of strings. What `escape` and `safe` return is Markup in Python, which escapes what it is joined with.
fn join(a: &Value, b: &Value) -> Result<Value, Error> {
    let (x, y) = (
        a.as_str().unwrap_or_default(),
        b.as_str().unwrap_or_default(),
    );
    if !a.is_safe() && !b.is_safe() {
        return text(&[x, y]);
    }
    meter::charge(6 * (x.len() + y.len()))?;
    let escaped = |value: &Value, text: &str| match value.is_safe() {
        true => text.to_owned(),
        false => print::escape(text),
    };
    Ok(Value::from_safe_string(escaped(a, x) + &escaped(b, y)))
}

fn chain(a: &Value, b: &Value) -> Result<Vec<Value>, Error> {
    let (a, b) = (
        items_of(a).unwrap_or_default(),
        items_of(b).unwrap_or_default(),
    );
    meter::charge_items(a.len() + b.len())?;
    Ok([a, b].concat())
}

fn is_sequence(value: &Value) -> bool {
    matches!(type_of(value), Type::Str | Type::List | Type::Tuple)
}

fn repeat(value: &Value, count: i128) -> Result<Value, Error> {
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    match items_of(value) {
        Some(items) => {
            meter::charge_items(items.len().saturating_mul(count))?;
            let kind = match type_of(value) {
                Type::List => SeqKind::List,
                _ => SeqKind::Tuple,
            };
            seq(
                kind,
                std::iter::repeat_n(items, count)
                    .flatten()
                    .cloned()
                    .collect(),
            )
        }
        None => {
            let text = value.as_str().unwrap_or_default();
            meter::charge(text.len().saturating_mul(count))?;
            // An empty text may be repeated any number of times.
            let text = text.repeat(if text.is_empty() { 0 } else { count });
            Ok(match value.is_safe() {
                true => Value::from_safe_string(text),
                false => Value::from(text),
            })
        }
    }
}

fn zero(what: &'static str) -> Error {
    wrong(what)
}

fn integers(operator: &'static str, a: i128, b: i128) -> Result<Value, Error> {
    let exact = |result: Option<i128>| result.map(from_int).ok_or_else(overflow);
    match operator {
        "+" => exact(a.checked_add(b)),
        "-" => exact(a.checked_sub(b)),
        "*" => exact(a.checked_mul(b)),
        "/" if b == 0 => Err(zero("division by zero")),
        "/" => Ok(Value::from(a as f64 / b as f64)),
        "//" | "%" if b == 0 => Err(zero("integer division or modulo by zero")),
        "//" => {
            let quotient = a.checked_div(b).ok_or_else(overflow)?;
            let inexact = a.wrapping_rem(b) != 0 && (a < 0) != (b < 0);
            Ok(from_int(quotient - i128::from(inexact)))
        }
        "%" => {
            let rest = a.wrapping_rem(b);
            Ok(from_int(match rest != 0 && (rest < 0) != (b < 0) {
                true => rest + b,
                false => rest,
            }))
        }
        "**" if b < 0 => floats("**", a as f64, b as f64),
        "**" => match (a, u32::try_from(b)) {
            (0 | 1, _) => Ok(from_int(if b == 0 { 1 } else { a })),
            (-1, _) => Ok(from_int(if b % 2 == 0 { 1 } else { -1 })),
            (_, Ok(b)) => exact(a.checked_pow(b)),
            (_, Err(_)) => Err(overflow()),
        },
        _ => Err(unsupported(operator, &from_int(a), &from_int(b))),
    }
}

fn floats(operator: &'static str, a: f64, b: f64) -> Result<Value, Error> {
    Ok(Value::from(match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" if b == 0.0 => return Err(zero("float division by zero")),
        "/" => a / b,
        "//" | "%" if b == 0.0 => return Err(zero("float floor division or modulo by zero")),
        "//" => divide(a, b).0,
        "%" => divide(a, b).1,
        "**" if a == 0.0 && b < 0.0 => {
            return Err(zero("0.0 cannot be raised to a negative power"));
        }
        "**" if a < 0.0 && a.is_finite() && b.is_finite() && b.fract() != 0.0 => {
            return Err(wrong(
                "a negative number to a fractional power: not supported here, though Python has complex numbers",
            ));
        }
        "**" => match a.powf(b) {
            power if power.is_infinite() && a.is_finite() && b.is_finite() => {
                return Err(wrong("the result of ** is too large"));
            }
            power => power,
        },
        _ => return Err(unsupported(operator, &Value::from(a), &Value::from(b))),
    }))
}

/// Python's floor division of floats, and its rest, which has the divisor's sign.
fn divide(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest == 0.0 {
        rest = 0.0f64.copysign(b);
    } else if (b < 0.0) != (rest < 0.0) {
        rest += b;
        quotient -= 1.0;
    }
    let floor = match quotient == 0.0 {
        true => 0.0f64.copysign(a / b),
        false => match quotient.floor() {
            floor if quotient - floor > 0.5 => floor + 1.0,
            floor => floor,
        },
    };
    (floor, rest)
}

pub fn negate(value: &Value) -> Result<Value, Error> {
    match type_of(value) {
        Type::Bool | Type::Int => int(value)?.checked_neg().map(from_int).ok_or_else(overflow),
        Type::Float => Ok(Value::from(-float(value)?)),
        Type::Undefined => Err(wrong("operand of - is undefined")),
        _ => Err(wrong(format!(
            "bad operand type for unary -: '{}'",
            name(value)
        ))),
    }
}

/// One comparison, by its spelling in a template.
pub fn compare(operator: &str, a: &Value, b: &Value) -> Result<bool, Error> {
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
            meter::charge(a.len())?;
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
    meter::charge(a.len())?;
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
            meter::charge(a.len())?;
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
                meter::charge(text.len() / 16)?;
                Ok(text.contains(item))
            }
            None => Err(wrong(format!(
                "'in <string>' requires string as left operand, not {}",
                name(item)
            ))),
        },
        Type::Dict => Ok(access::entry(container, &Key::of(item)?).is_some()),
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
                meter::charge(items.len())?;
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
