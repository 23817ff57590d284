//! Sequences on a device: their tokens and texts as they come, and what they came to.

use crate::io::answer::{Finish, Outcome};
use crate::io::codec::Codec;
use crate::io::echo::Echo;
use crate::io::prepare::Prepared;
use crate::io::row::{Code, RowError};
use crate::runtime::{EndReason, Engine, Event, Timing, TokenLogprobs};
use crate::text::{Progress, StreamEnd, TextStream};
use std::collections::HashMap;

/// All that a device has, by request. `T` goes with each from its beginning to its end.
pub struct Sequences<T> {
    live: HashMap<u64, (T, Live)>,
    /// Requests to cancel as soon as the device takes it.
    cancels: Vec<u64>,
}

/// What an event did.
pub enum Change<'a, T> {
    Token {
        with: &'a mut T,
        live: &'a mut Live,
        taken: Taken,
    },
    End {
        with: T,
        reason: EndReason,
        live: Live,
        timing: Timing,
    },
}

impl<T> Default for Sequences<T> {
    fn default() -> Self {
        Self {
            live: HashMap::new(),
            cancels: Vec::new(),
        }
    }
}

impl<T> Sequences<T> {
    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    pub fn len(&self) -> usize {
        self.live.len()
    }

    /// The device has taken `prepared` as `request`.
    pub fn enter(&mut self, request: u64, prepared: &Prepared, codec: &Codec, with: T) {
        let live = Live::new(prepared, codec);
        self.live.insert(request, (with, live));
    }

    /// No more is wanted of `request`; its end will say so.
    pub fn cancel(&mut self, request: u64) {
        if self.live.contains_key(&request) {
            self.cancels.push(request);
        }
    }

    /// No more is wanted of the request that goes with what `is` says.
    pub fn cancel_where(&mut self, is: impl Fn(&T) -> bool) {
        let mut live = self.live.iter();
        let found = live.find(|(_, (with, _))| is(with));
        self.cancels.extend(found.map(|(request, _)| *request));
    }

    /// No more is wanted of any request; their ends will say so.
    pub fn cancel_all(&mut self) {
        self.cancels.extend(self.live.keys());
    }

    /// Tells the device what is to be cancelled, as far as it has room to be told; whether anything is left.
    pub fn pass_cancels(&mut self, engine: &mut dyn Engine) -> bool {
        self.cancels.retain(|&request| !engine.cancel(request));
        !self.cancels.is_empty()
    }

    /// What `event` did; nothing where its request is none of these.
    pub fn take(&mut self, event: Event) -> Option<Change<'_, T>> {
        match event {
            Event::Token {
                request,
                token,
                logprobs,
                ..
            } => {
                let (with, live) = self.live.get_mut(&request)?;
                let taken = live.push(token, logprobs);
                if taken == Taken::Stopped {
                    self.cancels.push(request);
                }
                Some(Change::Token { with, live, taken })
            }
            Event::End {
                request,
                reason,
                timing,
                ..
            } => {
                let (with, live) = self.live.remove(&request)?;
                Some(Change::End {
                    with,
                    reason,
                    live,
                    timing,
                })
            }
        }
    }

    /// What goes with each that is left: the device has failed.
    pub fn abandon(&mut self) -> Vec<T> {
        self.cancels.clear();
        self.live.drain().map(|(_, (with, _))| with).collect()
    }
}

/// A sequence on the device.
pub struct Live {
    prompt_tokens: usize,
    stop_ids: Vec<u32>,
    /// `None`: tokens have no text.
    text: Option<Box<TextStream>>,
    output_ids: Vec<u32>,
    logprobs: Option<Vec<TokenLogprobs>>,
    /// A stop string was found: later tokens are dropped.
    stopped: bool,
    /// Bytes of the text that [`Live::certain`] has given.
    told_bytes: usize,
    echo: Option<Box<Echo>>,
    /// [`Live::echo`] has given it.
    told_echo: bool,
}

/// What a token did to its sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// Came after the sequence's end.
    Dropped,
    /// It is one of the prompt, with its logprobs.
    OfPrompt,
    GoesOn,
    /// It completed a stop string: nothing more is wanted of the device.
    Stopped,
}

/// A sequence's end.
pub struct Ended {
    /// Tokens that were taken, and then turned out to lie behind a stop string.
    pub dropped_tokens: usize,
    pub outcome: Result<Outcome, RowError>,
}

impl Live {
    fn new(prepared: &Prepared, codec: &Codec) -> Self {
        let request = &prepared.request;
        Self {
            prompt_tokens: request.prompt.len(),
            logprobs: request.sampling.logprobs.map(|_| Vec::new()),
            stop_ids: request.stop_ids.clone(),
            text: codec
                .stream(prepared.stop.clone(), prepared.special)
                .map(Box::new),
            output_ids: Vec::new(),
            stopped: false,
            told_bytes: 0,
            echo: prepared.echo.clone(),
            told_echo: false,
        }
    }

    /// No token has come.
    pub fn is_empty(&self) -> bool {
        self.output_ids.is_empty()
    }

    /// Text that has become certain since this was last asked: see [`TextStream::certain`].
    pub fn certain(&mut self) -> String {
        let text = self.text.as_mut();
        let text = text.map(|text| text.certain()).unwrap_or_default();
        self.told_bytes += text.len();
        text
    }

    /// The prompt, where the answer repeats it and it is whole; given once.
    pub fn echo(&mut self) -> Option<Box<Echo>> {
        let echo = self.echo.as_ref().filter(|echo| !echo.is_waiting());
        let tells = echo.is_some() && !std::mem::replace(&mut self.told_echo, true);
        echo.filter(|_| tells).cloned()
    }

    /// Length of the text that [`Live::certain`] has given so far.
    pub fn told_bytes(&self) -> usize {
        self.told_bytes
    }

    /// The newest token.
    pub fn last_id(&self) -> Option<u32> {
        self.output_ids.last().copied()
    }

    /// Log-probabilities of the newest token, where the request asked for them.
    pub fn last_logprobs(&self) -> Option<&TokenLogprobs> {
        self.logprobs.as_ref()?.last()
    }

    fn push(&mut self, token: u32, logprobs: Option<TokenLogprobs>) -> Taken {
        if self.stopped {
            return Taken::Dropped;
        }
        if let Some(echo) = self.echo.as_mut().filter(|echo| echo.is_waiting()) {
            echo.logprobs
                .iter_mut()
                .for_each(|of_prompt| of_prompt.extend(logprobs.clone()));
            return Taken::OfPrompt;
        }
        self.output_ids.push(token);
        if let (Some(all), Some(one)) = (&mut self.logprobs, logprobs) {
            all.push(one);
        }
        let Some(text) = &mut self.text else {
            return Taken::GoesOn;
        };
        if self.stop_ids.contains(&token) {
            // The device ends the row by itself.
            text.push_last(token);
        } else if text.push(token) == Progress::Stopped {
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
            echo,
            ..
        } = self;
        let taken = output_ids.len();
        let end = text.map(|text| text.finish());
        let end = end.unwrap_or_else(|| StreamEnd {
            text: String::new(),
            tokens: taken,
            stopped: false,
            offsets: vec![0; taken],
        });
        // Text that was held back may have shown only now that it holds a stop string.
        output_ids.truncate(end.tokens);
        if let Some(all) = &mut logprobs {
            all.truncate(end.tokens);
        }
        let tokens = output_ids.len();
        let finish = match reason {
            EndReason::Refused => Err(Code::ContextLength.error(
                "prompt and max_new_tokens need more pages than there are, expected fewer tokens, or a larger limit of memory",
            )),
            _ if end.stopped => Ok(Finish::Stop),
            EndReason::NotFinite if echo.as_deref().is_some_and(Echo::is_waiting) => Err(Code::NonFiniteLogits.error(
                "logits of the prompt are not finite, expected finite numbers: check the checkpoint's weights, or run it in f32",
            )),
            EndReason::NotFinite => Err(Code::NonFiniteLogits.error(format!(
                "logits for token {tokens} after the prompt are not finite, expected finite numbers: check the checkpoint's weights, or run it in f32"
            ))),
            EndReason::Stop => Ok(Finish::Stop),
            EndReason::Timeout => Ok(Finish::Timeout),
            // What an interrupt cut is no answer, and must not look like one.
            EndReason::Cancelled => Err(Code::Cancelled.error(format!(
                "interrupted after {tokens} new tokens, before the last"
            ))),
            EndReason::Length => Ok(Finish::Length),
        };
        let before = echo.as_deref().map_or(0, Echo::chars);
        Ended {
            dropped_tokens: taken - tokens,
            outcome: finish.map(|finish| Outcome {
                output_ids,
                text: end.text,
                text_offsets: end.offsets.into_iter().map(|at| before + at).collect(),
                finish,
                prompt_tokens,
                logprobs,
                echo,
                timing,
            }),
        }
    }
}
