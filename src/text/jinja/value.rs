//! Values of a row, printed as Python prints them. minijinja's own containers print almost like Python's; a row's are of
//! types of ours, so that they do so wherever a template makes a text of them (`~` asks nobody else).

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use minijinja::value::{DynObject, Enumerator, Object, ObjectRepr, Tuple, ValueIter, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use crate::{json, quote};

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
            (None, None) => float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::Array(items) => {
            let items = items.iter().map(from_json).collect::<Result<_, _>>()?;
            Value::from_object(List(items))
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

/// The filter that looks at what a template sets. No template can write its name.
pub const KEPT: &str = "_kept";

/// Lists in lists, at most: what prints, compares and drops values recurses in them. A row's have at most 128.
const MAX_DEPTH: usize = 256;
const ROW_DEPTH: usize = 128;

/// A value that a template keeps. Loops that add to one make it deep or large, which is bounded here: what is left of a
/// slice or sum of lists for later becomes a list, and a namespace holds none.
///
/// # Errors
/// The value is too deep, or it is of a namespace for another one.
pub fn kept(state: &State, value: Value, for_namespace: Option<bool>) -> Result<Value, Error> {
    let value = match is_list(&value) && value.kind() == ValueKind::Iterable {
        true => {
            state.consume_fuel(value.len().unwrap_or(0) as u64 / 2)?;
            let items = value.try_iter()?.checked().collect::<Result<Vec<_>, _>>()?;
            Value::from(items)
        }
        false => value,
    };
    check_depth(state, &value, MAX_DEPTH, for_namespace.unwrap_or(false))?;
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
    if !is_map && !is_list(value) {
        return Ok(());
    }
    let is_of_row = value.downcast_object_ref::<List>().is_some()
        || value.downcast_object_ref::<Dict>().is_some();
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

#[derive(Debug)]
struct List(Vec<Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        repr(f, &Value::from_dyn_object(self.clone()), &mut |_| Ok(()))
    }
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

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        repr(f, &Value::from_dyn_object(self.clone()), &mut |_| Ok(()))
    }
}

/// A float that Python prints with an exponent and minijinja without. It can be printed and passed on; sums of it are an
/// error.
#[derive(Debug)]
pub struct WideFloat(pub f64);

impl Object for WideFloat {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&float_text(self.0))
    }
}

fn float(value: f64) -> Value {
    if value == 0.0 || (1e-4..1e16).contains(&value.abs()) {
        Value::from(value)
    } else {
        Value::from_object(WideFloat(value))
    }
}

/// Python's `repr` of a float.
pub fn float_text(value: f64) -> String {
    if value.is_nan() {
        return "nan".to_owned();
    }
    // Rust's has the same digits, and an exponent where Python has one: e7 for e+07.
    let text = format!("{value:?}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent
                .strip_prefix('-')
                .map_or(('+', exponent), |rest| ('-', rest));
            format!("{digits}e{sign}{exponent:0>2}")
        }
        None => text,
    }
}

/// What Python's generators are: true, of no length, without items by number, and gone through once.
#[derive(Debug)]
pub struct Generator(Mutex<ValueIter>);

impl Generator {
    /// # Errors
    /// The value has no items.
    pub fn of(value: &Value) -> Result<Value, Error> {
        Ok(Value::from_object(Self(Mutex::new(value.try_iter()?))))
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(refused("found a generator, which has no items by number or name, expected a list: `| list` makes one").into())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Iter(Box::new(Items(self.clone())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }
}

/// What is left of a generator. Its length is for `loop.last`.
struct Items(Arc<Generator>);

impl Iterator for Items {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.0
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.0
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .size_hint()
    }
}

/// A text of the filter `safe`. What is added to one is escaped in Jinja2: here that is an error, as for any object.
#[derive(Debug)]
pub struct Safe(pub String);

impl Object for Safe {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !self.0.is_empty()
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The keys, values or items of a dict: lists that print otherwise, and are no JSON.
#[derive(Debug)]
struct View(Vec<Value>);

impl Object for View {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn get_value(self: &Arc<Self>, _: &Value) -> Option<Value> {
        Some(
            refused("found keys, values or items of a dict, expected a list: `| list` makes one")
                .into(),
        )
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let this = self.clone();
        Enumerator::Iter(Box::new(
            (0..this.0.len()).map(move |at| this.0[at].clone()),
        ))
    }
}

/// Whether this is a list to Python, or a tuple.
pub fn is_list(value: &Value) -> bool {
    match value.kind() {
        ValueKind::Seq => true,
        ValueKind::Iterable => {
            value.len().is_some() && value.downcast_object_ref::<View>().is_none()
        }
        _ => false,
    }
}

/// Python's `str` of a value.
///
/// # Errors
/// It shows an address there, or is not known here.
pub fn text(value: &Value, state: &State) -> Result<String, Error> {
    if let Some(text) = value
        .as_str()
        .or_else(|| Some(value.downcast_object_ref::<Safe>()?.0.as_str()))
    {
        return Ok(text.to_owned());
    }
    if value.is_undefined() {
        return Ok(String::new());
    }
    let mut out = String::new();
    let mut failed = None;
    let written = repr(&mut out, value, &mut |value| {
        let checked = match value {
            Some(value) => Err(refused(format!(
                "found a value of type {} to print, expected one that Python prints the same everywhere",
                value.kind()
            ))),
            None => state.consume_fuel(1),
        };
        checked.map_err(|error| {
            failed = Some(error);
            fmt::Error
        })
    });
    match (failed, written) {
        (Some(error), _) => Err(error),
        (None, written) => Ok(written.map(|()| out)?),
    }
}

/// Whether this is an object of the engine that looks like a map: a namespace, a macro or `loop`.
fn is_engines(value: &Value) -> bool {
    let name = value.as_object().map_or("", DynObject::type_name);
    ["Namespace", "Macro", "Loop"]
        .iter()
        .any(|object| name.ends_with(object))
}

/// Writes Python's `repr`. `check` is asked before each item, and of a value that has none.
fn repr(
    out: &mut dyn fmt::Write,
    value: &Value,
    check: &mut dyn FnMut(Option<&Value>) -> fmt::Result,
) -> fmt::Result {
    match value.kind() {
        ValueKind::String => text_repr(out, value.as_str().unwrap_or_default()),
        ValueKind::None | ValueKind::Bool => write!(out, "{value}"),
        ValueKind::Number if value.is_integer() => write!(out, "{value}"),
        ValueKind::Number => out.write_str(&float_text(
            f64::try_from(value.clone()).unwrap_or(f64::NAN),
        )),
        ValueKind::Map if !is_engines(value) => {
            out.write_char('{')?;
            let pairs = value.as_object().and_then(DynObject::try_iter_pairs);
            for (at, (key, value)) in pairs.into_iter().flatten().enumerate() {
                check(None)?;
                out.write_str(if at == 0 { "" } else { ", " })?;
                repr(out, &key, check)?;
                out.write_str(": ")?;
                repr(out, &value, check)?;
            }
            out.write_char('}')
        }
        _ if is_list(value) => {
            let is_tuple = value.is_tuple();
            out.write_char(if is_tuple { '(' } else { '[' })?;
            for (at, item) in value.try_iter().into_iter().flatten().enumerate() {
                check(None)?;
                out.write_str(if at == 0 { "" } else { ", " })?;
                repr(out, &item, check)?;
            }
            out.write_str(match (is_tuple, value.len()) {
                (true, Some(1)) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            })
        }
        _ if value.downcast_object_ref::<WideFloat>().is_some() => write!(out, "{value}"),
        _ => check(Some(value)),
    }
}

/// Python's `repr` of a text.
fn text_repr(out: &mut dyn fmt::Write, text: &str) -> fmt::Result {
    let quote = if text.contains('\'') && !text.contains('"') {
        '"'
    } else {
        '\''
    };
    out.write_char(quote)?;
    for c in text.chars() {
        match c {
            '\n' => out.write_str("\\n")?,
            '\r' => out.write_str("\\r")?,
            '\t' => out.write_str("\\t")?,
            c if c == quote || c == '\\' => write!(out, "\\{c}")?,
            c if quote::is_printable(c) => out.write_char(c)?,
            c => match u32::from(c) {
                code @ 0..=0xff => write!(out, "\\x{code:02x}")?,
                code @ 0x100..=0xffff => write!(out, "\\u{code:04x}")?,
                code => write!(out, "\\U{code:08x}")?,
            },
        }
    }
    out.write_char(quote)
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
        [] => Ok(Value::from_object(View(items))),
        _ => Err(ErrorKind::TooManyArguments.into()),
    })
}
