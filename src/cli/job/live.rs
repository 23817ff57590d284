//! A row on the device: its tokens as they come, and what they came to.

use crate::io::answer::{Finish, Label, Outcome};
use crate::io::codec::{Codec, TextProgress, TextStream};
use crate::io::prepare::Prepared;
use crate::io::row::{Code, RowError};
use crate::runtime::{EndReason, Timing, TokenLogprobs};

pub(super) struct Live<'a> {
    pub row: u64,
    pub input: u64,
    pub label: Label,
    prompt_tokens: usize,
    stop_ids: Vec<u32>,
    text: Box<dyn TextStream + 'a>,
    output_ids: Vec<u32>,
    logprobs: Option<Vec<TokenLogprobs>>,
    /// A stop string was found: later tokens are dropped.
    stopped: bool,
}

/// What a token did to its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    /// Came after the row's end.
    Dropped,
    GoesOn,
    /// It completed a stop string: nothing more is wanted of the device.
    Stopped,
}

/// A row's end.
pub(super) struct Ended {
    /// Tokens that were taken, and then turned out to lie behind a stop string.
    pub dropped_tokens: usize,
    pub outcome: Result<Outcome, RowError>,
}

impl<'a> Live<'a> {
    pub fn new(
        row: u64,
        input: u64,
        label: Label,
        prepared: Prepared,
        codec: &'a dyn Codec,
    ) -> Self {
        let Prepared { request, stop } = prepared;
        Self {
            row,
            input,
            label,
            prompt_tokens: request.prompt.len(),
            logprobs: request.sampling.logprobs.map(|_| Vec::new()),
            stop_ids: request.stop_ids,
            text: codec.stream(&stop),
            output_ids: Vec::new(),
            stopped: false,
        }
    }

    /// No token has come.
    pub fn is_empty(&self) -> bool {
        self.output_ids.is_empty()
    }

    pub fn push(&mut self, token: u32, logprobs: Option<TokenLogprobs>) -> Taken {
        if self.stopped {
            return Taken::Dropped;
        }
        self.output_ids.push(token);
        if let (Some(all), Some(one)) = (&mut self.logprobs, logprobs) {
            all.push(one);
        }
        if self.stop_ids.contains(&token) {
            // The device ends the row by itself.
            self.text.push_last(token);
        } else if self.text.push(token) == TextProgress::Stopped {
            self.stopped = true;
            return Taken::Stopped;
        }
        Taken::GoesOn
    }

    /// The device has ended it for `reason`.
    pub fn end(self, reason: EndReason, timing: Timing) -> Ended {
        let Self {
            mut output_ids,
            mut logprobs,
            prompt_tokens,
            text,
            ..
        } = self;
        let taken = output_ids.len();
        let end = text.finish();
        if let Some(tokens) = end.stop_tokens {
            // Text that was held back may have shown only now that it holds a stop string.
            output_ids.truncate(tokens);
            if let Some(all) = &mut logprobs {
                all.truncate(tokens);
            }
        }
        let finish = match reason {
            EndReason::Refused => Err(refused()),
            _ if end.stop_tokens.is_some() => Ok(Finish::Stop),
            EndReason::NotFinite => Err(not_finite(output_ids.len())),
            EndReason::Stop => Ok(Finish::Stop),
            EndReason::Timeout => Ok(Finish::Timeout),
            EndReason::Cancelled => Err(cancelled(output_ids.len())),
            EndReason::Length => Ok(Finish::Length),
        };
        Ended {
            dropped_tokens: taken - output_ids.len(),
            outcome: finish.map(|finish| Outcome {
                output_ids,
                text: end.text,
                text_offsets: end.offsets,
                finish,
                prompt_tokens,
                logprobs,
                timing,
            }),
        }
    }
}

fn refused() -> RowError {
    RowError::new(
        Code::ContextLength,
        "prompt and max_new_tokens need more pages than there are, expected fewer tokens or more memory: raise --memory-limit",
    )
}

/// What an interrupt cut is no answer, and must not look like one.
fn cancelled(tokens: usize) -> RowError {
    RowError::new(
        Code::Cancelled,
        format!("interrupted after {tokens} new tokens, before the last"),
    )
}

fn not_finite(tokens: usize) -> RowError {
    RowError::new(
        Code::NonFiniteLogits,
        format!(
            "logits for token {tokens} after the prompt are not finite, expected finite numbers: check the checkpoint's weights, or use --dtype f32"
        ),
    )
}
