//! A conversation on its way to a chat template, and what transformers' `apply_chat_template` does to it there.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::jinja::{Reads, Takes, is_space};

/// What a template is given.
#[derive(Debug, Clone, PartialEq)]
pub struct Chat {
    /// A list of objects with `role` and `content`.
    pub messages: Value,
    /// A list of JSON schemas; a template can tell an empty one from none.
    pub tools: Option<Value>,
    /// More variables; they replace special tokens of the same name.
    pub kwargs: Map<String, Value>,
    /// Whether the prompt ends where the assistant's turn begins.
    pub add_generation_prompt: bool,
    /// The field of the last message that is to be continued: the prompt ends with its text.
    pub continue_final_message: Option<String>,
}

/// What a template may not show as it is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    pub name: String,
    pub why: &'static str,
}

impl Chat {
    /// These messages, up to where the assistant's turn begins.
    #[must_use]
    pub fn new(messages: Value, tools: Option<Value>) -> Self {
        Self {
            messages,
            tools: tools.filter(|tools| !tools.is_null()),
            kwargs: Map::new(),
            add_generation_prompt: true,
            continue_final_message: None,
        }
    }

    fn list(&self) -> &[Value] {
        self.messages.as_array().map_or(&[], Vec::as_slice)
    }

    /// With each message's content in the form that the template takes: parts for one that only goes through them, a
    /// text for one that only prints it. Where a template takes both, or cannot be told, contents are as they were
    /// given.
    #[must_use]
    pub fn fit(mut self, reads: &Reads) -> Self {
        for message in self.messages.as_array_mut().into_iter().flatten() {
            let Some(content) = message.get_mut("content") else {
                continue;
            };
            match (content, reads.takes()) {
                (content @ Value::Array(_), Takes::Text) => {
                    let parts = content.as_array().into_iter().flatten();
                    let texts: Option<String> = parts.map(|part| part["text"].as_str()).collect();
                    if let Some(text) = texts {
                        *content = text.into();
                    }
                }
                (content @ Value::String(_), Takes::Parts) => {
                    *content = json!([{"type": "text", "text": content.take()}]);
                }
                _ => {}
            }
        }
        self
    }

    /// What the template may not show as it is meant, each with a name that is the same in all rows.
    #[must_use]
    pub fn doubts(&self, reads: &Reads) -> Vec<Doubt> {
        let mut unread = Vec::new();
        if self.tools.is_some() && !reads.has_variable("tools") {
            unread.push("tools".to_owned());
        }
        let messages = self.list().iter().filter_map(Value::as_object);
        let given = messages.flatten().filter(|(_, value)| !value.is_null());
        let names: BTreeSet<&str> = given
            .map(|(name, _)| name.as_str())
            .filter(|&name| !matches!(name, "role" | "content") && !is_read(reads, name))
            .collect();
        unread.extend(names.iter().map(|name| format!("messages[].{name}")));
        let kwargs = self.kwargs.keys().filter(|name| !reads.has_variable(name));
        unread.extend(kwargs.map(|name| format!("chat_template_kwargs.{name}")));
        let doubt = |name| Doubt {
            name,
            why: "the chat template does not read it, the model will not see it",
        };
        let mut doubts: Vec<Doubt> = unread.into_iter().map(doubt).collect();
        let parts = self
            .list()
            .iter()
            .any(|message| message["content"].is_array());
        if parts && reads.takes() == Takes::Unknown {
            doubts.push(Doubt {
                name: "messages[].content".to_owned(),
                why: "found a list of parts, and it cannot be told whether the chat template takes one or a text: it is given the list as it is",
            });
        }
        doubts
    }

    /// The messages as transformers hands them on: fields without a value are left out, and reasoning goes by the
    /// names that templates know it by.
    ///
    /// # Errors
    /// The final message cannot be continued.
    pub(super) fn normalized(&self, source: &str) -> Result<(Value, Option<Continued>), String> {
        let mut messages: Vec<Value> = self.list().iter().map(normalized).collect();
        let continued = match &self.continue_final_message {
            None => None,
            Some(_) if self.add_generation_prompt => {
                return Err("continue_final_message: found it with add_generation_prompt, expected one of them".to_owned());
            }
            Some(field) => Some(Continued::mark(&mut messages, field, source)?),
        };
        Ok((messages.into(), continued))
    }
}

/// Names a message's reasoning is passed under.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Whether a template reads a message's field, by whichever name it is given it.
fn is_read(reads: &Reads, field: &str) -> bool {
    match REASONING.contains(&field) {
        true => REASONING.iter().any(|name| reads.has_field(name)),
        false => reads.has_field(field),
    }
}

fn normalized(message: &Value) -> Value {
    let Value::Object(fields) = message else {
        return message.clone();
    };
    let given = |fields: &Map<String, Value>| -> Map<String, Value> {
        let fields = fields.iter().filter(|(_, value)| !value.is_null());
        fields
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect()
    };
    let fields = given(fields);
    let Some(reasoning) = REASONING.iter().find_map(|name| fields.get(*name)).cloned() else {
        return fields.into();
    };
    let mut all = Map::new();
    all.insert("thinking".to_owned(), reasoning.clone());
    all.extend(fields);
    all.insert("reasoning_content".to_owned(), reasoning);
    all.into()
}

/// A final message that is continued. A tag after its text shows where the template has put it.
#[derive(Debug)]
pub(super) struct Continued {
    text: String,
}

const TAG: &str = "CONTINUE_FINAL_MESSAGE_TAG ";

impl Continued {
    fn mark(messages: &mut [Value], field: &str, source: &str) -> Result<Self, String> {
        let last = messages.last_mut().and_then(Value::as_object_mut);
        let last =
            last.ok_or("continue_final_message: found no messages, expected one to continue")?;
        let found = last.get(field).cloned().ok_or_else(|| {
            format!("continue_final_message: the final message has no {field:?}, expected one to continue")
        })?;
        // Reasoning is there under several names: whichever the template reads is continued.
        let fields: Vec<&str> = match REASONING.contains(&field) {
            true => REASONING
                .into_iter()
                .filter(|name| last.get(*name) == Some(&found))
                .collect(),
            false => vec![field],
        };
        if !fields.iter().any(|field| source.contains(field)) {
            return Err(format!(
                "continue_final_message: the chat template does not read {field:?}"
            ));
        }
        let unfit = || {
            format!(
                "continue_final_message: the final message's {field:?} has no text, expected some to continue"
            )
        };
        let mut text = None;
        for field in fields {
            match last.get_mut(field) {
                Some(Value::String(value)) => {
                    text = Some(value.clone());
                    value.push_str(TAG);
                }
                Some(Value::Array(parts)) => {
                    let part = parts
                        .iter_mut()
                        .rev()
                        .find_map(|part| match part.get_mut("text") {
                            Some(Value::String(value)) => Some(value),
                            _ => None,
                        });
                    let value = part.ok_or_else(unfit)?;
                    text = Some(value.clone());
                    value.push_str(TAG);
                }
                _ => return Err(unfit()),
            }
        }
        Ok(Self {
            text: text.ok_or_else(unfit)?,
        })
    }

    /// `rendered` up to where the text ends. Where the template trims the text, the space at its end goes too.
    pub(super) fn cut(&self, mut rendered: String) -> Result<String, String> {
        let at = rendered.rfind(TAG.trim_end());
        let text = self.text.trim_matches(is_space);
        let Some(at) = at.filter(|_| rendered.contains(text)) else {
            return Err(
                "continue_final_message: the final message does not appear in what the chat template renders, expected all of it"
                    .to_owned(),
            );
        };
        let kept = rendered[at..].starts_with(TAG);
        rendered.truncate(at);
        if !kept {
            rendered.truncate(rendered.trim_end_matches(is_space).len());
        }
        Ok(rendered)
    }
}
