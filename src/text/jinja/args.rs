//! Arguments of a call bound to Python's parameter names.

use crate::quote;
use minijinja::value::Kwargs;
use minijinja::{Error, Value};

use super::print;
use super::value::numbers;
use super::value::{Type, name, type_of, wrong};

/// A call's arguments in the order of the parameters; `None` where one was not given.
pub struct Bound {
    callee: &'static str,
    names: &'static [&'static str],
    values: Vec<Option<Value>>,
}

/// Positional arguments, and those by name.
pub fn split(args: &[Value]) -> Result<(&[Value], Option<Kwargs>), Error> {
    match args.split_last() {
        Some((last, rest)) if last.is_kwargs() => Ok((rest, Some(Kwargs::try_from(last.clone())?))),
        _ => Ok((args, None)),
    }
}

/// `args` as those of `callee(names)`.
///
/// # Errors
/// Too many, one twice, or one of another name.
pub fn bind(
    callee: &'static str,
    names: &'static [&'static str],
    args: &[Value],
) -> Result<Bound, Error> {
    let (positional, named) = split(args)?;
    if positional.len() > names.len() {
        return Err(wrong(format!(
            "{callee}: found {} arguments, expected at most {}",
            positional.len(),
            names.len()
        )));
    }
    let mut values: Vec<Option<Value>> = positional.iter().cloned().map(Some).collect();
    values.resize(names.len(), None);
    for given in named.iter().flat_map(Kwargs::args) {
        let at = names.iter().position(|name| *name == given);
        match (at, &named) {
            (Some(at), Some(named)) if values[at].is_none() => {
                values[at] = Some(named.peek::<Value>(given)?);
            }
            (Some(_), _) => {
                return Err(wrong(format!(
                    "{callee}: found `{}` twice",
                    quote::text(given)
                )));
            }
            _ => {
                return Err(wrong(format!(
                    "{callee}: found the argument `{}`, expected one of: {}",
                    quote::text(given),
                    names.join(", ")
                )));
            }
        }
    }
    Ok(Bound {
        callee,
        names,
        values,
    })
}

impl Bound {
    pub fn get(&self, at: usize) -> Option<&Value> {
        self.values[at].as_ref()
    }

    /// The argument, or `None` where it is absent or Python's None.
    pub fn some(&self, at: usize) -> Option<&Value> {
        self.get(at).filter(|value| !value.is_none())
    }

    pub fn required(&self, at: usize) -> Result<&Value, Error> {
        self.get(at)
            .ok_or_else(|| wrong(format!("{}: `{}` is missing", self.callee, self.names[at])))
    }

    pub fn truth(&self, at: usize) -> bool {
        self.get(at).is_some_and(Value::is_true)
    }

    pub fn int(&self, at: usize, default: i128) -> Result<i128, Error> {
        match self.get(at) {
            None => Ok(default),
            Some(value) => numbers::int(value).map_err(|_| self.unfit(at, "an integer")),
        }
    }

    pub fn text(&self, at: usize) -> Result<Option<&str>, Error> {
        match self.some(at) {
            None => Ok(None),
            Some(value) if type_of(value) == Type::Str => Ok(value.as_str()),
            Some(_) => Err(self.unfit(at, "a string")),
        }
    }

    pub fn required_text(&self, at: usize) -> Result<&str, Error> {
        self.required(at)?;
        self.text(at)?.ok_or_else(|| self.unfit(at, "a string"))
    }

    /// That argument `at` is not what is expected.
    pub fn unfit(&self, at: usize, expected: &str) -> Error {
        let found = self.get(at).map_or_else(String::new, |value| {
            format!("{} of type '{}'", print::brief(value), name(value))
        });
        wrong(format!(
            "{}: `{}` is {found}, expected {expected}",
            self.callee, self.names[at]
        ))
    }
}
