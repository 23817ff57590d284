//! Special tokens that have names.

use serde_json::{Map, Value};
use std::collections::{BTreeMap, HashMap};

use super::token::Token;
use super::{NAMES, Wrong};
use crate::json;
use crate::quote;

const MODEL_SPECIFIC: &str = "model_specific_special_tokens";

/// Named tokens beyond the usual ones: every field whose name ends in `_token`, and `extra_special_tokens` where it is
/// an object; else `model_specific_special_tokens`.
#[derive(Default)]
pub struct Named(Vec<(String, Token)>);

impl Named {
    pub fn take_from(&mut self, fields: &mut Map<String, Value>) -> std::result::Result<(), Wrong> {
        let names: Vec<String> = fields
            .iter()
            .filter(|(name, value)| is_model_specific(name) && is_token(value))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let value = fields.shift_remove(&name).unwrap_or_default();
            self.insert(&name, &value)?;
        }
        self.take_extra(fields)?;
        // Only where nothing above is: transformers puts what it collected in its place.
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
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = token,
            None => self.0.push((name.to_owned(), token)),
        }
        Ok(())
    }

    /// The usual ones first. One that an added token has the text of is that token, with its flags.
    pub fn all(
        self,
        fields: &Map<String, Value>,
        decoder: &BTreeMap<i64, Token>,
    ) -> std::result::Result<Vec<(String, Token)>, Wrong> {
        let known: HashMap<&str, &Token> = decoder
            .values()
            .map(|token| (token.content.as_str(), token))
            .collect();
        let mut all = Vec::new();
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
            all.push((name.to_owned(), token));
        }
        // What special_tokens_map.json brought.
        let mut more = Named::default();
        for (name, value) in fields {
            if is_model_specific(name) && is_token(value) {
                more.insert(name, value)?;
            }
        }
        for (name, token) in self.0 {
            match more.0.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = token,
                None => more.0.push((name, token)),
            }
        }
        for (name, token) in more.0 {
            match all.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = token,
                None => all.push((name, token)),
            }
        }
        Ok(all)
    }
}

fn is_model_specific(name: &str) -> bool {
    name.ends_with("_token") && !NAMES.contains(&name)
}

/// A text, or an object that says it is an `AddedToken`.
fn is_token(value: &Value) -> bool {
    value.is_string() || value["content"].is_string()
}
