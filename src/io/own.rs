//! Bodies of our own format, which rows are.

use super::elsewhere;
use super::fields::{self, Fields, present, wrong};
use super::messages;
use super::row::{Ask, Code, MAX_LOGPROBS, Options, Prompt, RowError};
use serde_json::Value;

const OWN_FIELDS: [&str; 5] = ["id", "prompt", "input_ids", "max_new_tokens", "stop_ids"];

/// Whether own rows have such a field.
pub(super) fn is_known(name: &str) -> bool {
    OWN_FIELDS.contains(&name) || fields::SHARED.contains(&name) || messages::is_known(name)
}

/// What a row's fields ask.
pub(super) fn ask(fields: &mut Fields) -> Result<Ask, RowError> {
    messages::check_numbers(fields)?;
    elsewhere::refuse(fields, "", elsewhere::refusal)?;
    let given = (
        present(fields, "prompt").is_some(),
        present(fields, "input_ids"),
        present(fields, "messages"),
    );
    let prompt = match given {
        (true, None, None) => Prompt::Text(take_prompt(fields)?),
        (false, Some(ids), None) => Prompt::Ids(fields::token_id_array(ids, "input_ids")?),
        (false, None, Some(_)) => messages::prompt(fields)?,
        (false, None, None) => {
            return Err(Code::InvalidRequest
                .error("found none of prompt, input_ids and messages, expected one of them"));
        }
        _ => {
            return Err(Code::InvalidRequest.error(
                "found more than one of prompt, input_ids and messages, expected one of them",
            ));
        }
    };
    if !matches!(prompt, Prompt::Messages(_)) {
        messages::only_with_messages(fields)?;
    }
    let options = Options {
        max_new_tokens: fields::limit(fields, "max_new_tokens", "max_tokens", 1)?,
        logprobs: fields::integer(fields, "logprobs", 0..=MAX_LOGPROBS)?,
        stop_ids: fields::token_ids(fields, "stop_ids")?,
        ..fields::shared_options(fields)?
    };
    Ok(Ask::new(prompt, options))
}

/// The prompt's text, taken out of `fields` rather than copied: it may be most of the line.
fn take_prompt(fields: &mut Fields) -> Result<String, RowError> {
    match fields.get_mut("prompt").map(Value::take) {
        Some(Value::String(text)) => Ok(text),
        other => Err(wrong("prompt", &other.unwrap_or_default(), "a string")),
    }
}
