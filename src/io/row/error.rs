//! Why a row is not served.

use crate::quote;
use crate::text::{Late, Unrendered};
use serde::{Serialize, Serializer};

/// Why a row was not served; `as_str` is what the answer carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
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

    /// The error of a row that has this code.
    pub fn error(self, message: impl Into<String>) -> RowError {
        RowError {
            code: self,
            message: quote::whole(&message.into()),
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

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// An error of one row: the others are served all the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, thiserror::Error)]
#[error("{}: {message}", code.as_str())]
pub struct RowError {
    pub code: Code,
    /// One line, cut where it is long.
    pub message: String,
}

impl From<Late> for RowError {
    fn from(late: Late) -> Self {
        match late {
            Late::Over(message) => Code::TextTimeout.error(message),
            Late::NoThread(message) => Code::NoThread.error(message),
        }
    }
}

impl From<Unrendered> for RowError {
    fn from(error: Unrendered) -> Self {
        match error {
            Unrendered::Refused(message) => Code::ChatTemplate.error(message),
            Unrendered::NoThread(message) => Code::NoThread.error(message),
        }
    }
}
