//! Functions that templates find without being given them: Jinja2's own and those of transformers.

use crate::quote;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::value::{Kwargs, Object, ObjectRepr, Rest};
use minijinja::{Environment, Error, State, Value};

use super::args::{self, bind};
use super::print;
use super::value::numbers;
use super::value::{Dict, Namespace, SeqKind, dict, iterate, seq, tuple, wrong};

/// As many items as the sandbox lets a range have.
const MAX_RANGE: i128 = 100_000;

/// Their names, and that of what the environment adds with its clock.
pub const NAMES: [&str; 8] = [
    "cycler",
    "dict",
    "joiner",
    "lipsum",
    "namespace",
    "raise_exception",
    "range",
    "strftime_now",
];

pub fn add(environment: &mut Environment<'_>) {
    environment.add_function("range", |args: Rest<Value>| range(&args));
    environment.add_function("dict", |args: Rest<Value>| new_dict(&args));
    environment.add_function("namespace", |args: Rest<Value>| namespace(&args));
    environment.add_function("cycler", |args: Rest<Value>| cycler(&args));
    environment.add_function("joiner", |args: Rest<Value>| -> Result<Value, Error> {
        let args = bind("joiner", &["sep"], &args)?;
        let separator = args.get(0).cloned().unwrap_or_else(|| Value::from(", "));
        Ok(Value::from_object(Joiner {
            separator,
            calls: AtomicUsize::new(0),
        }))
    });
    environment.add_function(
        "raise_exception",
        |args: Rest<Value>| -> Result<Value, Error> {
            let args = bind("raise_exception", &["message"], &args)?;
            Err(wrong(print::str(args.required(0)?)?.into_owned()))
        },
    );
    environment.add_function("lipsum", |_: Rest<Value>| -> Result<Value, Error> {
        Err(wrong("lipsum: random text is not supported here"))
    });
}

fn range(args: &[Value]) -> Result<Value, Error> {
    let numbers: Vec<i128> = args.iter().map(numbers::int).collect::<Result<_, _>>()?;
    let (start, stop, step) = match numbers[..] {
        [stop] => (0, stop, 1),
        [start, stop] => (start, stop, 1),
        [start, stop, step] => (start, stop, step),
        _ => return Err(wrong("range: expected one to three integers")),
    };
    let narrow = |number: i128| {
        i64::try_from(number).map_err(|_| wrong("range: a bound has more than 64 bits"))
    };
    let (start, stop, step) = (narrow(start)?, narrow(stop)?, narrow(step)?);
    let (low, high, wide) = match step {
        0 => return Err(wrong("range() arg 3 must not be zero")),
        1.. => (i128::from(start), i128::from(stop), i128::from(step)),
        _ => (i128::from(stop), i128::from(start), -i128::from(step)),
    };
    let count = (high - low + wide - 1).max(0) / wide;
    if count > MAX_RANGE {
        return Err(wrong(format!(
            "range: found {count} items, expected at most {MAX_RANGE}, as the sandbox of Jinja2 has it"
        )));
    }
    let items = (0..count as i64).map(|at| Value::from(start + at * step));
    seq(SeqKind::Range { start, stop, step }, items.collect())
}

/// The pairs of `dict(mapping or pairs, name=value, …)`.
fn given_pairs(callee: &str, args: &[Value]) -> Result<Vec<(Value, Value)>, Error> {
    let (positional, named) = args::split(args)?;
    let mut pairs = match positional {
        [] => Vec::new(),
        [one] => match one.downcast_object_ref::<Dict>() {
            Some(dict) => dict.iter().cloned().collect(),
            None => iterate(one)?
                .iter()
                .map(|pair| match <[Value; 2]>::try_from(iterate(pair)?) {
                    Ok([key, value]) => Ok((key, value)),
                    Err(items) => Err(wrong(format!(
                        "{callee}: found an item of length {}, expected pairs",
                        items.len()
                    ))),
                })
                .collect::<Result<_, Error>>()?,
        },
        more => {
            return Err(wrong(format!(
                "{callee}: found {} arguments, expected at most one without a name",
                more.len()
            )));
        }
    };
    if let Some(named) = &named {
        for name in Kwargs::args(named) {
            pairs.push((Value::from(name), named.peek::<Value>(name)?));
        }
    }
    Ok(pairs)
}

fn new_dict(args: &[Value]) -> Result<Value, Error> {
    dict(given_pairs("dict", args)?)
}

fn namespace(args: &[Value]) -> Result<Value, Error> {
    let namespace = Namespace::create()?;
    for (name, value) in given_pairs("namespace", args)? {
        let name = name
            .as_str()
            .ok_or_else(|| wrong("namespace: expected names as keys"))?;
        namespace.set(name, value)?;
    }
    Ok(Value::from_dyn_object(namespace))
}

#[derive(Debug)]
struct Joiner {
    separator: Value,
    calls: AtomicUsize,
}

impl Object for Joiner {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "sep" => Some(self.separator.clone()),
            "used" => Some((self.calls.load(Ordering::Relaxed) > 0).into()),
            _ => None,
        }
    }

    fn call(self: &Arc<Self>, _: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        bind("joiner", &[], args)?;
        Ok(match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 => Value::from(""),
            _ => self.separator.clone(),
        })
    }
}

fn cycler(args: &[Value]) -> Result<Value, Error> {
    let (items, named) = args::split(args)?;
    if items.is_empty() || named.is_some() {
        return Err(wrong("cycler: expected one item or more, without names"));
    }
    Ok(Value::from_object(Cycler {
        items: items.to_vec(),
        at: AtomicUsize::new(0),
    }))
}

#[derive(Debug)]
pub struct Cycler {
    items: Vec<Value>,
    at: AtomicUsize,
}

impl Cycler {
    fn current(&self) -> Value {
        self.items[self.at.load(Ordering::Relaxed) % self.items.len()].clone()
    }
}

impl Object for Cycler {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "current" => Some(self.current()),
            "items" => tuple(self.items.clone()).ok(),
            "pos" => Some((self.at.load(Ordering::Relaxed) % self.items.len()).into()),
            _ => None,
        }
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn call_method(
        self: &Arc<Self>,
        _: &State<'_, '_>,
        method: &str,
        args: &[Value],
    ) -> Result<Value, Error> {
        bind("cycler", &[], args)?;
        match method {
            "next" => {
                let current = self.current();
                self.at.fetch_add(1, Ordering::Relaxed);
                Ok(current)
            }
            "reset" => {
                self.at.store(0, Ordering::Relaxed);
                Ok(Value::from(()))
            }
            _ => Err(wrong(format!(
                "a cycler has no method `{}`",
                quote::text(method)
            ))),
        }
    }
}
