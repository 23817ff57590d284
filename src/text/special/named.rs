//! Special tokens that have names.

use indexmap::IndexMap;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};

use super::token::Token;
use super::{NAMES, Wrong};
use crate::json;
use crate::quote;

const MODEL_SPECIFIC: &str = "model_specific_special_tokens";

/// Named tokens beyond the usual ones: every field whose name ends in `_token`, and `extra_special_tokens` where it is
/// an object. Where there are none, they are those of `model_specific_special_tokens`.
#[derive(Default)]
pub struct Named(Tokens);

/// Tokens by their names, in the files' order.
pub type Tokens = IndexMap<String, Token>;

impl Named {
    /// Takes such tokens out of tokenizer_config.json's fields.
    pub fn take_from(&mut self, fields: &mut Map<String, Value>) -> std::result::Result<(), Wrong> {
        let all = std::mem::take(fields).into_iter();
        let (named, others): (Vec<_>, _) =
            all.partition(|(name, value)| is_model_specific(name) && is_token(value));
        *fields = others.into_iter().collect();
        for (name, value) in named {
            self.insert(&name, &value)?;
        }
        self.take_extra(fields)?;
        // transformers puts what it collected above in this field's place, so the field is read where that is nothing.
        match fields.get(MODEL_SPECIFIC) {
            Some(Value::Object(tokens)) if self.0.is_empty() => {
                for (name, value) in tokens {
                    self.insert(name, value)
                        .map_err(|message| format!("field `{MODEL_SPECIFIC}`: {message}"))?;
                }
                Ok(())
            }
            Some(other) if self.0.is_empty() && !other.is_null() => Err(format!(
                "field `{MODEL_SPECIFIC}`: found {}, expected an object of tokens by name",
                json::shown(other)
            )),
            _ => Ok(()),
        }
    }

    /// Takes the tokens out of `extra_special_tokens` if that is an object.
    pub fn take_extra(
        &mut self,
        fields: &mut Map<String, Value>,
    ) -> std::result::Result<(), Wrong> {
        if let Some(Value::Object(extra)) = fields.get("extra_special_tokens").cloned() {
            fields.shift_remove("extra_special_tokens");
            for (name, value) in &extra {
                self.insert(name, value)
                    .map_err(|message| format!("field `extra_special_tokens`: {message}"))?;
            }
        }
        Ok(())
    }

    fn insert(&mut self, name: &str, value: &Value) -> std::result::Result<(), Wrong> {
        let token = Token::parse(value)
            .map_err(|message| format!("field `{}`: {message}", quote::text(name)))?;
        self.0.insert(name.to_owned(), token);
        Ok(())
    }

    /// All named tokens, the usual ones first. A usual one with the text of an added token is that token, with its flags.
    pub fn all(
        self,
        fields: &Map<String, Value>,
        decoder: &BTreeMap<i64, Token>,
    ) -> std::result::Result<Tokens, Wrong> {
        let known: HashMap<&str, &Token> = decoder
            .values()
            .map(|token| (token.content.as_str(), token))
            .collect();
        let mut all = Tokens::new();
        for name in NAMES {
            let value = match fields.get(name) {
                None | Some(Value::Null) => continue,
                Some(value) => value,
            };
            let token =
                Token::parse(value).map_err(|message| format!("field `{name}`: {message}"))?;
            let token = known
                .get(token.content.as_str())
                .map_or(token, |&t| t.clone());
            all.insert(name.to_owned(), token);
        }
        // These fields came with special_tokens_map.json.
        let mut more = Named::default();
        for (name, value) in fields {
            if is_model_specific(name) && is_token(value) {
                more.insert(name, value)?;
            }
        }
        all.extend(more.0.into_iter().chain(self.0));
        Ok(all)
    }
}

fn is_model_specific(name: &str) -> bool {
    name.ends_with("_token") && !NAMES.contains(&name)
}

/// Whether a field's value is a token: a text, or an object with `content`.
fn is_token(value: &Value) -> bool {
    value.is_string() || value["content"].is_string()
}
