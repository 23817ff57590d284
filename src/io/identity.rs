//! What a run's answers depend on besides its rows, part by part, so that what an earlier run left is not taken for this
//! one's, and the part that differs can be named.

use crate::quote;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Named parts in order: files of a model by their contents, options by their values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity(Vec<Part>);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Part {
    name: String,
    #[serde(flatten)]
    value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Value {
    /// The hash of the file's contents.
    Sha256(String),
    /// A short text, which a message may show.
    Text(String),
}

impl Identity {
    /// The parts of a model, each a name and a hash of its contents.
    pub fn of_model(parts: &[(String, String)]) -> Self {
        let part = |(name, hash): &(String, String)| Part {
            name: name.clone(),
            value: Value::Sha256(hash.clone()),
        };
        Self(parts.iter().map(part).collect())
    }

    /// Adds an option.
    #[must_use]
    pub fn with(mut self, name: &str, text: impl ToString) -> Self {
        self.0.push(Part {
            name: name.to_owned(),
            value: Value::Text(text.to_string()),
        });
        self
    }

    /// The option of that name.
    pub fn option(&self, name: &str) -> Option<&str> {
        let part = self.0.iter().find(|part| part.name == name)?;
        match &part.value {
            Value::Text(text) => Some(text),
            Value::Sha256(_) => None,
        }
    }

    /// The parts in which `then`, an earlier run's, is another: one text for all of them; nothing where there are none.
    pub fn differences(&self, then: &Self) -> Option<String> {
        let find = |identity: &Self, name: &str| -> Option<Value> {
            let mut found = identity.0.iter().filter(|part| part.name == name);
            found.next().map(|part| part.value.clone())
        };
        let names = self.0.iter().chain(&then.0).map(|part| &part.name);
        let mut seen = std::collections::HashSet::new();
        let differing: Vec<String> = names
            .filter(|name| seen.insert(*name))
            .filter_map(|name| {
                Some(match (find(then, name), find(self, name)) {
                    (then, now) if then == now => return None,
                    (Some(Value::Text(then)), Some(Value::Text(now))) => {
                        format!(
                            "{} (was {}, is {now})",
                            quote::text(name),
                            quote::text(then)
                        )
                    }
                    (None, _) => format!("{} (was not there)", quote::text(name)),
                    (_, None) => format!("{} (is no longer there)", quote::text(name)),
                    _ => quote::text(name),
                })
            })
            .collect();
        (!differing.is_empty()).then(|| differing.join(", "))
    }

    /// One number for all of it.
    pub fn hash(&self) -> u64 {
        let text = serde_json::to_vec(self).expect("strings and numbers always serialise");
        let digest = Sha256::digest(text);
        u64::from_le_bytes(std::array::from_fn(|i| digest[i]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_named() {
        let hash = |name: &str, hash: &str| (name.to_owned(), hash.to_owned());
        let now = Identity::of_model(&[hash("config.json", "a"), hash("tokenizer.json", "b")])
            .with("--temperature", 0.5)
            .with("--seed", 1);
        assert_eq!(now.differences(&now), None);
        let then = Identity::of_model(&[hash("config.json", "c"), hash("added_tokens.json", "d")])
            .with("--temperature", 0)
            .with("--seed", 1);
        assert_eq!(
            now.differences(&then).unwrap(),
            "config.json, tokenizer.json (was not there), --temperature (was 0, is 0.5), added_tokens.json (is no longer there)"
        );
        assert_ne!(now.hash(), then.hash());
        let text = serde_json::to_string(&now).unwrap();
        assert_eq!(serde_json::from_str::<Identity>(&text).unwrap(), now);
    }
}
