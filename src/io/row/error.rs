//! Why a row is not served.

use crate::quote;
use crate::text::{Late, Unrendered};
use std::fmt;

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
    /// The row's text was not tokens by its deadline; `--resume` tries it again.
    TextTimeout,
    /// There was no thread for the row's text; `--resume` tries it again.
    NoThread,
    /// The device failed while the row ran; `--resume` tries it again.
    Device,
    /// An interrupt came before its last token; `--resume` tries it again.
    Cancelled,
    /// OpenAI rows only (others say it in finish_reason): timeout_ms passed; `--resume` tries it again.
    Timeout,
}

/// What is said of [`Code::Timeout`].
pub const TIMED_OUT: &str = "timeout_ms passed before the last token";

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
            Self::TextTimeout => "text_timeout",
            Self::NoThread => "no_thread",
            Self::Device => "device",
            Self::Cancelled => "cancelled",
            Self::Timeout => "timeout",
        }
    }

    /// Whether the same row may succeed when tried again.
    pub fn may_succeed_later(self) -> bool {
        matches!(
            self,
            Self::TextTimeout | Self::NoThread | Self::Device | Self::Cancelled | Self::Timeout
        )
    }
}

/// An error of one row: the others are served all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowError {
    pub code: Code,
    /// One line, as [`quote::whole`] makes it.
    pub message: String,
}

impl RowError {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let message = quote::whole(&message.into());
        Self { code, message }
    }
}

impl From<Late> for RowError {
    fn from(late: Late) -> Self {
        match late {
            Late::Over(message) => Self::new(Code::TextTimeout, message),
            Late::NoThread(message) => Self::new(Code::NoThread, message),
        }
    }
}

impl From<Unrendered> for RowError {
    fn from(error: Unrendered) -> Self {
        match error {
            Unrendered::Refused(message) => Self::new(Code::ChatTemplate, message),
            Unrendered::NoThread(message) => Self::new(Code::NoThread, message),
        }
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code.as_str(), self.message)
    }
}
