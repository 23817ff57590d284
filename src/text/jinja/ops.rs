//! Python's operators that make values; `compare` has the others. `rewrite` turns those of a template into filters of these names, which no template can
//! spell: `{{ a + b }}` becomes a filter `+` of a with the argument b.

use minijinja::{Error, Value};

use super::value::numbers::{float, from_int, int, is_int, is_number, overflow};
use super::value::{SeqKind, Type, items_of, list, name, seq, tuple, type_of, wrong};
use super::{format, meter, print};

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
