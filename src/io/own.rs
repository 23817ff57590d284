//! Rows of our own format.

use super::elsewhere;
use super::fields::{self, Fields, present, wrong};
use super::messages;
use super::row::{
    Ask, Choices, Code, DEFAULT_MAX_NEW_TOKENS, FieldNames, Format, IGNORED_AT_MOST, Id,
    MAX_LOGPROBS, Options, Prompt, Row, RowError, Unasked,
};
use crate::quote;
use serde_json::Value;

const OWN_FIELDS: [&str; 28] = [
    "id",
    "prompt",
    "input_ids",
    "messages",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "max_new_tokens",
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "min_tokens",
    "seed",
    "stop",
    "stop_ids",
    "ignore_eos",
    "skip_special_tokens",
    "logprobs",
    "timeout_ms",
];

/// A row of line `number`.
pub(super) fn row(mut fields: Fields, number: u64) -> Row {
    let given = present(&fields, "id").map(|id| fields::id(id, "id"));
    let (id, error) = match given {
        Some(Ok(id)) => (Some(id), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let ask = error.map_or_else(|| ask(&mut fields), Err);
    let known = |name: &String| OWN_FIELDS.contains(&name.as_str());
    Row {
        line: number,
        claims_id: id.is_some(),
        id: id.unwrap_or_else(|| Id::line(number)),
        format: Format::Own,
        tells_format: fields.keys().any(known),
        ask,
        ignored: fields
            .into_iter()
            .map(|(name, _)| name)
            .filter(|name| !known(name) && !elsewhere::is_known(name))
            .take(IGNORED_AT_MOST)
            .map(quote::text)
            .collect(),
    }
}

fn ask(fields: &mut Fields) -> Result<Ask, RowError> {
    fields::numbers_within(fields, &["messages", "tools", "chat_template_kwargs"])?;
    elsewhere::refuse(fields)?;
    let given = (
        present(fields, "prompt").is_some(),
        present(fields, "input_ids"),
        present(fields, "messages"),
    );
    let prompt = match given {
        (true, None, None) => Prompt::Text(take_prompt(fields)?),
        (false, Some(ids), None) => Prompt::Ids(fields::token_id_array(ids, "input_ids")?),
        (false, None, Some(_)) => {
            let with_tools = !messages::forbids_tools(fields);
            Prompt::Messages(Box::new(messages::chat(fields, with_tools)?))
        }
        (false, None, None) => {
            return Err(RowError::new(
                Code::InvalidRequest,
                "found none of prompt, input_ids and messages, expected one of them",
            ));
        }
        _ => {
            return Err(RowError::new(
                Code::InvalidRequest,
                "found more than one of prompt, input_ids and messages, expected one of them",
            ));
        }
    };
    if !matches!(prompt, Prompt::Messages(_)) {
        messages::only_with_messages(fields)?;
    }
    Ok(Ask {
        prompt,
        options: options(fields)?,
        unasked: Unasked::Tokens(DEFAULT_MAX_NEW_TOKENS),
        names: &FieldNames::OWN,
        choices: Choices::ONE,
    })
}

/// The prompt's text, taken out of `fields` rather than copied: it may be most of the line.
fn take_prompt(fields: &mut Fields) -> Result<String, RowError> {
    match fields.get_mut("prompt") {
        Some(Value::String(text)) => Ok(std::mem::take(text)),
        other => {
            let found = other.map_or(Value::Null, |value| value.take());
            Err(wrong("prompt", &found, "a string"))
        }
    }
}

fn options(fields: &Fields) -> Result<Options, RowError> {
    Ok(Options {
        max_new_tokens: fields::limit(fields, "max_new_tokens", "max_tokens")?,
        logprobs: fields::integer_u32(fields, "logprobs", 0, MAX_LOGPROBS)?,
        stop_ids: fields::token_ids(fields, "stop_ids")?,
        ..fields::shared_options(fields)?
    })
}
