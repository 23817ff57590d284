//! Operators, subscripts, literals and calls of methods as filters whose names no template can spell.

use std::sync::Arc;

use minijinja::value::{Object, ObjectRepr, Rest};
use minijinja::{Environment, Error, State, Value};

use super::super::macros::Variadic;
use super::super::value::{Namespace, dict, items_of, iterate, list, name, tuple, wrong};
use super::super::{access, compare, macros, methods, ops};

/// Operators of two operands that always read both.
const BINARY: [&str; 8] = ["+", "-", "*", "/", "//", "%", "**", "~"];
const COMPARISONS: [&str; 7] = ["==", "!=", "<", "<=", ">", ">=", "in"];

pub fn add(environment: &mut Environment<'_>) {
    for name in BINARY {
        environment.add_filter(name, move |a: &Value, b: &Value| ops::binary(name, a, b));
    }
    for name in COMPARISONS {
        environment.add_filter(name, move |a: &Value, b: &Value| compare::holds(name, a, b));
    }
    environment.add_filter("[compare]", chained);
    environment.add_filter("unary-", |value: &Value| ops::negate(value));
    environment.add_filter(".", access::attribute);
    environment.add_filter("[]", access::item);
    environment.add_filter(
        "[:]",
        |object: &Value, start: &Value, stop: &Value, step: &Value| {
            access::slice(object, [start, stop, step])
        },
    );
    environment.add_filter(".()", method);
    environment.add_filter(".=", assign);
    environment.add_filter("[list]", |_: &Value, items: Rest<Value>| {
        list(items.to_vec())
    });
    environment.add_filter("[tuple]", |_: &Value, items: Rest<Value>| {
        tuple(items.to_vec())
    });
    environment.add_filter("[dict]", |_: &Value, items: Rest<Value>| {
        let pairs = items.chunks_exact(2);
        dict(pairs.map(|pair| (pair[0].clone(), pair[1].clone())))
    });
    environment.add_filter("[iterate]", |value: &Value| list(iterate(value)?));
    environment.add_filter("[spare]", Variadic::of);
    environment.add_filter("[unpack]", unpack);
    environment.add_filter("[kept]", kept);
    environment.add_filter("[orelse]", |items: &Value| match items_of(items) {
        Some([]) => list(vec![Value::from_object(NoItem)]),
        _ => Ok(items.clone()),
    });
    environment.add_filter("[iselse]", |item: &Value| {
        item.downcast_object_ref::<NoItem>().is_some()
    });
    environment.add_filter("[same]", |value: &Value| value.clone());
    environment.add_filter("[given]", macros::given);
    environment.add_filter("[parameter]", macros::parameter);
    environment.add_filter("[refuse]", |message: &Value| -> Result<Value, Error> {
        Err(wrong(message.as_str().unwrap_or_default().to_owned()))
    });
}

/// What a recursive loop goes through where it has no items and an `else`.
#[derive(Debug)]
struct NoItem;

impl Object for NoItem {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// A list of what `value` is taken apart into. `shape` has a list where an item is taken apart too.
fn unpack(value: &Value, shape: &Value) -> Result<Value, Error> {
    let mut items = iterate(value)?;
    for (item, shape) in items.iter_mut().zip(shape.try_iter()?) {
        if !shape.is_none() {
            *item = unpack(item, &shape)?;
        }
    }
    list(items)
}

/// The items for which a macro writes something.
fn kept(state: &State, items: &Value, condition: &Value) -> Result<Value, Error> {
    let mut kept = Vec::new();
    for item in iterate(items)? {
        let said = condition.call(state, std::slice::from_ref(&item))?;
        if said.as_str() != Some("") {
            kept.push(item);
        }
    }
    list(kept)
}

/// `a < b < c`: after the first operand, pairs of an operator and an operand.
fn chained(first: &Value, rest: Rest<Value>) -> Result<bool, Error> {
    let mut left = first;
    for pair in rest.chunks_exact(2) {
        if !compare::holds(pair[0].as_str().unwrap_or_default(), left, &pair[1])? {
            return Ok(false);
        }
        left = &pair[1];
    }
    Ok(true)
}

fn method(state: &State, object: &Value, name: &str, args: Rest<Value>) -> Result<Value, Error> {
    methods::call_on(state, object, name, &args)
}

fn assign(object: &Value, attribute: &str, value: &Value) -> Result<Value, Error> {
    match object.downcast_object_ref::<Namespace>() {
        Some(namespace) => namespace.set(attribute, value.clone())?,
        None => {
            return Err(wrong(format!(
                "cannot assign attribute on non-namespace object: found a value of type '{}'",
                name(object)
            )));
        }
    }
    Ok(Value::from(()))
}
