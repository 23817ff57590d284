//! `map`, `select`, `reject` and their like: other filters and tests over each item.

use minijinja::{Environment, Error, State, Value};

use super::super::args;
use super::super::value::{generator, iterate, wrong};
use super::lists::read;
use super::open_filter;

pub fn add(environment: &mut Environment<'_>) {
    open_filter(environment, "map", map);
    open_filter(environment, "select", |state, value, args| {
        select(state, value, args, false, true)
    });
    open_filter(environment, "reject", |state, value, args| {
        select(state, value, args, false, false)
    });
    open_filter(environment, "selectattr", |state, value, args| {
        select(state, value, args, true, true)
    });
    open_filter(environment, "rejectattr", |state, value, args| {
        select(state, value, args, true, false)
    });
}

fn map(state: &State, value: &Value, arguments: &[Value]) -> Result<Value, Error> {
    if !value.is_true() {
        return generator(Vec::new());
    }
    let (positional, named) = args::split(arguments)?;
    let attribute = match (&named, positional.is_empty()) {
        (Some(named), true) => named.peek::<Option<Value>>("attribute")?,
        _ => None,
    };
    let mut out = Vec::new();
    if let (Some(attribute), Some(named)) = (attribute, named) {
        if let Some(other) = named
            .args()
            .find(|name| !matches!(*name, "attribute" | "default"))
        {
            return Err(wrong(format!("map: Unexpected keyword argument {other:?}")));
        }
        let default = named
            .peek::<Option<Value>>("default")?
            .filter(|value| !value.is_none());
        for item in iterate(value)? {
            out.push(read(&item, Some(&attribute), default.as_ref())?);
        }
        return generator(out);
    }
    let [name, rest @ ..] = positional else {
        return Err(wrong("map requires a filter argument"));
    };
    let name = name
        .as_str()
        .ok_or_else(|| wrong("map: expected the name of a filter"))?;
    // What follows the name: positional and named alike.
    let rest = &arguments
        [arguments.len() - rest.len() - usize::from(arguments.len() > positional.len())..];
    for item in iterate(value)? {
        let args: Vec<Value> = std::iter::once(item).chain(rest.iter().cloned()).collect();
        out.push(state.apply_filter(known(name)?, &args)?);
    }
    generator(out)
}

/// Operators have filters too, which templates do not know.
fn known(name: &str) -> Result<&str, Error> {
    match super::NAMES.contains(&name) {
        true => Ok(name),
        false => Err(wrong(format!("No filter named {name:?} found."))),
    }
}

fn select(
    state: &State,
    value: &Value,
    arguments: &[Value],
    by_attribute: bool,
    wanted: bool,
) -> Result<Value, Error> {
    let (attribute, arguments) = match (by_attribute, arguments) {
        (false, arguments) => (None, arguments),
        (true, [attribute, rest @ ..]) => (Some(attribute), rest),
        (true, []) => return Err(wrong("Missing parameter for attribute name")),
    };
    if !value.is_true() {
        return generator(Vec::new());
    }
    let mut kept = Vec::new();
    for item in iterate(value)? {
        let tested = read(&item, attribute, None)?;
        let holds = match arguments {
            [] => tested.is_true(),
            [name, rest @ ..] => {
                let name = name
                    .as_str()
                    .ok_or_else(|| wrong("expected the name of a test"))?;
                let args: Vec<Value> = std::iter::once(tested)
                    .chain(rest.iter().cloned())
                    .collect();
                state.perform_test(name, &args)?
            }
        };
        if holds == wanted {
            kept.push(item);
        }
    }
    generator(kept)
}
