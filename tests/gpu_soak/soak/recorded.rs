//! A run on record, and its schedule once more by another launcher: the same steps and the same events, to the last bit.

use super::probe::fingerprint;
use serde::Serialize;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Instant;
use tailgraph::runtime::replay::Replayer;
use tailgraph::runtime::{Event, Request};
use tailgraph::sys::abi::{TG_NO_STEP, tg_trace};

/// Everything that went into an engine and came out, each kind in its order.
#[derive(Default)]
pub struct Recording {
    pub requests: Vec<Request>,
    pub cancels: Vec<u64>,
    pub turns: Vec<tg_trace>,
    pub events: Vec<Event>,
    pub page_tokens: u32,
    /// By step: its number and the fingerprint of its descriptor as a kernel of the step found it; empty where none looked.
    pub descriptors: Vec<(u64, u64)>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Replayed {
    pub seconds: f64,
    pub turns: usize,
    pub steps: u64,
    /// Tokens and ends, as recorded.
    pub events: usize,
    /// A hash of all that was compared: each step's descriptor, tokens and logprobs, as the replay has them.
    pub digest: String,
    /// What differs first, and in which step: a turn's outcome, a descriptor or an event, as recorded and as replayed.
    pub difference: Option<String>,
}

impl Recording {
    /// Runs the recorded turns until something differs. A replay that fails differs, too. `composed` gets its descriptors.
    pub fn replay(&self, mut replayer: Replayer, composed: &mut Vec<(u64, u64)>) -> Replayed {
        let start = Instant::now();
        for request in &self.requests {
            replayer.request(request.clone());
        }
        for &request in &self.cancels {
            replayer.cancel(request);
        }
        let mut digest = DefaultHasher::new();
        let difference = self.difference(&mut replayer, composed, &mut digest);
        Replayed {
            seconds: start.elapsed().as_secs_f64(),
            turns: self.turns.len(),
            steps: replayer.steps(),
            events: self.events.len(),
            digest: format!("{:016x}", digest.finish()),
            difference,
        }
    }

    fn difference(
        &self,
        replayer: &mut Replayer,
        composed: &mut Vec<(u64, u64)>,
        digest: &mut impl Hasher,
    ) -> Option<String> {
        let mut heard = 0;
        let mut collected = TG_NO_STEP;
        for turn in &self.turns {
            let (step, returned) = (turn.outcome.step, turn.outcome.returned_step);
            if returned != TG_NO_STEP {
                collected = returned;
            }
            let mut differs = None;
            let replayed = replayer.turn(turn, &mut |event| {
                let (recorded, bits) = (self.events.get(heard), bits(&event));
                if differs.is_none() && recorded.map(self::bits).as_ref() != Some(&bits) {
                    differs = Some(format!(
                        "step {collected}: event {heard}: recorded {recorded:?}, replayed {event:?}"
                    ));
                }
                bits.hash(digest);
                heard += 1;
            });
            let failed = replayed.err().map(|error| error.to_string());
            if let Some(difference) = failed.or(differs) {
                return Some(difference);
            }
            if step == TG_NO_STEP {
                continue;
            }
            let descriptor = (step, fingerprint(&replayer.step(step), self.page_tokens));
            let found = self.descriptors.get(step as usize);
            if !self.descriptors.is_empty() && found != Some(&descriptor) {
                return Some(format!(
                    "step {step}: descriptor: recorded {found:x?}, replayed {descriptor:x?}"
                ));
            }
            descriptor.hash(digest);
            composed.push(descriptor);
        }
        let left = self.events.get(heard)?;
        Some(format!(
            "event {heard}: recorded {left:?}, and none replayed"
        ))
    }
}

/// All of an event but the times, which are the other clock's.
fn bits(event: &Event) -> impl Hash + PartialEq + use<> {
    match event {
        Event::Token {
            request,
            token,
            index,
            logprobs,
        } => {
            let logprobs = logprobs.as_ref().map(|logprobs| {
                let top = logprobs.top.iter();
                let top = top.map(|&(token, logprob)| (token, logprob.to_bits()));
                (logprobs.logprob.to_bits(), top.collect::<Vec<_>>())
            });
            (*request, None, *token, *index, logprobs)
        }
        Event::End {
            request,
            reason,
            tokens,
            ..
        } => (*request, Some(*reason), *tokens, 0, None),
    }
}
