//! What a row is called: by itself, or by its line number.

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
        Self::integer(number.into())
    }

    pub fn integer(number: i128) -> Self {
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
