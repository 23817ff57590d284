//! A conversation for a chat template, and what transformers' `apply_chat_template` does to it before and after rendering.

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
    /// More variables for the template; they replace special tokens of the same name.
    pub kwargs: Map<String, Value>,
    /// Whether the prompt ends where the assistant's turn begins.
    pub add_generation_prompt: bool,
    /// The field of the last message that is to be continued: the prompt ends with its text.
    pub continue_final_message: Option<String>,
}

/// Something of a conversation that the template may not show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Doubt {
    pub name: String,
    pub why: &'static str,
}

impl Chat {
    /// A conversation whose prompt ends where the assistant's turn begins.
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

    /// The conversation with each message's content in the form that the template takes: parts for a template that only
    /// goes through parts, a text for one that only prints it. Contents stay as they were given where a template takes
    /// both, or where that cannot be told.
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

    /// What the template may not show, each under a name that is the same in all rows.
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
            why: "the chat template does not read it, so the model will not see it",
        };
        let mut doubts: Vec<Doubt> = unread.into_iter().map(doubt).collect();
        let parts = self
            .list()
            .iter()
            .any(|message| message["content"].is_array());
        if parts && reads.takes() == Takes::Unknown {
            doubts.push(Doubt {
                name: "messages[].content".to_owned(),
                why: "found a list of parts, but it cannot be told whether the chat template takes parts or a text: the template is given the parts",
            });
        }
        doubts
    }

    /// The messages as transformers hands them to the template `source`: fields without a value are left out, and
    /// reasoning stands under each name that templates read. The final message is marked if it is to be continued.
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

/// The names under which rows give a message's reasoning.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Whether a template reads a message's field. Reasoning is read if it is under any of its names.
fn is_read(reads: &Reads, field: &str) -> bool {
    reads.has_field(field)
        || REASONING.contains(&field) && REASONING.iter().any(|name| reads.has_field(name))
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

/// A final message that is to be continued. A tag behind its text shows where the template puts it.
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
            format!("continue_final_message: found no {field:?} in the final message, expected one to continue")
        })?;
        // Reasoning stands under several names, and the template may read any of them: all are tagged.
        let fields: Vec<&str> = if REASONING.contains(&field) {
            let same = |name: &&str| last.get(*name) == Some(&found);
            REASONING.into_iter().filter(same).collect()
        } else {
            vec![field]
        };
        if !fields.iter().any(|field| source.contains(field)) {
            return Err(format!(
                "continue_final_message: found a chat template that does not read {field:?}, expected one that does"
            ));
        }
        let unfit = || {
            format!(
                "continue_final_message: found no text in the final message's {field:?}, expected one to continue"
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

    /// `rendered` up to the end of the final message's text, without the spaces there if the template trims the text.
    pub(super) fn cut(&self, mut rendered: String) -> Result<String, String> {
        let at = rendered.rfind(TAG.trim_end());
        let text = self.text.trim_matches(is_space);
        let Some(at) = at.filter(|_| rendered.contains(text)) else {
            return Err(
                "continue_final_message: the chat template does not render the final message's text as it is, expected all of it"
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
