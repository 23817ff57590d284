//! Conversations: messages as the OpenAI format means them, before a chat template sees them. Own rows have the same.

mod calls;

use super::fields::{self, Fields, found, present, wrong};
use super::row::{Code, MAX_VALUES, Prompt, RowError};
use crate::json;
use crate::text::Chat;
use serde_json::{Map, Value, json};

/// Fields that mean something to conversations alone.
const ONLY_OF_MESSAGES: [&str; 4] = [
    "tools",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
];

/// Whether rows with messages have such a field.
pub(super) fn is_known(name: &str) -> bool {
    ["messages", "tool_choice", "parallel_tool_calls"].contains(&name)
        || ONLY_OF_MESSAGES.contains(&name)
}

/// Refuses numbers that a template cannot show, in what is handed on to one.
pub fn check_numbers(fields: &Fields) -> Result<(), RowError> {
    let names = ["messages", "tools", "chat_template_kwargs"].into_iter();
    let mut given = names.filter_map(|name| Some((name, fields.get(name)?)));
    given.try_for_each(|(name, value)| fields::shown_numbers(name, value))
}

/// What a row's fields say of a conversation. Tools are not shown where the row forbids calls.
pub fn prompt(fields: &Fields) -> Result<Prompt, RowError> {
    let list = fields.get("messages").unwrap_or(&Value::Null);
    let mut kwargs = kwargs(fields)?;
    let allowed = present(fields, "tool_choice").is_none_or(|choice| choice != "none");
    let tools = tools(fields)?.filter(|_| allowed);
    if tools.is_some() && fields::boolean(fields, "parallel_tool_calls")? == Some(false) {
        return Err(Code::Unsupported.error(
            "parallel_tool_calls: found false beside tools, expected true: calls cannot be held to one",
        ));
    }
    let mut chat = Chat::new(read(list)?, tools);
    const GENERATION: &str = "add_generation_prompt";
    let generation = match one_of_two(fields, &mut kwargs, GENERATION)? {
        None => None,
        Some(Value::Bool(value)) => Some(value),
        Some(other) => return Err(wrong(GENERATION, &other, "true or false")),
    };
    const CONTINUE: &str = "continue_final_message";
    chat.continue_final_message = match one_of_two(fields, &mut kwargs, CONTINUE)? {
        None | Some(Value::Bool(false)) => None,
        Some(Value::Bool(true)) => Some("content".to_owned()),
        // The message's field that is to be continued.
        Some(Value::String(field)) if !field.is_empty() => Some(field),
        Some(other) => {
            let expected = "true, false or the name of a message's field";
            return Err(wrong(CONTINUE, &other, expected));
        }
    };
    if chat.continue_final_message.is_some() && generation == Some(true) {
        return Err(Code::InvalidRequest.error(
            "continue_final_message: found it with add_generation_prompt true, expected add_generation_prompt false or left out",
        ));
    }
    chat.add_generation_prompt = generation.unwrap_or(chat.continue_final_message.is_none());
    chat.kwargs = kwargs;
    Ok(Prompt::Messages(Box::new(chat)))
}

/// `chat_template_kwargs`: variables of the template. What has a field of its own, or is set another way, is none.
fn kwargs(fields: &Fields) -> Result<Map<String, Value>, RowError> {
    const NAME: &str = "chat_template_kwargs";
    let kwargs = match present(fields, NAME) {
        None => return Ok(Map::new()),
        Some(given) if json::object(given).is_some() => {
            given.as_object().cloned().unwrap_or_default()
        }
        Some(other) => return Err(wrong(NAME, other, "an object of template variables")),
    };
    const FIELDS: [&str; 11] = [
        "messages",
        "conversation",
        "tools",
        "chat_template",
        "tokenize",
        "padding",
        "truncation",
        "max_length",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
    ];
    if let Some(name) = FIELDS.into_iter().find(|name| kwargs.contains_key(*name)) {
        return Err(Code::Unsupported.error(format!(
            "{NAME}.{name}: found {}, expected variables of the template only",
            found(&kwargs[name])
        )));
    }
    match kwargs.get("documents") {
        Some(Value::Array(list)) if list.iter().all(|item| json::object(item).is_some()) => {}
        None | Some(Value::Null) => {}
        Some(other) => {
            return Err(wrong(
                "chat_template_kwargs.documents",
                other,
                "an array of objects",
            ));
        }
    }
    Ok(kwargs)
}

/// A field that `chat_template_kwargs` may carry too, as vLLM has it; where both have it they must agree.
fn one_of_two(
    fields: &Fields,
    kwargs: &mut Map<String, Value>,
    name: &str,
) -> Result<Option<Value>, RowError> {
    let inner = kwargs.shift_remove(name).filter(|value| !value.is_null());
    match (present(fields, name), inner) {
        (Some(outer), Some(inner)) if *outer != inner => Err(Code::InvalidRequest.error(format!(
            "{name}: found {}, expected {} like chat_template_kwargs.{name}, or only one of them",
            found(outer),
            found(&inner)
        ))),
        (Some(value), _) => Ok(Some(value.clone())),
        (None, inner) => Ok(inner),
    }
}

/// Messages with a role each.
fn read(value: &Value) -> Result<Value, RowError> {
    let Some(list) = value.as_array() else {
        return Err(wrong("messages", value, "an array of messages"));
    };
    if list.is_empty() {
        return Err(Code::EmptyPrompt
            .error("messages: found an empty array, expected at least one message"));
    }
    // The limit holds for arguments that are texts: what the row holds besides them is counted before it is parsed.
    let mut values_left = MAX_VALUES;
    let messages = list.iter().enumerate();
    messages
        .map(|(index, item)| message(item, &format!("messages[{index}]"), &mut values_left))
        .collect::<Result<Vec<Value>, _>>()
        .map(Value::Array)
}

fn message(item: &Value, name: &str, values_left: &mut usize) -> Result<Value, RowError> {
    let Some(given) = json::object(item) else {
        return Err(wrong(name, item, "an object with role and content"));
    };
    let Some(role) = given.get("role").and_then(Value::as_str) else {
        let role = given.get("role").unwrap_or(&Value::Null);
        return Err(wrong(&format!("{name}.role"), role, "a string"));
    };
    // A field without a value is absent; so is an empty list of calls.
    let is_absent = |field: &str, value: &Value| {
        value.is_null() || (field == "tool_calls" && value.as_array().is_some_and(Vec::is_empty))
    };
    let mut message: Map<String, Value> = given
        .iter()
        .filter(|(field, value)| !is_absent(field, value))
        .map(|(field, value)| (field.clone(), value.clone()))
        .collect();
    if let Some(audio) = message.get("audio") {
        return Err(Code::Unsupported.error(format!(
            "{name}.audio: found {}, expected none: the model reads text alone",
            found(audio)
        )));
    }
    // A refusal is what the assistant said.
    let says_nothing_else = role == "assistant" && !message.contains_key("content");
    if says_nothing_else && message.get("refusal").is_some_and(Value::is_string) {
        let refusal = message.shift_remove("refusal").unwrap_or_default();
        insert_content(&mut message, refusal);
    }
    let is_something_else = message.len() > 1;
    match message.get_mut("content") {
        Some(content) => check_content(content, &format!("{name}.content"))?,
        // Templates join content to other text: of a message that is something else it is empty.
        None if role == "assistant" && is_something_else => insert_content(&mut message, "".into()),
        // What a function of the older form gave may be nothing.
        None if role == "function" => insert_content(&mut message, "".into()),
        None => return Err(wrong(&format!("{name}.content"), &Value::Null, "a string")),
    }
    calls::read(&mut message, name, values_left)?;
    Ok(Value::Object(message))
}

/// After the role, where it stands in a message that has one.
fn insert_content(message: &mut Map<String, Value>, content: Value) {
    let at = message
        .keys()
        .position(|field| field == "role")
        .map_or(0, |at| at + 1);
    message.shift_insert(at, "content".to_owned(), content);
}

/// A text, or parts of it. A refusal is what the assistant said.
fn check_content(content: &mut Value, name: &str) -> Result<(), RowError> {
    let parts = match content {
        Value::String(_) => return Ok(()),
        Value::Array(parts) => parts,
        other => return Err(wrong(name, other, "a string or an array of text parts")),
    };
    for (index, part) in parts.iter_mut().enumerate() {
        let name = || format!("{name}[{index}]");
        match part.get("type").and_then(Value::as_str) {
            Some("text") if part["text"].is_string() => {
                // Where a server may end what it caches of the prompt: nothing of the content.
                if let Some(part) = part.as_object_mut() {
                    part.shift_remove("prompt_cache_breakpoint");
                }
            }
            Some("refusal") if part["refusal"].is_string() => {
                *part = json!({"type": "text", "text": part["refusal"]});
            }
            Some(kind) if !matches!(kind, "text" | "refusal") => {
                return Err(Code::Unsupported.error(format!(
                    "{}: found a part of type {}, expected text: the model reads nothing else",
                    name(),
                    found(&kind.into())
                )));
            }
            _ => return Err(wrong(&name(), part, "{\"type\":\"text\",\"text\":...}")),
        }
    }
    Ok(())
}

/// A list of tools for the chat template; an empty one is none.
fn tools(fields: &Fields) -> Result<Option<Value>, RowError> {
    match present(fields, "tools") {
        None => Ok(None),
        Some(Value::Array(list)) if list.is_empty() => Ok(None),
        Some(Value::Array(list)) => {
            for (index, tool) in list.iter().enumerate() {
                let name = format!("tools[{index}]");
                if json::object(tool).is_none() {
                    return Err(wrong(&name, tool, "an object"));
                }
                calls::only_functions(tool, &name)?;
            }
            Ok(Some(Value::Array(list.clone())))
        }
        Some(other) => Err(wrong("tools", other, "an array of objects")),
    }
}

/// Refuses fields that only conversations have.
pub(super) fn only_with_messages(fields: &Fields) -> Result<(), RowError> {
    let mut names = ONLY_OF_MESSAGES.iter();
    match names.find(|name| present(fields, name).is_some()) {
        Some(name) => Err(Code::InvalidRequest.error(format!(
            "{name}: found without messages, expected only with them"
        ))),
        None => Ok(()),
    }
}
