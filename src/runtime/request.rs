//! What goes into an engine and what comes out, in Rust's terms.

use crate::sys::abi;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// One sequence to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Request {
    /// At least one token, each below the vocabulary size.
    pub prompt: Vec<u32>,
    /// 0 only with `logits` other than `None`: then the prompt is scored and nothing is generated.
    pub max_new_tokens: u32,
    /// Nobody named the limit, which is what the context leaves: pages are taken as the sequence grows, and where there
    /// are none it may have to give them back and be recomputed. Its tokens are the same.
    pub unlimited: bool,
    /// End-of-sequence ids included; at most 16.
    pub stop_ids: Vec<u32>,
    /// New tokens before one may be a stop id: 0 for none.
    pub min_new_tokens: u32,
    /// Added to the logits of these tokens, before all that `sampling` says; no id twice, at most 300.
    pub biases: Vec<(u32, f32)>,
    pub sampling: Sampling,
    /// Counted from when the scheduler first sees the request.
    pub timeout: Option<Duration>,
    pub logits: Logits,
    /// Where prefixes of the prompt end that other requests have too, ascending; at most 4, and none with [`Logits::All`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub borders: Vec<Border>,
    /// So many requests are submitted right behind it that have its longest prefix too. Of several replicas one takes them
    /// together, where that leaves the others their share; to a single one it says nothing.
    #[serde(skip)]
    pub followers: u32,
}

/// Where a prefix ends that several prompts have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Border {
    /// The prefix's number: the same in all requests of an engine that begin so, and in no others; not 0.
    pub prefix: u32,
    /// From the prompt's first token on, fewer than the prompt has.
    pub tokens: u32,
}

/// Which of the prompt's logits go to the engine's sink.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Logits {
    #[default]
    None,
    Last,
    All,
}

/// How tokens are chosen; applied in the order of the fields.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// 1 is none; over prompt and generated tokens.
    pub repetition_penalty: f32,
    /// 0 is none; of the tokens that the answer holds so far.
    pub presence_penalty: f32,
    /// 0 is none; for each time that a token stands in the answer so far.
    pub frequency_penalty: f32,
    /// 0 is greedy.
    pub temperature: f32,
    /// 0 keeps all.
    pub top_k: u32,
    /// 1 keeps all.
    pub top_p: f32,
    /// 0 keeps all.
    pub min_p: f32,
    /// Key of the counter-based generator; the counter is the new token's position.
    pub key: u64,
    /// How many alternatives come with each token's own logprob (0 to 20); `None`: no logprobs.
    pub logprobs: Option<u32>,
}

impl Default for Sampling {
    /// Greedy.
    fn default() -> Self {
        Self {
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            key: 0,
            logprobs: None,
        }
    }
}

/// What an engine reports. Events of one request come in order: its tokens, then exactly one end.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Token {
        request: u64,
        token: u32,
        /// 0 for the first new token.
        index: u32,
        logprobs: Option<TokenLogprobs>,
    },
    End {
        request: u64,
        reason: EndReason,
        /// Tokens generated.
        tokens: u32,
        timing: Timing,
    },
}

impl Event {
    /// The number of the request that it is about.
    pub fn request(&self) -> u64 {
        match self {
            Self::Token { request, .. } | Self::End { request, .. } => *request,
        }
    }
}

/// Log-softmax of the raw f32 logits.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    pub logprob: f32,
    /// The most likely tokens, best first.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// Those of a prompt's first token, which nothing predicts.
    pub const UNKNOWN: Self = Self {
        logprob: f32::NAN,
        top: Vec::new(),
    };
}

/// Why a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EndReason {
    /// The last token is one of the stop ids.
    Stop,
    /// max_new_tokens reached, or the prompt scored.
    Length,
    Cancelled,
    Timeout,
    /// Larger than the page pool or the context.
    Refused,
    /// Logits that are not finite: no further token could be sampled. Scored prompts end with `Length` all the same.
    NotFinite,
}

impl EndReason {
    /// The reason that the core calls `TG_END_*`.
    pub fn of(end: u32) -> Self {
        match end {
            abi::TG_END_STOP => Self::Stop,
            abi::TG_END_LENGTH => Self::Length,
            abi::TG_END_CANCELLED => Self::Cancelled,
            abi::TG_END_TIMEOUT => Self::Timeout,
            abi::TG_END_NOT_FINITE => Self::NotFinite,
            _ => Self::Refused,
        }
    }
}

/// Where a request's time went, by the scheduler's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timing {
    /// From seen to admitted.
    pub queue: Duration,
    /// From seen to the first token (or the end of a scored prompt); zero where it never came.
    pub first_token: Duration,
    /// From seen to the end.
    pub total: Duration,
    /// How often the sequence gave its pages back and was recomputed.
    pub recomputed: u32,
    /// Prompt tokens that were not computed for this sequence, but for another one with the same prefix.
    pub cached_tokens: u32,
}
