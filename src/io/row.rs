//! A line of input as a question: which prompt, which options, in whose format.
//!
//! `ask` is the question, `id` what the row is called, `error` why it is not served; `elsewhere` has the fields of other
//! formats.

mod ask;
pub(super) mod elsewhere;
mod error;
mod id;

pub use ask::{
    Ask, Choices, DEFAULT_MAX_NEW_TOKENS, FieldNames, MAX_CHOICES, Options, Prompt, Unasked,
};
pub use error::{Code, RowError, TIMED_OUT};
pub use id::{Id, MAX_ID_BYTES};

use super::fields::{self, Fields, found, present, wrong};
use super::lines::looks_like_json;
use super::messages;
use super::openai::{self, OpenAi};
use crate::json;
use crate::quote;
use serde_json::Value;

/// Whose format a row has, and so its answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Format {
    Own,
    OpenAi(OpenAi),
}

/// One parsed line.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Counted from 1; blank lines count.
    pub line: u64,
    /// The row's own, else its line number.
    pub id: Id,
    /// Whether the row has written its id itself: such ids must differ.
    pub claims_id: bool,
    pub format: Format,
    /// Whether the line tells its format. One that does not is answered in the format of its file.
    pub tells_format: bool,
    pub ask: Result<Ask, RowError>,
    /// Names of fields that nothing reads.
    pub ignored: Vec<String>,
}

impl Row {
    /// A line that is no row, for the reason that `error` gives. Of its text there is `line`, which need not be all.
    pub fn unreadable(line: &[u8], number: u64, error: RowError) -> Self {
        let mut row = Self {
            line: number,
            id: Id::line(number),
            claims_id: false,
            format: Format::Own,
            tells_format: false,
            ask: Err(error),
            ignored: Vec::new(),
        };
        if let Some(id) = openai::recover_id(line) {
            row.be_batch_row();
            row.id = id;
        }
        row
    }

    /// Answers a line that does not tell its format as its file's other lines are.
    pub fn take_format(&mut self, of_file: &Format) {
        if !self.tells_format && *of_file != Format::Own {
            self.be_batch_row();
        }
    }

    fn be_batch_row(&mut self) {
        self.format = Format::OpenAi(OpenAi::default());
        self.id = Id::unread(self.line);
        self.tells_format = true;
    }
}

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

/// Names of fields that nothing reads, as many as are told of.
const IGNORED_AT_MOST: usize = 32;

/// Values of JSON that a line may hold: each takes tens of bytes once it is parsed, however short it is in the file.
/// Far above the token ids of any context.
pub const MAX_VALUES: usize = 1 << 20;

/// Reads one line. Never fails: what is wrong with the line is in `ask`.
pub fn parse(line: &[u8], number: u64) -> Row {
    let broken =
        |message: String| Row::unreadable(line, number, RowError::new(Code::InvalidJson, message));
    if line.len() > MAX_VALUES && json::count_values(line) > MAX_VALUES {
        return broken(format!(
            "line {number}: found more than {MAX_VALUES} values, expected a row of fewer"
        ));
    }
    match json::exact(line) {
        Ok(value) if json::object(&value).is_none() => broken(format!(
            "line {number}: found {}, expected a JSON object{}",
            found(&value),
            advice(&value)
        )),
        Ok(Value::Object(fields)) if openai::is_batch_row(&fields) => batch_row(&fields, number),
        Ok(Value::Object(fields)) => own_row(fields, number),
        Ok(other) => broken(format!(
            "line {number}: found {}, expected a JSON object{}",
            found(&other),
            advice(&other)
        )),
        Err(error) => broken(format!(
            "line {number} is not JSON: {}{}",
            describe(&error),
            match looks_like_json(line) {
                true => "",
                false => "; `generate --lines` takes each line of a text as a prompt",
            }
        )),
    }
}

/// What to do about a line of JSON that is no object.
fn advice(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => " a line; jq -c '.[]' FILE makes lines of a file that is one array",
        _ => "",
    }
}

/// serde_json's message without its "at line 1 column C": the line is ours to say.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = match text.split(" at line ").next().unwrap_or(&text) {
        "recursion limit exceeded" => {
            return format!(
                "found nesting deeper than {}, expected at most that (column {})",
                json::MAX_DEPTH,
                error.column()
            );
        }
        "EOF while parsing an object"
        | "EOF while parsing a list"
        | "EOF while parsing a value" => {
            "it ends too early, expected a whole JSON object in one line"
        }
        "unexpected end of hex escape" | "lone leading surrogate in hex escape" => {
            "half of a surrogate pair in a \\u escape, expected whole characters"
        }
        what => what,
    };
    format!("{what} (column {})", error.column())
}

fn own_row(mut fields: Fields, number: u64) -> Row {
    let given = present(&fields, "id").map(|id| Id::from_value(id, "id"));
    let (id, error) = match given {
        Some(Ok(id)) => (Some(id), None),
        Some(Err(error)) => (None, Some(error)),
        None => (None, None),
    };
    let ask = error.map_or_else(|| own_ask(&mut fields), Err);
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

fn batch_row(row: &Fields, number: u64) -> Row {
    let given = present(row, "custom_id").map(|id| Id::from_value(id, "custom_id"));
    let (format, ask) = openai::parse(row);
    let (id, ask) = match given {
        Some(Ok(id)) => (Some(id), ask),
        Some(Err(error)) => (None, Err(error)),
        None => (None, ask),
    };
    Row {
        line: number,
        claims_id: id.is_some(),
        id: id.unwrap_or_else(|| match present(row, "custom_id") {
            Some(_) => Id::unread(number),
            None => Id::line(number),
        }),
        format: Format::OpenAi(format),
        tells_format: true,
        ask,
        ignored: openai::unknown(row)
            .take(IGNORED_AT_MOST)
            .map(quote::text)
            .collect(),
    }
}

fn own_ask(fields: &mut Fields) -> Result<Ask, RowError> {
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
        options: own_options(fields)?,
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

fn own_options(fields: &Fields) -> Result<Options, RowError> {
    Ok(Options {
        max_new_tokens: fields::limit(fields, "max_new_tokens", "max_tokens")?,
        logprobs: fields::integer_u32(fields, "logprobs", 0, MAX_LOGPROBS)?,
        stop_ids: fields::token_ids(fields, "stop_ids")?,
        ..shared_options(fields)?
    })
}

pub const MAX_NEW_TOKENS: u32 = i32::MAX as u32;
pub const MAX_LOGPROBS: u32 = crate::sys::abi::TG_MAX_LOGPROBS;

/// Options that are spelt alike in our rows and in OpenAI bodies (with vLLM's additions).
pub(super) fn shared_options(fields: &Fields) -> Result<Options, RowError> {
    Ok(Options {
        max_new_tokens: None,
        logprobs: None,
        stop_ids: None,
        temperature: fields::TEMPERATURE.read(fields)?,
        top_k: fields::top_k(fields)?,
        top_p: fields::TOP_P.read(fields)?,
        min_p: fields::MIN_P.read(fields)?,
        repetition_penalty: fields::REPETITION_PENALTY.read(fields)?,
        presence_penalty: fields::PRESENCE_PENALTY.read(fields)?,
        frequency_penalty: fields::FREQUENCY_PENALTY.read(fields)?,
        logit_bias: fields::logit_bias(fields)?,
        min_tokens: fields::integer_u32(fields, "min_tokens", 0, MAX_NEW_TOKENS)?,
        seed: fields::seed(fields)?,
        stop: fields::stop_strings(fields, "stop")?,
        ignore_eos: fields::boolean(fields, "ignore_eos")?,
        skip_special_tokens: fields::boolean(fields, "skip_special_tokens")?,
        timeout_ms: fields::integer(fields, "timeout_ms", 1, MAX_TIMEOUT_MS)?,
    })
}

/// About 31 years: far from overflowing nanoseconds in 64 bits.
pub const MAX_TIMEOUT_MS: u64 = 1_000_000_000_000;
