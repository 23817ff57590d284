//! Typed access to the fields of a JSON object whose errors name the file, the field, what was found and what
//! was expected.

use super::files;
use crate::error::{Error, Result};
use crate::json;
use crate::quote;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::path::Path;

/// A JSON object and where it came from. A field that is null counts as absent, as it does in transformers.
pub(super) struct Fields<'a> {
    path: &'a Path,
    /// Leads to this object inside the file, with a dot at its end; empty for the file's own object.
    prefix: String,
    object: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    pub fn new(path: &'a Path, root: &'a Value) -> Result<Self> {
        let object = root.as_object().ok_or_else(|| {
            Error::file(
                path,
                format!("found {}, expected a JSON object", json::shown(root)),
            )
        })?;
        Ok(Self {
            path,
            prefix: String::new(),
            object,
        })
    }

    pub fn is_empty(&self) -> bool {
        self.object.is_empty()
    }

    /// The value of a field, unless absent or null.
    pub fn get(&self, name: &str) -> Option<&'a Value> {
        self.object.get(name).filter(|value| !value.is_null())
    }

    /// The names of all fields, in the file's order.
    pub fn names(&self) -> impl Iterator<Item = &'a str> {
        self.object.keys().map(String::as_str)
    }

    /// The object in field `name`.
    pub fn object(&self, name: &str) -> Result<Option<Fields<'a>>> {
        self.optional(name, "an object", |value| {
            value.as_object().map(|object| Fields {
                path: self.path,
                prefix: format!("{}{name}.", self.prefix),
                object,
            })
        })
    }

    /// That the object has no field but those of `known` names.
    pub fn check_names(&self, known: &[&str]) -> Result<()> {
        let unknown = |name: &&str| !known.contains(name) && self.get(name).is_some();
        self.names().find(unknown).map_or(Ok(()), |name| {
            let name = quote::text(name);
            Err(self.error(&name, "is not understood here, expected no such field"))
        })
    }

    /// That a field has one of these values, where it is there.
    pub fn check(&self, name: &str, values: &[Value]) -> Result<()> {
        match self.get(name) {
            Some(found) if !values.contains(found) => {
                let values: Vec<String> = values.iter().map(json::shown).collect();
                let expected = match &values[..] {
                    [] => "null".to_owned(),
                    values => values.join(" or "),
                };
                Err(self.wrong(name, found, &expected))
            }
            _ => Ok(()),
        }
    }

    /// An error about field `name`, whose value is `found`.
    pub fn wrong(&self, name: &str, found: &Value, expected: &str) -> Error {
        self.error(
            name,
            format!("found {}, expected {expected}", json::shown(found)),
        )
    }

    /// An error about field `name` in the caller's words.
    pub fn error(&self, name: &str, message: impl std::fmt::Display) -> Error {
        Error::file(
            self.path,
            format!("field \"{}{name}\": {message}", self.prefix),
        )
    }

    /// `read` turns the field's value into what the caller wants, or gives `None` where it does not fit.
    pub fn optional<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        match self.get(name) {
            None => Ok(None),
            Some(value) => read(value)
                .map(Some)
                .ok_or_else(|| self.wrong(name, value, expected)),
        }
    }

    /// An integer in `min ..= max`, which must be there.
    pub fn required_size(&self, name: &str, min: u64, max: u64) -> Result<usize> {
        self.size(name, min, max)?.ok_or_else(|| {
            let found = match self.object.get(name) {
                Some(_) => "found null",
                None => "is missing",
            };
            self.error(
                name,
                format!("{found}, expected an integer from {min} to {max}"),
            )
        })
    }

    /// An integer in `min ..= max`.
    pub fn size(&self, name: &str, min: u64, max: u64) -> Result<Option<usize>> {
        self.optional(name, &format!("an integer from {min} to {max}"), |value| {
            let size = u64::try_from(json::integer(value)?).ok()?;
            let size = Some(size).filter(|size| (min..=max).contains(size))?;
            usize::try_from(size).ok()
        })
    }

    pub fn bool(&self, name: &str) -> Result<Option<bool>> {
        self.optional(name, "true or false", Value::as_bool)
    }

    /// A number that `valid` accepts; `expected` says which ones it does.
    pub fn number(
        &self,
        name: &str,
        expected: &str,
        valid: impl FnOnce(f64) -> bool,
    ) -> Result<Option<f64>> {
        self.optional(name, expected, |value| {
            value.as_f64().filter(|&number| valid(number))
        })
    }

    /// A token id. One that no vocabulary has is none: -1 is often written for it.
    pub fn token_id(&self, name: &str) -> Result<Option<u32>> {
        let id = self.optional(name, "a token id (an integer)", json::integer)?;
        Ok(id.and_then(token_id))
    }

    /// One token id or a list of them, of which those that no vocabulary has are left out.
    pub fn token_ids(&self, name: &str) -> Result<Option<Vec<u32>>> {
        let expected = "a token id or a list of token ids";
        let ids: Option<Vec<i128>> = self.optional(name, expected, |value| match value {
            Value::Array(ids) => ids.iter().map(json::integer).collect(),
            _ => json::integer(value).map(|id| vec![id]),
        })?;
        Ok(ids.map(|ids| ids.into_iter().filter_map(token_id).collect()))
    }
}

fn token_id(id: i128) -> Option<u32> {
    u32::try_from(id).ok()
}

/// Values of JSON in a file, at most: each takes tens of bytes in memory, however short it is in the file.
const MAX_VALUES: usize = 1 << 22;

/// Parses JSON from the file at `path`; `what` is what it should be.
pub(super) fn parse<T: DeserializeOwned>(text: &[u8], path: &Path, what: &str) -> Result<T> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    files::refuse_others(path, text, what)?;
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    if text.len() > MAX_VALUES && json::count_values(text) > MAX_VALUES {
        return Err(Error::file(
            path,
            format!("found more than {MAX_VALUES} values of JSON, expected {what} of fewer"),
        ));
    }
    json::from_slice(text)
        .map_err(|error| Error::file(path, format!("expected {what}: {}", quote::message(error))))
}
