//! A chain of decoders at work on one sequence.

use std::collections::VecDeque;

use super::{Chain, Join, Step, Strip, alphabet_bytes, fallback_byte};
use crate::text::utf8::{Chunk, Utf8};

/// A [`Chain`] in the middle of a sequence.
#[derive(Debug, Clone, Default)]
pub struct ChainState {
    steps: Vec<StepState>,
    join: Joiner,
    strips: Vec<StripState>,
}

/// What a step remembers; steps that see each token alone use none of it.
#[derive(Debug, Clone, Default)]
struct StepState {
    /// Metaspace: a token was seen.
    started: bool,
    /// ByteFallback: the run of byte tokens that has not ended, and each byte's origin.
    run: Vec<u8>,
    origins: Vec<usize>,
}

#[derive(Debug, Clone, Default)]
struct Joiner {
    /// The origin of the last token; none yet where nothing was joined.
    last: Option<usize>,
    utf8: Utf8,
}

#[derive(Debug, Clone, Default)]
struct StripState {
    /// How many characters may still be removed at the front.
    front: usize,
    /// Origins of `content` characters at the end of the text so far that are held back, at most `stop`.
    held: VecDeque<usize>,
}

/// What comes out of a step: a token, and its bytes' origins where they have several, else the one that all have.
type Sink<'a> = &'a mut dyn FnMut(&str, &[usize]);

impl ChainState {
    pub fn new(chain: &Chain) -> Self {
        Self {
            steps: vec![StepState::default(); chain.steps.len()],
            join: Joiner::default(),
            strips: chain
                .strips
                .iter()
                .map(|strip| StripState {
                    front: strip.start,
                    held: VecDeque::new(),
                })
                .collect(),
        }
    }

    /// Appends to `out` what `token`, of that origin, makes certain.
    pub fn push(&mut self, chain: &Chain, token: &str, origin: usize, out: &mut Chunk) {
        let Self {
            steps,
            join,
            strips,
        } = self;
        let mut joined = Chunk::default();
        step(
            &chain.steps,
            steps,
            token,
            &[origin],
            &mut |token, origins| {
                join.push(chain.join, token, origins, &mut joined);
            },
        );
        strip(&chain.strips, strips, joined, out);
    }

    /// Appends to `out` what was held back.
    pub fn finish(&mut self, chain: &Chain, out: &mut Chunk) {
        let Self {
            steps,
            join,
            strips,
        } = self;
        let mut joined = Chunk::default();
        // In order: what one step lets go of still passes through those after it.
        for i in 0..chain.steps.len() {
            let (ending, later) = steps[i..].split_at_mut(1);
            ending[0].end_run(&mut |token, origins| {
                step(
                    &chain.steps[i + 1..],
                    later,
                    token,
                    origins,
                    &mut |token, origins| {
                        join.push(chain.join, token, origins, &mut joined);
                    },
                );
            });
        }
        join.utf8.finish(&mut joined);
        strip(&chain.strips, strips, joined, out);
    }
}

/// Passes `token` through `steps`; `sink` gets what comes out, zero or more tokens.
fn step(steps: &[Step], states: &mut [StepState], token: &str, origins: &[usize], sink: Sink<'_>) {
    let (Some((first, steps)), Some((state, states))) =
        (steps.split_first(), states.split_first_mut())
    else {
        return sink(token, origins);
    };
    match first {
        Step::Replace { pattern, content } => {
            let replaced = token.replace(pattern, content);
            step(steps, states, &replaced, origins, sink);
        }
        Step::ByteFallback => match fallback_byte(token) {
            Some(byte) => {
                state.run.push(byte);
                state.origins.extend(origins.last());
            }
            None => {
                state.end_run(&mut |text, origins| step(steps, states, text, origins, sink));
                step(steps, states, token, origins, sink);
            }
        },
        Step::Metaspace {
            replacement,
            prefix,
        } => {
            let space = if *prefix && !state.started { "" } else { " " };
            state.started = true;
            let spaced = token.replace(*replacement, space);
            step(steps, states, &spaced, origins, sink);
        }
        Step::Strip(strip) => step(steps, states, strip.of(token), origins, sink),
    }
}

impl StepState {
    /// A run of byte tokens is text if all of it is UTF-8, else one U+FFFD a byte: nothing of it is certain
    /// before it ends.
    fn end_run(&mut self, sink: Sink<'_>) {
        if self.run.is_empty() {
            return;
        }
        match std::str::from_utf8(&self.run) {
            Ok(text) => sink(text, &self.origins),
            Err(_) => self
                .origins
                .iter()
                .for_each(|&origin| sink("\u{fffd}", &[origin])),
        }
        self.run.clear();
        self.origins.clear();
    }
}

impl Joiner {
    fn push(&mut self, join: Join, token: &str, origins: &[usize], out: &mut Chunk) {
        let Some(&last) = origins.last() else {
            return;
        };
        match join {
            Join::Concatenate => out.push_text(token, origins),
            Join::Spaces => {
                // It is the end of the token before it, as in `stream`.
                if let Some(before) = self.last {
                    out.push(' ', before);
                }
                out.push_text(token, origins);
            }
            Join::Bytes => self.utf8.push(&alphabet_bytes(token), last, out),
        }
        self.last = Some(last);
    }
}

/// Passes `text` through `strips`.
fn strip(strips: &[Strip], states: &mut [StripState], text: Chunk, out: &mut Chunk) {
    let (Some((first, strips)), Some((state, states))) =
        (strips.split_first(), states.split_first_mut())
    else {
        return out.append(text);
    };
    let mut kept = Chunk::default();
    for (c, origin) in text.characters() {
        if c != first.content {
            state.front = 0;
            state
                .held
                .drain(..)
                .for_each(|origin| kept.push(first.content, origin));
            kept.push(c, origin);
        } else if state.front > 0 {
            state.front -= 1;
        } else {
            state.held.push_back(origin);
            if state.held.len() > first.stop {
                // No longer among the last ones.
                let oldest = state.held.pop_front().unwrap_or(origin);
                kept.push(c, oldest);
            }
        }
    }
    strip(strips, states, kept, out);
}
