//! Filters that make numbers, and `default`.

use minijinja::{Environment, Error, Value};

use super::super::args::Bound;
use super::super::characters::is_space;
use super::super::ops;
use super::super::value::numbers;
use super::super::value::{Type, length, name, type_of, wrong};
use super::filter;

pub fn add(environment: &mut Environment<'_>) {
    filter(environment, "abs", &[], |value, _| match type_of(value) {
        Type::Float => Ok(Value::from(numbers::float(value)?.abs())),
        Type::Bool | Type::Int => match numbers::int(value)? < 0 {
            true => ops::negate(value),
            false => Ok(numbers::from_int(numbers::int(value)?)),
        },
        _ => Err(wrong(format!(
            "bad operand type for abs(): '{}'",
            name(value)
        ))),
    });
    filter(environment, "int", &["default", "base"], int);
    filter(environment, "float", &["default"], float);
    filter(environment, "round", &["precision", "method"], round);
    filter(environment, "filesizeformat", &["binary"], filesizeformat);
    for name in ["length", "count"] {
        filter(environment, name, &[], |value, _| {
            length(value).map(Value::from)
        });
    }
    for name in ["default", "d"] {
        filter(
            environment,
            name,
            &["default_value", "boolean"],
            |value, args| {
                Ok(
                    match value.is_undefined() || (args.truth(1) && !value.is_true()) {
                        true => args.get(0).cloned().unwrap_or_else(|| Value::from("")),
                        false => value.clone(),
                    },
                )
            },
        );
    }
}

/// Python's `float(text)`.
fn parse_float(text: &str) -> Option<f64> {
    let text = text.trim_matches(is_space);
    let bytes = text.as_bytes();
    // An underscore stands between digits only.
    let misplaced = |(at, _): (usize, &u8)| {
        let digit = |at: Option<usize>| {
            at.and_then(|at| bytes.get(at))
                .is_some_and(u8::is_ascii_digit)
        };
        !digit(at.checked_sub(1)) || !digit(Some(at + 1))
    };
    if bytes
        .iter()
        .enumerate()
        .filter(|(_, byte)| **byte == b'_')
        .any(misplaced)
    {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// Python's `int(text, base)`.
fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim_matches(is_space);
    let (sign, text) = match text.as_bytes().first() {
        Some(b'-') => (-1, &text[1..]),
        Some(b'+') => (1, &text[1..]),
        _ => (1, text),
    };
    let lower = text.to_lowercase();
    let prefixes = [(2, "0b"), (8, "0o"), (16, "0x")];
    let found = prefixes.iter().find_map(|&(of, prefix)| {
        (base == of || base == 0)
            .then(|| lower.strip_prefix(prefix))
            .flatten()
            .map(|rest| (of, rest))
    });
    let (base, digits, prefixed) = match found {
        Some((base, digits)) => (base, digits, true),
        None => (if base == 0 { 10 } else { base }, lower.as_str(), false),
    };
    let digits = if prefixed {
        digits.strip_prefix('_').unwrap_or(digits)
    } else {
        digits
    };
    let misplaced = digits.starts_with('_') || digits.ends_with('_') || digits.contains("__");
    if misplaced || digits.starts_with(['+', '-']) {
        return None;
    }
    i128::from_str_radix(&digits.replace('_', ""), base)
        .ok()
        .map(|number| sign * number)
}

fn int(value: &Value, args: &Bound) -> Result<Value, Error> {
    let base = u32::try_from(args.int(1, 10)?).unwrap_or(u32::MAX);
    let default = || args.get(0).cloned().unwrap_or_else(|| Value::from(0));
    let from_float = |x: f64| match x.is_finite() && x.abs() < 1e38 {
        true => Ok(numbers::from_int(x.trunc() as i128)),
        false if x.is_finite() => Err(wrong(
            "int: a number of more than 128 bits is not supported here",
        )),
        false => Ok(default()),
    };
    match type_of(value) {
        Type::Bool | Type::Int => Ok(numbers::from_int(numbers::int(value)?)),
        // int(infinity) is an OverflowError, which jinja2 does not catch.
        Type::Float if numbers::float(value)?.is_infinite() => {
            Err(wrong("cannot convert float infinity to integer"))
        }
        Type::Float => from_float(numbers::float(value)?),
        Type::Str => {
            let text = value.as_str().unwrap_or_default();
            let parsed = match base {
                0 | 2..=36 => parse_int(text, base),
                _ => None,
            };
            match (parsed, parse_float(text)) {
                (Some(number), _) => Ok(numbers::from_int(number)),
                (None, Some(x)) => from_float(x),
                (None, None) => Ok(default()),
            }
        }
        Type::Undefined => Err(wrong("int: the value is undefined")),
        _ => Ok(default()),
    }
}

fn float(value: &Value, args: &Bound) -> Result<Value, Error> {
    let x = match type_of(value) {
        Type::Bool | Type::Int | Type::Float => Some(numbers::float(value)?),
        Type::Str => parse_float(value.as_str().unwrap_or_default()),
        Type::Undefined => return Err(wrong("float: the value is undefined")),
        _ => None,
    };
    Ok(x.map_or_else(
        || args.get(0).cloned().unwrap_or_else(|| Value::from(0.0)),
        Value::from,
    ))
}

/// `common` rounds half to even on the exact binary value, as Python's round.
fn round(value: &Value, args: &Bound) -> Result<Value, Error> {
    let precision = args.int(0, 0)?;
    let method = args.text(1)?.unwrap_or("common");
    if !numbers::is_number(value) {
        return Err(wrong(format!(
            "round: found a value of type '{}', expected a number",
            name(value)
        )));
    }
    let whole = type_of(value) != Type::Float;
    let x = numbers::float(value)?;
    match (method, usize::try_from(precision)) {
        ("common", Ok(_)) if whole => Ok(numbers::from_int(numbers::int(value)?)),
        ("common", Ok(_)) if !x.is_finite() => Ok(value.clone()),
        // Formatting rounds the exact binary value, as Python does.
        ("common", Ok(digits)) if digits <= 300 => {
            Ok(Value::from(format!("{x:.digits$}").parse().unwrap_or(x)))
        }
        ("common", Ok(_)) => Ok(value.clone()),
        ("common", Err(_)) => {
            let unit = u32::try_from(-precision)
                .ok()
                .and_then(|power| 10i128.checked_pow(power));
            let Some(unit) = unit else {
                return Ok(if whole {
                    Value::from(0)
                } else {
                    Value::from(0.0f64.copysign(x))
                });
            };
            if !whole {
                let power = unit as f64;
                return Ok(Value::from((x / power).round_ties_even() * power));
            }
            let number = numbers::int(value)?;
            let rest = number.rem_euclid(unit);
            let down = number - rest;
            let up = 2 * rest > unit || (2 * rest == unit && (down / unit) % 2 != 0);
            Ok(numbers::from_int(if up { down + unit } else { down }))
        }
        ("ceil" | "floor", _) => {
            let places = i32::try_from(precision).unwrap_or(i32::MAX);
            if whole && precision >= 0 {
                return Ok(Value::from(x));
            }
            let power = 10f64.powi(places.abs());
            let scaled = if precision >= 0 {
                x * power
            } else {
                x * 10f64.powi(places)
            };
            let result = if method == "ceil" {
                scaled.ceil()
            } else {
                scaled.floor()
            };
            match scaled.is_finite() {
                true if precision >= 0 => Ok(Value::from(result / power)),
                true => Ok(Value::from(result / 10f64.powi(places))),
                false => Err(wrong("round: cannot convert this float to an integer")),
            }
        }
        _ => Err(args.unfit(1, "common, ceil or floor")),
    }
}

fn filesizeformat(value: &Value, args: &Bound) -> Result<Value, Error> {
    let bytes = match type_of(value) {
        Type::Str => parse_float(value.as_str().unwrap_or_default())
            .ok_or_else(|| wrong("filesizeformat: expected a number"))?,
        _ => numbers::float(value)?,
    };
    if !bytes.is_finite() {
        return Err(wrong("filesizeformat: expected a finite number"));
    }
    let binary = args.truth(0);
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok(Value::from("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::from(format!("{} Bytes", bytes.trunc() as i128)));
    }
    let letters = ["k", "M", "G", "T", "P", "E", "Z", "Y"];
    let mut unit = base;
    let mut prefix = "";
    for letter in letters {
        unit *= base;
        prefix = letter;
        if bytes < unit {
            break;
        }
    }
    let prefix = match (binary, prefix) {
        (true, "k") => "Ki".to_owned(),
        (true, prefix) => format!("{prefix}i"),
        (false, prefix) => prefix.to_owned(),
    };
    Ok(Value::from(format!("{:.1} {prefix}B", base * bytes / unit)))
}
