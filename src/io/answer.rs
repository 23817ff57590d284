//! What is written for a row: one line of JSON, in the row's own format.
//!
//! Our own format, served:
//! `{"id", "output_ids", "text", "finish_reason", "usage", "logprobs"?, "timing"}` where
//! - `output_ids` are all generated tokens, a stop id included; `text` leaves stop ids and, unless the
//!   row says otherwise, special tokens out, and ends before a stop string
//! - `usage` is `{"prompt_tokens", "completion_tokens", "total_tokens"}`
//! - `logprobs`, where asked for, has an entry a token: `{"token", "id", "logprob", "top"}`, `top` an array of
//!   `{"token", "id", "logprob"}`, best first: log-softmax of the raw logits. A token that is no whole character has
//!   `bytes` too, behind `token`, which shows U+FFFD in their place; an id without a token has an empty `token`
//! - `timing` is `{"queue_ms", "ttft_ms", "total_ms"}` by the scheduler's clock; `ttft_ms` is null if no token came
//!
//! and not served: `{"id", "error": {"code", "message"}}`.

use super::codec::Codec;
use super::openai_answer;
use super::outcome::{ErrorBody, List, TimingMs, Usage, to_json};
pub use super::outcome::{Finish, Label, Origin, Outcome};
use super::row::{Format, Id, RowError};
use serde::Serialize;

#[derive(Serialize)]
struct Served<'a, L> {
    id: &'a Id,
    output_ids: &'a [u32],
    text: &'a str,
    finish_reason: Finish,
    usage: Usage,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<L>,
    timing: TimingMs,
}

#[derive(Serialize)]
struct TokenEntry<T> {
    token: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<u8>>,
    id: u32,
    logprob: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    top: Option<T>,
}

impl<T> TokenEntry<T> {
    fn of(id: u32, logprob: f32, top: Option<T>, codec: &dyn Codec) -> Self {
        let bytes = codec.token_bytes(id).unwrap_or_default();
        let (token, bytes) = match String::from_utf8(bytes) {
            Ok(text) => (text, None),
            Err(error) => {
                let bytes = error.into_bytes();
                (String::from_utf8_lossy(&bytes).into_owned(), Some(bytes))
            }
        };
        Self {
            token,
            bytes,
            id,
            logprob,
            top,
        }
    }
}

#[derive(Serialize)]
struct Failed<'a> {
    id: &'a Id,
    error: ErrorBody<'a>,
}

/// The line for a row that ran, without its newline. Rows of our own have one outcome.
pub fn served(label: &Label, outcomes: &[Outcome], codec: &dyn Codec, origin: &Origin) -> String {
    let format = match (&label.format, outcomes) {
        (Format::OpenAi(format), _) => format,
        (Format::Own, [outcome]) => return own(label, outcome, codec),
        (Format::Own, _) => unreachable!("rows of our own ask for one answer"),
    };
    openai_answer::served(label, format, outcomes, codec, origin)
}

fn own(label: &Label, outcome: &Outcome, codec: &dyn Codec) -> String {
    let logprobs = || {
        outcome.tokens().map(|(id, logprob, top)| {
            let top = move || {
                let entry = |&(id, logprob)| TokenEntry::of(id, logprob, None::<()>, codec);
                top.iter().map(entry)
            };
            TokenEntry::of(id, logprob, Some(List(top)), codec)
        })
    };
    to_json(&Served {
        id: &label.id,
        output_ids: &outcome.output_ids,
        text: &outcome.text,
        finish_reason: outcome.finish,
        usage: Usage::of(outcome),
        logprobs: outcome.logprobs.as_ref().map(|_| List(logprobs)),
        timing: TimingMs::of(&outcome.timing, !outcome.output_ids.is_empty()),
    })
}

/// The line for a row that did not run, or whose device failed.
pub fn failed(label: &Label, error: &RowError) -> String {
    match &label.format {
        Format::Own => to_json(&Failed {
            id: &label.id,
            error: ErrorBody::of(error),
        }),
        Format::OpenAi(_) => openai_answer::failed(label, error),
    }
}
