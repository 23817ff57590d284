//! What a row is called: by itself, or by its line number.

use super::{Code, RowError};
use crate::io::fields::wrong;
use crate::json;
use serde_json::Value;

/// A row's id: a string or an integer. Two are the same if they read the same: `"7"` is 7.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Id {
    text: String,
    shown: Shown,
}

/// What an answer carries as its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shown {
    Text,
    Integer,
    /// null: the line has an id perhaps, but it could not be read.
    Nothing,
}

/// Bytes of an id, at most: it is kept until the row is answered, and repeated there.
pub const MAX_ID_BYTES: usize = 4096;

impl Id {
    /// What a row without an id is called.
    pub fn line(number: u64) -> Self {
        Self {
            text: number.to_string(),
            shown: Shown::Integer,
        }
    }

    /// What messages call a line whose id could not be read; its answer has null.
    pub fn unread(number: u64) -> Self {
        Self {
            shown: Shown::Nothing,
            ..Self::line(number)
        }
    }

    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            shown: Shown::Text,
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(in crate::io) fn from_value(value: &Value, name: &str) -> Result<Self, RowError> {
        match (value, json::integer(value)) {
            (Value::String(text), _) if text.len() <= MAX_ID_BYTES => Ok(Self::text(text.clone())),
            (Value::String(text), _) => Err(RowError::new(
                Code::InvalidRequest,
                format!(
                    "{name}: found a string of {} bytes, expected at most {MAX_ID_BYTES}",
                    text.len()
                ),
            )),
            (_, Some(number)) => Ok(Self {
                text: number.to_string(),
                shown: Shown::Integer,
            }),
            _ => Err(wrong(
                name,
                value,
                "a string or an integer of at most 128 bits",
            )),
        }
    }
}

impl serde::Serialize for Id {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.shown == Shown::Nothing {
            return serializer.serialize_none();
        }
        match (self.shown, self.text.parse()) {
            (Shown::Integer, Ok(number)) => serializer.serialize_i128(number),
            _ => serializer.serialize_str(&self.text),
        }
    }
}
