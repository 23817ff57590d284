//! Numbers as Python takes them: True and False are integers too.

use minijinja::{Error, Value};

use super::{Type, name, type_of, wrong};

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
pub fn overflow() -> Error {
    wrong("an integer of more than 128 bits: not supported here, though Python has them")
}

pub fn from_int(value: i128) -> Value {
    i64::try_from(value).map_or_else(|_| Value::from(value), Value::from)
}

pub fn is_int(value: &Value) -> bool {
    matches!(type_of(value), Type::Bool | Type::Int)
}

pub fn is_number(value: &Value) -> bool {
    matches!(type_of(value), Type::Bool | Type::Int | Type::Float)
}
