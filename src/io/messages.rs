//! Conversations: a list of messages and the tools a template may show, checked as far as templates rely on it.

use super::fields::{Fields, present, wrong};
use super::row::{Code, RowError};
use serde_json::Value;

/// Messages with a role each; content given as parts of text is joined, as templates expect strings.
pub(super) fn read(value: &Value) -> Result<Value, RowError> {
    let Some(list) = value.as_array() else {
        return Err(wrong("messages", value, "an array of messages"));
    };
    if list.is_empty() {
        return Err(RowError::new(
            Code::EmptyPrompt,
            "messages: found an empty array, expected at least one message",
        ));
    }
    let mut out = Vec::with_capacity(list.len());
    for (index, item) in list.iter().enumerate() {
        let name = format!("messages[{index}]");
        let Some(message) = item.as_object() else {
            return Err(wrong(&name, item, "an object with role and content"));
        };
        let mut message = message.clone();
        if !message.get("role").is_some_and(Value::is_string) {
            let role = message.get("role").unwrap_or(&Value::Null);
            return Err(wrong(&format!("{name}.role"), role, "a string"));
        }
        let content = message.get("content").unwrap_or(&Value::Null);
        let joined = join_content(content, &format!("{name}.content"))?;
        if content.is_null() && message.get("tool_calls").is_none_or(Value::is_null) {
            return Err(wrong(&format!("{name}.content"), content, "a string"));
        }
        if let Some(text) = joined {
            message.insert("content".to_owned(), Value::String(text));
        }
        out.push(Value::Object(message));
    }
    Ok(Value::Array(out))
}

/// `Some` where content was given as parts.
fn join_content(content: &Value, name: &str) -> Result<Option<String>, RowError> {
    let parts = match content {
        Value::String(_) | Value::Null => return Ok(None),
        Value::Array(parts) => parts,
        other => return Err(wrong(name, other, "a string or an array of text parts")),
    };
    let mut text = String::new();
    for (index, part) in parts.iter().enumerate() {
        match (
            part.get("type").and_then(Value::as_str),
            part.get("text").and_then(Value::as_str),
        ) {
            (Some("text"), Some(piece)) => text.push_str(piece),
            (Some(kind), _) if kind != "text" => {
                return Err(RowError::new(
                    Code::Unsupported,
                    format!(
                        "{name}[{index}]: found a part of type {kind:?}, expected text: the model reads nothing else"
                    ),
                ));
            }
            _ => {
                return Err(wrong(
                    &format!("{name}[{index}]"),
                    part,
                    "{\"type\":\"text\",\"text\":...}",
                ));
            }
        }
    }
    Ok(Some(text))
}

/// A list of tools for the chat template; an empty one is none.
pub(super) fn tools(fields: &Fields) -> Result<Option<Value>, RowError> {
    match present(fields, "tools") {
        None => Ok(None),
        Some(Value::Array(list)) if list.is_empty() => Ok(None),
        Some(Value::Array(list)) => match list.iter().find(|tool| !tool.is_object()) {
            Some(tool) => Err(wrong("tools", tool, "an array of objects")),
            None => Ok(Some(Value::Array(list.clone()))),
        },
        Some(other) => Err(wrong("tools", other, "an array of objects")),
    }
}
