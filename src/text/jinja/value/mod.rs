//! Python's values where minijinja has none of its own or treats them otherwise: lists that know whether they are
//! tuples, ranges or views, generators that run out, dicts whose keys compare as in Python, namespaces, methods.
//!
//! Each container knows how deep it nests and refuses to become too deep, so that printing, comparing and dropping
//! one, which recurse, stay within the stack. A namespace changes after it was put into a container, so it holds no
//! other: then nothing holds itself, and containers within a namespace within containers are as deep as it gets.
//!
//! - `namespace`: namespaces, and their end
//! - `kind`: Python's types
//! - `numbers`: what is a number

mod kind;
mod namespace;
pub mod numbers;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use indexmap::IndexMap;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, ErrorKind, Value};

use super::meter;
pub use kind::{Type, name, type_of};
pub use namespace::{Namespace, empty_namespaces};

/// Deeper than any conversation; Python itself gives up printing at about 1,000.
pub const MAX_DEPTH: usize = 400;
/// Added to the depth of a container that holds a namespace.
const HOLDS_NAMESPACE: usize = 1 << 16;

/// An error of a template.
pub fn wrong(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// What kind of sequence a [`Seq`] is in Python.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeqKind {
    List,
    Tuple,
    /// `groupby`'s pair: a tuple whose items are also `grouper` and `list`.
    Group,
    Range {
        start: i64,
        stop: i64,
        step: i64,
    },
    Keys,
    Values,
    Items,
}

#[derive(Debug)]
pub struct Seq {
    pub kind: SeqKind,
    pub items: Vec<Value>,
    depth: usize,
}

impl Object for Seq {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.items.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.items.len())
    }
}

/// A sequence of this kind.
///
/// # Errors
/// It nests too deeply, or is more than the rendering may still make.
pub fn seq(kind: SeqKind, items: Vec<Value>) -> Result<Value, Error> {
    meter::charge_items(items.len() + 1)?;
    let depth = deeper(items.iter())?;
    Ok(Value::from_object(Seq { kind, items, depth }))
}

pub fn list(items: Vec<Value>) -> Result<Value, Error> {
    seq(SeqKind::List, items)
}

pub fn tuple(items: Vec<Value>) -> Result<Value, Error> {
    seq(SeqKind::Tuple, items)
}

/// What Python yields item by item: it is true even when empty, has no length, and can be read once.
#[derive(Debug)]
pub struct Generator {
    rest: Mutex<std::vec::IntoIter<Value>>,
    depth: usize,
}

impl Generator {
    fn lock(&self) -> MutexGuard<'_, std::vec::IntoIter<Value>> {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn next(&self) -> Option<Value> {
        self.lock().next()
    }
}

impl Object for Generator {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let generator = self.clone();
        Enumerator::Iter(Box::new(std::iter::from_fn(move || generator.next())))
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        None
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }
}

pub fn generator(items: Vec<Value>) -> Result<Value, Error> {
    meter::charge_items(items.len() + 1)?;
    let depth = deeper(items.iter())?;
    Ok(Value::from_object(Generator {
        rest: Mutex::new(items.into_iter()),
        depth,
    }))
}

/// What Python compares of a dict's key: 1, 1.0 and True are one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    None,
    Undefined,
    Str(Arc<str>),
    Int(i128),
    /// The bits of a float that is no integer.
    Float(u64),
    Tuple(Vec<Key>),
    /// Compared by identity.
    Object(usize),
}

impl Key {
    /// # Errors
    /// Lists and dicts cannot be keys.
    pub fn of(value: &Value) -> Result<Self, Error> {
        Ok(match type_of(value) {
            Type::None => Self::None,
            Type::Undefined => Self::Undefined,
            Type::Str => Self::Str(value.to_str().unwrap_or_default()),
            Type::Bool | Type::Int => Self::Int(numbers::int(value)?),
            Type::Float => {
                let x = numbers::float(value)?;
                match x.fract() == 0.0 && x.abs() < 1e38 {
                    true => Self::Int(x as i128),
                    false => Self::Float(x.to_bits()),
                }
            }
            Type::Tuple => {
                let items = items_of(value).unwrap_or_default();
                // A tuple may hold one tuple many times: all of its leaves are walked.
                meter::charge_items(items.len() + 1)?;
                Self::Tuple(items.iter().map(Self::of).collect::<Result<_, _>>()?)
            }
            Type::List | Type::Dict | Type::View => {
                return Err(wrong(format!("unhashable type: '{}'", name(value))));
            }
            _ => Self::Object(address(value)),
        })
    }
}

#[derive(Debug, Default)]
pub struct Dict {
    entries: IndexMap<Key, (Value, Value)>,
    depth: usize,
}

impl Dict {
    pub fn get(&self, key: &Key) -> Option<&Value> {
        self.entries.get(key).map(|(_, value)| value)
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &(Value, Value)> {
        self.entries.values()
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get(&Key::of(key).ok()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.iter().map(|(key, _)| key.clone()).collect())
    }
}

/// A dict of these pairs: a later one of the same key replaces the value of an earlier one.
///
/// # Errors
/// A key that Python cannot hash, too deep a nesting, too much for the rendering.
pub fn dict(pairs: impl IntoIterator<Item = (Value, Value)>) -> Result<Value, Error> {
    let mut entries: IndexMap<Key, (Value, Value)> = IndexMap::new();
    for (key, value) in pairs {
        meter::charge_items(4)?;
        let hashed = Key::of(&key)?;
        match entries.get_mut(&hashed) {
            Some(entry) => entry.1 = value,
            None => drop(entries.insert(hashed, (key, value))),
        }
    }
    let depth = deeper(entries.values().flat_map(|(key, value)| [key, value]))?;
    Ok(Value::from_object(Dict { entries, depth }))
}

/// A dict's value of this key; also of the keyword arguments of a call, which are minijinja's own.
pub fn entry(container: &Value, key: &Key) -> Option<Value> {
    match container.downcast_object_ref::<Dict>() {
        Some(dict) => dict.get(key).cloned(),
        None => match key {
            Key::Str(key) => container
                .get_attr(key)
                .ok()
                .filter(|value| !value.is_undefined()),
            _ => None,
        },
    }
}

/// A method without its call: `message.items`. What its call does is in `methods`.
#[derive(Debug)]
pub struct Method {
    pub of: Value,
    pub name: String,
}

/// The items of a list, tuple, range or view, without a copy.
pub fn items_of(value: &Value) -> Option<&[Value]> {
    Some(&value.downcast_object_ref::<Seq>()?.items)
}

/// What a loop over `value` goes through: items, keys or characters. A generator is used up.
///
/// # Errors
/// Python cannot iterate over it.
pub fn iterate(value: &Value) -> Result<Vec<Value>, Error> {
    if let Some(items) = items_of(value) {
        meter::charge_items(items.len())?;
        return Ok(items.to_vec());
    }
    if let Some(dict) = value.downcast_object_ref::<Dict>() {
        meter::charge_items(dict.len())?;
        return Ok(dict.iter().map(|(key, _)| key.clone()).collect());
    }
    if let Some(generator) = value.downcast_object_ref::<Generator>() {
        return Ok(std::iter::from_fn(|| generator.next()).collect());
    }
    match type_of(value) {
        Type::Undefined => Ok(Vec::new()),
        Type::Str => {
            let text = value.as_str().unwrap_or_default();
            meter::charge_items(text.len())?;
            Ok(text.chars().map(Value::from).collect())
        }
        _ => Err(wrong(format!("'{}' object is not iterable", name(value)))),
    }
}

/// Python's `len`.
///
/// # Errors
/// The value has none.
pub fn length(value: &Value) -> Result<usize, Error> {
    match type_of(value) {
        Type::Undefined => Ok(0),
        Type::Str => Ok(value.as_str().unwrap_or_default().chars().count()),
        Type::Dict => Ok(value.len().unwrap_or_default()),
        _ => items_of(value)
            .map(<[Value]>::len)
            .ok_or_else(|| wrong(format!("object of type '{}' has no len()", name(value)))),
    }
}

/// Where an object lies: what Python's `is` compares. 0 for what is no object here.
pub fn address(value: &Value) -> usize {
    fn of<T: 'static>(value: &Value) -> Option<usize> {
        value
            .downcast_object_ref::<T>()
            .map(|object| std::ptr::from_ref(object).addr())
    }
    of::<Seq>(value)
        .or_else(|| of::<Dict>(value))
        .or_else(|| of::<Generator>(value))
        .or_else(|| of::<Namespace>(value))
        .or_else(|| of::<Method>(value))
        .unwrap_or(0)
}

/// JSON as a template sees it.
///
/// # Errors
/// It nests too deeply or is too large.
pub fn from_json(value: &serde_json::Value) -> Result<Value, Error> {
    if let Some(number) = crate::json::as_written(value) {
        return number.parse::<i128>().map(Value::from).map_err(|_| {
            wrong("found a number that is not finite, or an integer of more than 128 bits")
        });
    }
    Ok(match value {
        serde_json::Value::Array(items) => {
            list(items.iter().map(from_json).collect::<Result<_, _>>()?)?
        }
        serde_json::Value::Object(pairs) => dict(
            pairs
                .iter()
                .map(|(key, value)| Ok((Value::from(key.as_str()), from_json(value)?)))
                .collect::<Result<Vec<_>, Error>>()?,
        )?,
        serde_json::Value::String(text) => {
            meter::charge(text.len())?;
            Value::from(text.as_str())
        }
        other => Value::from_serialize(other),
    })
}

/// The depth of a container of these.
fn deeper<'a>(items: impl Iterator<Item = &'a Value>) -> Result<usize, Error> {
    let depth = 1 + items.map(depth_of).max().unwrap_or(0);
    match depth % HOLDS_NAMESPACE <= MAX_DEPTH {
        true => Ok(depth),
        false => Err(too_deep()),
    }
}

fn depth_of(value: &Value) -> usize {
    if let Some(seq) = value.downcast_object_ref::<Seq>() {
        seq.depth
    } else if let Some(dict) = value.downcast_object_ref::<Dict>() {
        dict.depth
    } else if let Some(generator) = value.downcast_object_ref::<Generator>() {
        generator.depth
    } else if let Some(method) = value.downcast_object_ref::<Method>() {
        1 + depth_of(&method.of)
    } else if value.downcast_object_ref::<Namespace>().is_some() {
        HOLDS_NAMESPACE
    } else {
        0
    }
}

fn too_deep() -> Error {
    wrong(format!(
        "the template nests lists and dicts more than {MAX_DEPTH} deep, expected less"
    ))
}
