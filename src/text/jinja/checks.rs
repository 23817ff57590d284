//! Tests of Jinja2: what follows `is`.

use minijinja::value::Rest;
use minijinja::{Environment, Error, Value};

use super::args::bind;
use super::filters::NAMES;
use super::globals::Cycler;
use super::value::numbers;
use super::value::{Type, address, items_of, name, type_of, wrong};
use super::{characters, compare, meter, ops, print};

pub fn add(environment: &mut Environment<'_>) {
    one(environment, "odd", |value| {
        Ok(ops::binary("%", value, &Value::from(2))? == Value::from(1))
    });
    one(environment, "even", |value| {
        compare::equal(&ops::binary("%", value, &Value::from(2))?, &Value::from(0))
    });
    one(environment, "defined", |value| Ok(!value.is_undefined()));
    one(environment, "undefined", |value| Ok(value.is_undefined()));
    one(environment, "none", |value| Ok(value.is_none()));
    one(environment, "boolean", |value| {
        Ok(type_of(value) == Type::Bool)
    });
    one(environment, "true", |value| {
        Ok(type_of(value) == Type::Bool && value.is_true())
    });
    one(environment, "false", |value| {
        Ok(type_of(value) == Type::Bool && !value.is_true())
    });
    one(environment, "integer", |value| {
        Ok(type_of(value) == Type::Int)
    });
    one(environment, "float", |value| {
        Ok(type_of(value) == Type::Float)
    });
    one(environment, "number", |value| Ok(numbers::is_number(value)));
    one(environment, "string", |value| {
        Ok(type_of(value) == Type::Str)
    });
    one(environment, "mapping", |value| {
        Ok(type_of(value) == Type::Dict)
    });
    one(environment, "escaped", |value| Ok(value.is_safe()));
    one(environment, "lower", |value| cased(value, "islower"));
    one(environment, "upper", |value| cased(value, "isupper"));
    one(environment, "sequence", |value| {
        Ok(matches!(
            type_of(value),
            Type::Str | Type::List | Type::Tuple | Type::Range | Type::Dict | Type::Undefined
        ))
    });
    one(environment, "iterable", |value| Ok(is_iterable(value)));
    one(environment, "callable", |value| Ok(is_callable(value)));
    two(environment, &["divisibleby"], |value, number| {
        compare::equal(&ops::binary("%", value, number)?, &Value::from(0))
    });
    two(environment, &["sameas"], same);
    two(environment, &["in"], |value, list| {
        compare::contains(list, value)
    });
    two(environment, &["==", "eq", "equalto"], compare::equal);
    two(environment, &["!=", "ne"], |a, b| {
        compare::holds("!=", a, b)
    });
    two(environment, &[">", "gt", "greaterthan"], |a, b| {
        compare::holds(">", a, b)
    });
    two(environment, &[">=", "ge"], |a, b| {
        compare::holds(">=", a, b)
    });
    two(environment, &["<", "lt", "lessthan"], |a, b| {
        compare::holds("<", a, b)
    });
    two(environment, &["<=", "le"], |a, b| {
        compare::holds("<=", a, b)
    });
    one(environment, "filter", |value| {
        Ok(value.as_str().is_some_and(|name| NAMES.contains(&name)))
    });
    one(environment, "test", |value| {
        Ok(value.as_str().is_some_and(|name| TESTS.contains(&name)))
    });
}

fn one(
    environment: &mut Environment<'_>,
    name: &'static str,
    holds: fn(&Value) -> Result<bool, Error>,
) {
    environment.add_test(name, move |value: &Value, rest: Rest<Value>| {
        bind(name, &[], &rest)?;
        holds(value)
    });
}

fn two(
    environment: &mut Environment<'_>,
    names: &'static [&'static str],
    holds: fn(&Value, &Value) -> Result<bool, Error>,
) {
    for &name in names {
        environment.add_test(name, move |value: &Value, rest: Rest<Value>| {
            holds(value, bind(name, &["other"], &rest)?.required(0)?)
        });
    }
}

fn cased(value: &Value, method: &str) -> Result<bool, Error> {
    let text = print::str(value)?;
    meter::charge(text.len())?;
    Ok(characters::holds(&text, method).unwrap_or(false))
}

fn is_iterable(value: &Value) -> bool {
    items_of(value).is_some()
        || matches!(
            type_of(value),
            Type::Str | Type::Dict | Type::Generator | Type::Undefined
        )
}

/// Methods, functions, macros and joiners are; an undefined value has a call too, which fails.
fn is_callable(value: &Value) -> bool {
    matches!(type_of(value), Type::Undefined | Type::Other)
        && value.downcast_object_ref::<Cycler>().is_none()
}

/// Python's `is`, where it is certain what it says.
fn same(a: &Value, b: &Value) -> Result<bool, Error> {
    let (left, right) = (type_of(a), type_of(b));
    if left != right {
        return Ok(false);
    }
    match left {
        Type::None => Ok(true),
        Type::Bool => Ok(a.is_true() == b.is_true()),
        _ if address(a) != 0 => Ok(address(a) == address(b)),
        _ if !compare::equal(a, b)? => Ok(false),
        // Of each small integer Python has one object.
        Type::Int if (-5..=256).contains(&numbers::int(a)?) => Ok(true),
        _ => Err(wrong(format!(
            "sameas: whether two values of type '{}' are one object is not known here, expected none, true or false",
            name(a)
        ))),
    }
}

/// Every test of Jinja2.
const TESTS: [&str; 39] = [
    "odd",
    "even",
    "divisibleby",
    "defined",
    "undefined",
    "filter",
    "test",
    "none",
    "boolean",
    "false",
    "true",
    "integer",
    "float",
    "lower",
    "upper",
    "string",
    "mapping",
    "number",
    "sequence",
    "iterable",
    "callable",
    "sameas",
    "escaped",
    "in",
    "==",
    "eq",
    "equalto",
    "!=",
    "ne",
    ">",
    "gt",
    "greaterthan",
    "ge",
    ">=",
    "<",
    "lt",
    "lessthan",
    "<=",
    "le",
];
