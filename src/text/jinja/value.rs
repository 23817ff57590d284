//! Values that behave differently in minijinja and in Python: a row's dicts, generators and safe texts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use crate::json;

/// The methods of Python's dict: `x.items` is a method there, never an entry.
pub const DICT_METHODS: &str =
    "clear copy fromkeys get items keys pop popitem setdefault update values";

/// The mark behind such a name where a template asks for the item of that name, as in `x['items']`: a NUL, written as in a
/// string literal.
pub const METHOD_MARK: &str = "\\x00";

/// The value that a template is given for one of a row.
///
/// # Errors
/// A number is neither an integer of at most 128 bits nor a finite float.
pub fn from_json(value: &serde_json::Value) -> Result<Value, Error> {
    if let Some(number) = json::as_written(value) {
        return number.parse::<i128>().map(Value::from).map_err(|_| {
            refused("found a number that is not finite, or an integer of more than 128 bits, expected neither")
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

/// The filter that checks what a template sets.
pub const KEPT: &str = "_kept";
/// The filter of what a template loops over.
pub const LOOPED: &str = "_looped";
/// The filter that makes texts of the operands of `~`, as Python prints them.
pub const JOINED: &str = "_joined";

/// The deepest that lists may lie in lists: printing, comparing and dropping values recurse in them.
const MAX_DEPTH: usize = 256;
/// The deepest that a row's lists lie in each other.
const ROW_DEPTH: usize = 128;

/// What a loop goes through. minijinja takes none for an empty list; in Python it is an error.
///
/// # Errors
/// The value is none.
pub fn looped(value: Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(refused("found none to loop over, expected a list"));
    }
    Ok(value)
}

/// The value that a template sets. A loop could make one deep by setting it again and again: depth is bounded here. Slices
/// and sums of lists, which minijinja evaluates once they are read, become lists, and a namespace holds no other one.
///
/// # Errors
/// The value is too deep, or it holds a namespace and is set in one.
pub fn kept(state: &State, mut value: Value, for_namespace: bool) -> Result<Value, Error> {
    let is_iterated = value.downcast_object_ref::<Iterated>().is_some();
    if value.kind() == ValueKind::Iterable && !is_iterated {
        let mut items = Vec::new();
        for item in value.try_iter()?.checked() {
            state.consume_fuel(1)?;
            items.push(item?);
        }
        value = Value::from(items);
    }
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
        if for_namespace {
            return Err(refused(
                "found a namespace or macro as a namespace's value, which is not supported here",
            ));
        }
        return Ok(());
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

/// The error of what differs from Python, or is too much.
pub fn refused(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

/// A row's dict, which has Python's methods and minijinja's entries.
#[derive(Debug)]
struct Dict(DynObject);

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        let method = key.as_str().and_then(|key| key.strip_suffix('\0'));
        match method.filter(|method| DICT_METHODS.split(' ').any(|known| known == *method)) {
            None => self.0.get_value(key),
            Some(method) => self.0.get_value_by_str(method).or_else(|| {
                let message = format!("found no `{method}` entry, for which Python gives the method: expected one, or .get('{method}')");
                Some(refused(message).into())
            }),
        }
    }

    /// `dict.key`, which finds a method in Python first.
    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if DICT_METHODS.split(' ').any(|method| method == key) {
            let message = format!(
                "Python has a method `{key}` there, expected a call of it, or ['{key}'] for the entry"
            );
            return Some(refused(message).into());
        }
        self.0.get_value_by_str(key)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.0.enumerate()
    }
}

/// A value that can be iterated over but not indexed: a generator, or the keys, values or items of a dict.
#[derive(Debug)]
pub struct Iterated {
    items: Vec<Value>,
    /// A generator is always true, has no length and can be iterated over once. None of that holds for a dict's keys.
    is_generator: bool,
    is_used: AtomicBool,
}

impl Iterated {
    /// A generator of the items of `value`.
    ///
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
        let message = "found a generator or a dict's keys, values or items, which cannot be indexed, expected a list: `| list` makes one";
        Some(refused(message).into())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        if self.is_generator && self.is_used.swap(true, Ordering::Relaxed) {
            let again = refused("found a generator that was gone through before, expected a list");
            return Enumerator::Values(vec![again.into()]);
        }
        Enumerator::Values(self.items.clone())
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        (!self.is_generator).then_some(self.items.len())
    }
}

/// A text of the filter `safe`. Jinja2 escapes what is added to one; here adding to one is an error.
#[derive(Debug)]
pub struct Safe(pub String);

impl Object for Safe {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(refused("found a text of the filter `safe`, expected one without that filter").into())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !self.0.is_empty()
    }
}

/// Whether this is a list or a tuple in Python.
pub fn is_list(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq => true,
        ValueKind::Iterable => {
            value.len().is_some() && value.downcast_object_ref::<Iterated>().is_none()
        }
        _ => false,
    }
}

/// Whether this is an object of minijinja's own that looks like a map: a namespace, a macro or `loop`.
pub fn is_engines(value: &Value) -> bool {
    let name = value.as_object().map_or("", DynObject::type_name);
    ["Namespace", "Macro", "Loop"]
        .iter()
        .any(|object| name.ends_with(object))
}

/// Calls a dict's `keys`, `values` or `items`; `None` for any other value or method.
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
