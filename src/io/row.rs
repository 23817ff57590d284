//! A line of input as a question: which prompt, which options, in whose format.

use super::fields::{self, Fields, found, present, wrong};
use super::messages;
use super::openai::{self, OpenAi};
use crate::text::Chat;
use serde_json::Value;
use std::fmt;

/// Prompt and options as one row gives them; nothing in it has met the model yet.
#[derive(Debug, Clone, PartialEq)]
pub struct Ask {
    pub prompt: Prompt,
    pub options: Options,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Prompt {
    /// Encoded with the tokenizer's special tokens.
    Text(String),
    Ids(Vec<u32>),
    /// Rendered by the chat template, encoded without special tokens.
    Messages(Box<Chat>),
}

/// Options of a row, of the command line, or of generation_config.json: absent ones come from the next.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Options {
    pub max_new_tokens: Option<u32>,
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub seed: Option<u64>,
    pub stop: Option<Vec<String>>,
    pub stop_ids: Option<Vec<u32>>,
    pub ignore_eos: Option<bool>,
    pub logprobs: Option<u32>,
    pub timeout_ms: Option<u64>,
}

impl Options {
    /// These, and `other`'s where these say nothing.
    #[must_use]
    pub fn or(self, other: &Self) -> Self {
        Self {
            max_new_tokens: self.max_new_tokens.or(other.max_new_tokens),
            temperature: self.temperature.or(other.temperature),
            top_k: self.top_k.or(other.top_k),
            top_p: self.top_p.or(other.top_p),
            min_p: self.min_p.or(other.min_p),
            repetition_penalty: self.repetition_penalty.or(other.repetition_penalty),
            seed: self.seed.or(other.seed),
            stop: self.stop.or_else(|| other.stop.clone()),
            stop_ids: self.stop_ids.or_else(|| other.stop_ids.clone()),
            ignore_eos: self.ignore_eos.or(other.ignore_eos),
            logprobs: self.logprobs.or(other.logprobs),
            timeout_ms: self.timeout_ms.or(other.timeout_ms),
        }
    }
}

/// Why a row was not served; `as_str` is what the answer carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Code {
    /// The line is not a JSON object.
    InvalidJson,
    /// A field has a wrong type or value, or fields contradict each other.
    InvalidRequest,
    /// A field asks for something this program does not do.
    Unsupported,
    /// An earlier row has this id.
    DuplicateId,
    /// No text, no messages or no ids.
    EmptyPrompt,
    /// prompt + max_new_tokens do not fit.
    ContextLength,
    /// A token id at or past the vocabulary size.
    TokenOutOfRange,
    /// There is no chat template, or it failed on these messages.
    ChatTemplate,
    /// The model's logits are not finite: no token could be chosen.
    NonFiniteLogits,
    /// The device failed while the row ran; `--resume` tries it again.
    Device,
    /// OpenAI rows only (others say it in finish_reason): interrupted; `--resume` tries it again.
    Cancelled,
    /// OpenAI rows only, likewise: timeout_ms passed.
    Timeout,
}

impl Code {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidJson => "invalid_json",
            Self::InvalidRequest => "invalid_request",
            Self::Unsupported => "unsupported",
            Self::DuplicateId => "duplicate_id",
            Self::EmptyPrompt => "empty_prompt",
            Self::ContextLength => "context_length",
            Self::TokenOutOfRange => "token_out_of_range",
            Self::ChatTemplate => "chat_template",
            Self::NonFiniteLogits => "non_finite_logits",
            Self::Device => "device",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
        }
    }

    /// Whether the same row may succeed when tried again.
    pub fn may_succeed_later(self) -> bool {
        matches!(self, Self::Device | Self::Cancelled | Self::Timeout)
    }
}

/// An error of one row: the others are served all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowError {
    pub code: Code,
    /// One line, without control characters.
    pub message: String,
}

impl RowError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let mut message: String = message.into();
        if message.contains(char::is_control) {
            // Names and texts in a message may come from the row itself.
            let escape = |c: char| {
                if c.is_control() {
                    c.escape_default().to_string()
                } else {
                    c.into()
                }
            };
            message = message.chars().map(escape).collect();
        }
        Self { code, message }
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}

/// A row's id: a string or an integer. Two are the same if they read the same: `"7"` is 7.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Id {
    text: String,
    quoted: bool,
}

impl Id {
    pub fn line(number: u64) -> Self {
        Self {
            text: number.to_string(),
            quoted: false,
        }
    }

    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            quoted: true,
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn read(fields: &Fields, name: &str) -> Result<Option<Self>, RowError> {
        match present(fields, name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(Self::text(text.clone()))),
            Some(Value::Number(number)) if !number.is_f64() => Ok(Some(Self {
                text: number.to_string(),
                quoted: false,
            })),
            Some(other) => Err(wrong(name, other, "a string or an integer")),
        }
    }
}

impl serde::Serialize for Id {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.quoted {
            return serializer.serialize_str(&self.text);
        }
        // An unquoted id was a JSON integer, so one of these two holds it.
        match (self.text.parse::<u64>(), self.text.parse::<i64>()) {
            (Ok(number), _) => serializer.serialize_u64(number),
            (_, Ok(number)) => serializer.serialize_i64(number),
            _ => serializer.serialize_str(&self.text),
        }
    }
}

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
    /// Whether later rows may not have this id: false for lines that could not be read.
    pub claims_id: bool,
    pub format: Format,
    pub ask: Result<Ask, RowError>,
    /// Names of fields that nothing reads.
    pub ignored: Vec<String>,
}

const OWN_FIELDS: [&str; 21] = [
    "id",
    "prompt",
    "input_ids",
    "messages",
    "tools",
    "tool_choice",
    "chat_template_kwargs",
    "continue_final_message",
    "add_generation_prompt",
    "max_new_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "seed",
    "stop",
    "stop_ids",
    "ignore_eos",
    "logprobs",
    "timeout_ms",
];

/// Reads one line. Never fails: what is wrong with the line is in `ask`.
pub fn parse(line: &[u8], number: u64) -> Row {
    let broken = |message: String| Row {
        line: number,
        id: Id::line(number),
        claims_id: false,
        format: Format::Own,
        ask: Err(RowError::new(Code::InvalidJson, message)),
        ignored: Vec::new(),
    };
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => return broken(format!("line {number} is not JSON: {}", describe(&error))),
    };
    let Value::Object(fields) = value else {
        return broken(format!(
            "line {number}: found {}, expected a JSON object",
            found(&value)
        ));
    };
    if openai::is_batch_row(&fields) {
        batch_row(&fields, number)
    } else {
        own_row(fields, number)
    }
}

/// serde_json's message without its "at line 1 column C": the line is ours to say.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let what = text.split(" at line ").next().unwrap_or(&text);
    format!("{what} (column {})", error.column())
}

/// The id in field `name`, else the line number; an id of a wrong type is the row's error.
fn identify(fields: &Fields, name: &str, number: u64) -> (Id, bool, Option<RowError>) {
    match Id::read(fields, name) {
        Ok(Some(id)) => (id, true, None),
        Ok(None) => (Id::line(number), true, None),
        Err(error) => (Id::line(number), false, Some(error)),
    }
}

fn own_row(fields: Fields, number: u64) -> Row {
    let (id, claims_id, error) = identify(&fields, "id", number);
    Row {
        line: number,
        id,
        claims_id,
        format: Format::Own,
        ask: error.map_or_else(|| own_ask(&fields), Err),
        ignored: fields
            .into_iter()
            .map(|(name, _)| name)
            .filter(|name| !OWN_FIELDS.contains(&name.as_str()))
            .collect(),
    }
}

fn batch_row(fields: &Fields, number: u64) -> Row {
    let (id, claims_id, error) = identify(fields, "custom_id", number);
    let (format, ask) = openai::parse(fields);
    Row {
        line: number,
        id,
        claims_id,
        format: Format::OpenAi(format),
        ask: error.map_or(ask, Err),
        ignored: Vec::new(),
    }
}

fn own_ask(fields: &Fields) -> Result<Ask, RowError> {
    messages::refuse_what_we_cannot(fields)?;
    let prompt = match (
        present(fields, "prompt"),
        present(fields, "input_ids"),
        present(fields, "messages"),
    ) {
        (Some(Value::String(text)), None, None) => Prompt::Text(text.clone()),
        (Some(other), None, None) => return Err(wrong("prompt", other, "a string")),
        (None, Some(ids), None) => Prompt::Ids(fields::token_id_array(ids, "input_ids")?),
        (None, None, Some(_)) => {
            let with_tools = !messages::forbids_tools(fields);
            Prompt::Messages(Box::new(messages::chat(fields, with_tools)?))
        }
        (None, None, None) => {
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
    })
}

fn own_options(fields: &Fields) -> Result<Options, RowError> {
    Ok(Options {
        max_new_tokens: fields::integer_u32(fields, "max_new_tokens", 1, MAX_NEW_TOKENS)?,
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
        seed: fields::seed(fields)?,
        stop: fields::stop_strings(fields, "stop")?,
        ignore_eos: fields::boolean(fields, "ignore_eos")?,
        timeout_ms: fields::integer(fields, "timeout_ms", 1, MAX_TIMEOUT_MS)?,
    })
}

/// About 31 years: far from overflowing nanoseconds in 64 bits.
pub const MAX_TIMEOUT_MS: u64 = 1_000_000_000_000;
