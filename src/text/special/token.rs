//! A token as a checkpoint's files write it.

use serde_json::Value;
use tokenizers::AddedToken;

use super::Wrong;
use crate::json;

/// An `AddedToken` of transformers. Without the flag `normalized`, a token is normalized unless it is special.
#[derive(Debug, Clone, PartialEq)]
pub struct Token {
    pub content: String,
    single_word: bool,
    lstrip: bool,
    rstrip: bool,
    pub normalized: Option<bool>,
    pub special: bool,
}

impl Token {
    /// Reads `{"content": …}`, or a text, which is a special token.
    pub fn parse(json: &Value) -> std::result::Result<Self, Wrong> {
        let flag = |name: &str| match &json[name] {
            Value::Null => Ok(None),
            Value::Bool(flag) => Ok(Some(*flag)),
            other => Err(format!(
                "`{name}`: found {}, expected true or false",
                json::shown(other)
            )),
        };
        match json {
            Value::String(content) => Ok(Self::special(content)),
            Value::Object(fields) => Ok(Self {
                content: match fields.get("content") {
                    Some(Value::String(content)) => content.clone(),
                    _ => return Err("found no text in `content`, expected the token's".to_owned()),
                },
                single_word: flag("single_word")?.unwrap_or(false),
                lstrip: flag("lstrip")?.unwrap_or(false),
                rstrip: flag("rstrip")?.unwrap_or(false),
                normalized: flag("normalized")?,
                special: flag("special")?.unwrap_or(false),
            }),
            other => Err(format!(
                "found {}, expected a token's text or an object with `content`",
                json::shown(other)
            )),
        }
    }

    /// The special token of this text.
    pub fn special(content: &str) -> Self {
        Self {
            content: content.to_owned(),
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: None,
            special: true,
        }
    }

    /// The token as the `tokenizers` crate has it.
    pub fn added(self) -> AddedToken {
        AddedToken::from(self.content, self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized.unwrap_or(!self.special))
    }
}
