//! Values where minijinja's are otherwise than Python's: a row's dicts, generators, and safe texts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use crate::json;

/// What Python's dict has as methods: `x.items` is never an entry there.
pub const DICT_METHODS: &str =
    "clear copy fromkeys get items keys pop popitem setdefault update values";

/// Ends such a name where a template asks for an item by it, `x['items']`, as a literal of it has it.
pub const METHOD_MARK: &str = "\\x00";

/// # Errors
/// A number that is no integer of 128 bits and no finite float.
pub fn from_json(value: &serde_json::Value) -> Result<Value, Error> {
    if let Some(number) = json::as_written(value) {
        return number.parse::<i128>().map(Value::from).map_err(|_| {
            refused("found a number that is not finite, or an integer of more than 128 bits")
        });
    }
    Ok(match value {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(value) => Value::from(*value),
        serde_json::Value::String(text) => Value::from(text.as_str()),
        serde_json::Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(integer), _) => Value::from(integer),
            (None, Some(integer)) => Value::from(integer),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::Array(items) => {
            let items = items.iter().map(from_json);
            items.collect::<Result<Vec<_>, _>>()?.into()
        }
        serde_json::Value::Object(pairs) => {
            let pairs = pairs
                .iter()
                .map(|(key, value)| Ok((key.as_str(), from_json(value)?)));
            let pairs = Value::from_pairs(pairs.collect::<Result<Vec<_>, Error>>()?);
            match pairs.as_object() {
                Some(map) => Value::from_object(Dict(map.clone())),
                None => pairs,
            }
        }
    })
}

/// The filter that looks at what a template sets.
pub const KEPT: &str = "_kept";
/// The filter of what a template loops over.
pub const LOOPED: &str = "_looped";
/// The filter that makes texts of the operands of `~`, as Python prints them.
pub const JOINED: &str = "_joined";

/// Lists in lists, at most: what prints, compares and drops values recurses in them. A row's have at most 128.
const MAX_DEPTH: usize = 256;
const ROW_DEPTH: usize = 128;

/// What a loop goes through. minijinja has no turn for none, where Python has an error.
///
/// # Errors
/// The value is none.
pub fn looped(value: Value) -> Result<Value, Error> {
    match value.is_none() {
        true => Err(refused("found none to loop over, expected a list")),
        false => Ok(value),
    }
}

/// A value that a template keeps. Loops that add to one make it deep or large, which is bounded here: what is left of a
/// slice or sum of lists for later becomes a list, and a namespace holds none.
///
/// # Errors
/// The value is too deep, or it is of a namespace for another one.
pub fn kept(state: &State, value: Value, for_namespace: bool) -> Result<Value, Error> {
    let is_iterated = value.downcast_object_ref::<Iterated>().is_some();
    let value = match value.kind() == ValueKind::Iterable && !is_iterated {
        true => {
            let mut items = Vec::new();
            for item in value.try_iter()?.checked() {
                state.consume_fuel(1)?;
                items.push(item?);
            }
            Value::from(items)
        }
        false => value,
    };
    check_depth(state, &value, MAX_DEPTH, for_namespace)?;
    Ok(value)
}

fn check_depth(
    state: &State,
    value: &Value,
    left: usize,
    for_namespace: bool,
) -> Result<(), Error> {
    let is_map = value.kind() == ValueKind::Map;
    if is_engines(value) {
        return match for_namespace {
            true => Err(refused(
                "found a namespace or macro in what a namespace is to hold, which is not supported here",
            )),
            false => Ok(()),
        };
    }
    let iterated = value.downcast_object_ref::<Iterated>();
    if !is_map && !is_list(value) && iterated.is_none() {
        return Ok(());
    }
    let is_of_row = value.downcast_object_ref::<Dict>().is_some();
    if left < if is_of_row { ROW_DEPTH } else { 1 } {
        return Err(refused(format!(
            "found lists in more than {MAX_DEPTH} lists, expected at most that"
        )));
    }
    if is_of_row {
        return Ok(());
    }
    state.consume_fuel(1 + value.len().unwrap_or(0) as u64 / 8)?;
    let check = |value: &Value| check_depth(state, value, left - 1, for_namespace);
    if let Some(iterated) = iterated {
        state.consume_fuel(iterated.items.len() as u64 / 8)?;
        return iterated.items.iter().try_for_each(check);
    }
    for item in value.try_iter()?.checked() {
        let item = item?;
        check(&item)?;
        if is_map {
            check(&value.get_item(&item)?)?;
        }
    }
    Ok(())
}

/// What is not as in Python here.
pub fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// A map of minijinja's.
#[derive(Debug)]
struct Dict(DynObject);

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match key.as_str().and_then(|key| key.strip_suffix('\0')) {
            None => self.0.get_value(key),
            Some(method) => self.0.get_value_by_str(method).or_else(|| {
                let message = format!("found no `{method}`, for which Python has its method: expected such an entry, or .get('{method}')");
                Some(refused(message).into())
            }),
        }
    }

    /// `dict.key`, which finds a method in Python first.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if DICT_METHODS.split(' ').any(|method| method == key) {
            let message = format!(
                "Python has a method `{key}` there, expected it to be called, or ['{key}'] for an entry"
            );
            return Some(refused(message).into());
        }
        self.0.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.enumerate()
    }
}

/// What can be gone through, and has no items by number: a generator of Python's, or the keys, values or items of a dict.
#[derive(Debug)]
pub struct Iterated {
    items: Vec<Value>,
    /// A generator is true, has no length and is gone through once; a dict's keys are otherwise.
    is_generator: bool,
    is_used: AtomicBool,
}

impl Iterated {
    /// # Errors
    /// The value has no items.
    pub fn generator(value: &Value) -> Result<Value, Error> {
        let items = value.try_iter()?.checked().collect::<Result<_, _>>()?;
        Ok(Self::value(items, true))
    }

    fn value(items: Vec<Value>, is_generator: bool) -> Value {
        Value::from_object(Self {
            items,
            is_generator,
            is_used: AtomicBool::new(false),
        })
    }
}

impl Object for Iterated {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        let message = "found a generator or a dict's keys, values or items, which have no items by number or name, expected a list: `| list` makes one";
        Some(refused(message).into())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(
            match self.is_generator && self.is_used.swap(true, Ordering::Relaxed) {
                true => vec![
                    refused("found a generator that was gone through before, expected a list")
                        .into(),
                ],
                false => self.items.clone(),
            },
        )
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        (!self.is_generator).then_some(self.items.len())
    }
}

/// A text of the filter `safe`. What is added to one is escaped in Jinja2: here that is an error, as for any object.
#[derive(Debug)]
pub struct Safe(pub String);

impl Object for Safe {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(refused("found a text of the filter `safe`, expected one without it").into())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !self.0.is_empty()
    }
}

/// Whether this is a list to Python, or a tuple.
pub fn is_list(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq => true,
        ValueKind::Iterable => {
            value.len().is_some() && value.downcast_object_ref::<Iterated>().is_none()
        }
        _ => false,
    }
}

/// Whether this is an object of the engine that looks like a map: a namespace, a macro or `loop`.
pub fn is_engines(value: &Value) -> bool {
    let name = value.as_object().map_or("", DynObject::type_name);
    ["Namespace", "Macro", "Loop"]
        .iter()
        .any(|object| name.ends_with(object))
}

/// `keys`, `values` and `items` of a dict, as Python has them.
pub fn dict_method(value: &Value, method: &str, args: &[Value]) -> Option<Result<Value, Error>> {
    let map = value
        .as_object()
        .filter(|_| value.kind() == ValueKind::Map)?;
    let pairs = || map.try_iter_pairs().into_iter().flatten();
    let items: Vec<Value> = match method {
        "keys" => pairs().map(|(key, _)| key).collect(),
        "values" => pairs().map(|(_, value)| value).collect(),
        "items" => pairs()
            .map(|(key, value)| Tuple::from([key, value]).into())
            .collect(),
        _ => return None,
    };
    Some(match args {
        [] => Ok(Iterated::value(items, false)),
        _ => Err(ErrorKind::TooManyArguments.into()),
    })
}
