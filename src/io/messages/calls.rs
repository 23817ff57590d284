//! Tools, and the calls of them that an assistant's message makes.

use super::super::fields::{found, shown_numbers, wrong};
use super::super::row::{Code, MAX_VALUES, RowError};
use crate::json;
use serde_json::{Map, Value, json};

/// Arguments of a message's calls as mappings. `values_left`: of JSON that texts may still make, in the whole row.
pub(super) fn read(
    message: &mut Map<String, Value>,
    name: &str,
    values_left: &mut usize,
) -> Result<(), RowError> {
    if let Some(calls) = message.get_mut("tool_calls") {
        let name = format!("{name}.tool_calls");
        let Some(calls) = calls.as_array_mut() else {
            return Err(wrong(&name, calls, "an array of calls"));
        };
        for (index, call) in calls.iter_mut().enumerate() {
            let name = format!("{name}[{index}]");
            if json::object(call).is_none() {
                return Err(wrong(&name, call, "an object"));
            }
            only_functions(call, &name)?;
            match call.get_mut("function") {
                Some(function) => arguments(function, &format!("{name}.function"), values_left)?,
                // Users of transformers write calls without a function around name and arguments.
                None => arguments(call, &name, values_left)?,
            }
        }
    }
    if let Some(function) = message.get_mut("function_call") {
        arguments(function, &format!("{name}.function_call"), values_left)?;
    }
    Ok(())
}

/// Refuses a tool or a call that is none of a function. Templates show functions: of another kind they would show
/// something else, or nothing.
pub(super) fn only_functions(item: &Value, name: &str) -> Result<(), RowError> {
    let kind = match item.get("type").filter(|kind| !kind.is_null()) {
        Some(kind) => kind,
        None if item.get("custom").is_some() => &json!("custom"),
        None => return Ok(()),
    };
    if kind == "function" {
        return Ok(());
    }
    Err(Code::Unsupported.error(format!(
        "{name}.type: found {}, expected \"function\": there are no others here",
        found(kind)
    )))
}

/// A call's arguments as a mapping: rows carry them as the JSON text that a model wrote.
fn arguments(call: &mut Value, name: &str, values_left: &mut usize) -> Result<(), RowError> {
    if json::object(call).is_none() {
        return Err(wrong(name, call, "an object with name and arguments"));
    }
    let name = format!("{name}.arguments");
    let given = call.get("arguments").unwrap_or(&Value::Null);
    let mapping = match given {
        Value::Null => Some(json!({})),
        Value::String(text) if text.trim().is_empty() => Some(json!({})),
        Value::String(text) => {
            let values = json::count_values(text.as_bytes());
            *values_left = values_left.checked_sub(values).ok_or_else(|| {
                Code::InvalidRequest.error(format!(
                    "{name}: found a text that makes more than {MAX_VALUES} values of JSON with those before it, expected fewer in a row"
                ))
            })?;
            json::exact(text.as_bytes()).ok()
        }
        other if json::object(other).is_some() => return Ok(()),
        _ => None,
    };
    let mapping = mapping
        .filter(|mapping| json::object(mapping).is_some())
        .ok_or_else(|| wrong(&name, given, "a JSON object, or one as text"))?;
    shown_numbers(&name, &mapping)?;
    call["arguments"] = mapping;
    Ok(())
}
