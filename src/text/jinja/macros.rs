//! Arguments of macros. minijinja's macros give a parameter its default where the argument is undefined, and take no
//! more arguments than they have names for.

use crate::quote;
use std::sync::Arc;

use minijinja::value::{Kwargs, Object, ObjectRepr};
use minijinja::{Error, State, Value};

use super::args;
use super::value::{dict, tuple, wrong};

/// An undefined value that a macro's caller gave: the parameter is undefined then and does not take its default.
#[derive(Debug)]
struct GivenUndefined;

impl Object for GivenUndefined {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }
}

/// An argument on its way to a macro.
pub fn given(value: &Value) -> Value {
    match value.is_undefined() {
        true => Value::from_object(GivenUndefined),
        false => value.clone(),
    }
}

/// An argument that has come to the macro.
pub fn parameter(value: &Value) -> Value {
    match value.downcast_object_ref::<GivenUndefined>() {
        Some(_) => Value::UNDEFINED,
        None => value.clone(),
    }
}

pub const VARARGS: &str = "varargs";
pub const KWARGS: &str = "kwargs";

/// A macro whose last parameters are `varargs`, `kwargs` or both. Calls fill these with what the others leave.
#[derive(Debug)]
pub struct Variadic {
    inner: Value,
    /// Names of the parameters that calls know.
    names: Vec<String>,
    takes_varargs: bool,
    takes_kwargs: bool,
    reads_caller: bool,
}

impl Variadic {
    /// `spare`: how many of the last parameters are `varargs` and `kwargs`; a macro's own may have such names too.
    ///
    /// # Errors
    /// `inner` is no macro.
    pub fn of(inner: &Value, spare: usize) -> Result<Value, Error> {
        let arguments = inner.get_attr("arguments")?;
        let mut names: Vec<String> = arguments
            .try_iter()?
            .map(|name| name.as_str().unwrap_or_default().to_owned())
            .collect();
        let spare = names.split_off(names.len().saturating_sub(spare));
        let takes_kwargs = spare.iter().any(|name| name == KWARGS);
        let takes_varargs = spare.iter().any(|name| name == VARARGS);
        Ok(Value::from_object(Self {
            reads_caller: inner.get_attr("caller")?.is_true(),
            inner: inner.clone(),
            names,
            takes_varargs,
            takes_kwargs,
        }))
    }
}

impl Object for Variadic {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str()? {
            "name" | "caller" => self.inner.get_item(key).ok(),
            "arguments" => tuple(self.names.iter().map(Value::from).collect()).ok(),
            "catch_varargs" => Some(self.takes_varargs.into()),
            "catch_kwargs" => Some(self.takes_kwargs.into()),
            _ => None,
        }
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn call(self: &Arc<Self>, state: &State<'_, '_>, args: &[Value]) -> Result<Value, Error> {
        let (positional, named) = args::split(args)?;
        let (known, spare) = positional.split_at(positional.len().min(self.names.len()));
        let mut given = Vec::new();
        let mut spare_named = Vec::new();
        for name in named.iter().flat_map(Kwargs::args) {
            let value = named
                .as_ref()
                .map_or(Ok(Value::UNDEFINED), |named| named.peek(name))?;
            let is_parameter = self.names[known.len()..].iter().any(|known| known == name);
            match is_parameter || (name == "caller" && self.reads_caller) {
                true => given.push((name.to_owned(), value)),
                false => spare_named.push((Value::from(name), parameter(&value))),
            }
        }
        if self.takes_varargs {
            given.push((
                VARARGS.to_owned(),
                tuple(spare.iter().map(parameter).collect())?,
            ));
        } else if !spare.is_empty() {
            return Err(wrong(format!(
                "found {} arguments without a name, expected at most {}",
                positional.len(),
                self.names.len()
            )));
        }
        match spare_named.first() {
            _ if self.takes_kwargs => given.push((KWARGS.to_owned(), dict(spare_named)?)),
            None => {}
            Some((name, _)) => {
                return Err(wrong(format!(
                    "found the argument {}, expected one of: {}",
                    quote::text(name),
                    quote::message(self.names.join(", "))
                )));
            }
        }
        let mut args = known.to_vec();
        args.push(given.into_iter().collect::<Kwargs>().into());
        self.inner.call(state, &args)
    }
}
