//! The lines of a recording as JSON.

use super::turn::Turn;
use crate::io::identity::Identity;
use crate::runtime::{EndReason, EngineShape, Event, Part, Request, TokenLogprobs};
use serde::{Deserialize, Serialize};

/// The version of the format: another number is another format.
pub const VERSION: u32 = 6;

/// The version that a first line names, whatever else stands there: another format's header has other fields.
pub(super) fn version(line: &[u8]) -> Option<u32> {
    #[derive(Deserialize)]
    struct First {
        header: Versioned,
    }
    #[derive(Deserialize)]
    struct Versioned {
        version: u32,
    }
    let first: First = serde_json::from_slice(line).ok()?;
    Some(first.header.version)
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    Header(Box<Header>),
    Request(Box<Request>),
    Cancel(u64),
    Turn(Box<Turn>),
    Token(TokenLine),
    End(EndLine),
    Done(Done),
}

/// What was run, and with which sizes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    pub version: u32,
    /// The model's name in `--model`.
    pub model: String,
    /// What that was, by its contents.
    pub identity: Identity,
    /// `cpu` or `cuda`
    pub device: String,
    /// `f32`, `bf16` or `f16`
    pub dtype: String,
    /// The name in `--weights`; `None` where the weights are as they are stored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// The name in `--activations`; `None` where rows are multiplied in their type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub activations: Option<String>,
    /// The name in `--launch`; `None` on the CPU.
    pub launch: Option<String>,
    /// Which kernels served which bucket; `None` on the CPU, and of a run that was recorded before there was a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_variants: Option<String>,
    pub engine: EngineShape,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenLine {
    pub request: u64,
    /// 0 for the first new token.
    pub index: u32,
    pub token: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<LogprobBits>,
}

/// [`TokenLogprobs`] as the bits of its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogprobBits {
    /// The log-probability of the token itself.
    pub own: u32,
    /// Id and bits, best first.
    pub top: Vec<(u32, u32)>,
}

impl From<&TokenLogprobs> for LogprobBits {
    fn from(logprobs: &TokenLogprobs) -> Self {
        let top = logprobs.top.iter();
        Self {
            own: logprobs.logprob.to_bits(),
            top: top.map(|&(id, value)| (id, value.to_bits())).collect(),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndLine {
    pub request: u64,
    pub reason: EndReason,
    /// Tokens generated.
    pub tokens: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    pub turns: u64,
    pub tokens: u64,
}

impl From<Part> for Line {
    fn from(part: Part) -> Self {
        match part {
            Part::Request(request) => Self::Request(Box::new(request)),
            Part::Cancel(request) => Self::Cancel(request),
            Part::Turn(turn) => Self::Turn(Box::new(Turn::from(&*turn))),
            Part::Event(event) => Self::from(&event),
        }
    }
}

impl From<&Event> for Line {
    fn from(event: &Event) -> Self {
        match event {
            Event::Token {
                request,
                token,
                index,
                logprobs,
            } => Self::Token(TokenLine {
                request: *request,
                index: *index,
                token: *token,
                logprobs: logprobs.as_ref().map(Into::into),
            }),
            Event::End {
                request,
                reason,
                tokens,
                ..
            } => Self::End(EndLine {
                request: *request,
                reason: *reason,
                tokens: *tokens,
            }),
        }
    }
}
