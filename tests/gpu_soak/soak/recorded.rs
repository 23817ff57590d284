//! A run on record, and its schedule once more by another launcher: the same events, to the last bit.

use serde::Serialize;
use std::time::Instant;
use tailgraph::Result;
use tailgraph::runtime::replay::Replayer;
use tailgraph::runtime::{Event, Request, TokenLogprobs};
use tailgraph::sys::abi::tg_trace;

/// Everything that went into an engine and came out, each kind in its order.
#[derive(Default)]
pub struct Recording {
    pub requests: Vec<Request>,
    pub cancels: Vec<u64>,
    pub turns: Vec<tg_trace>,
    pub events: Vec<Event>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Replayed {
    pub seconds: f64,
    pub turns: usize,
    pub steps: u64,
    /// Tokens and ends, as recorded.
    pub events: usize,
    /// The first event that differs, as recorded and as replayed.
    pub difference: Option<String>,
}

impl Recording {
    /// # Errors
    /// What [`Replayer::turn`] gives.
    pub fn replay(self, mut replayer: Replayer) -> Result<Replayed> {
        let start = Instant::now();
        for request in self.requests {
            replayer.request(request);
        }
        for &request in &self.cancels {
            replayer.cancel(request);
        }
        let mut replayed = Vec::with_capacity(self.events.len());
        for record in &self.turns {
            replayer.turn(record, &mut |event| replayed.push(event))?;
        }
        let pairs = self.events.iter().zip(&replayed);
        let same = pairs.take_while(|(r, p)| is_same(r, p)).count();
        let differs = same < self.events.len().max(replayed.len());
        Ok(Replayed {
            seconds: start.elapsed().as_secs_f64(),
            turns: self.turns.len(),
            steps: replayer.steps(),
            events: self.events.len(),
            difference: differs.then(|| {
                let (recorded, replayed) = (self.events.get(same), replayed.get(same));
                format!("event {same}: recorded {recorded:?}, replayed {replayed:?}")
            }),
        })
    }
}

/// Bit for bit, but for the times: they are the other clock's.
fn is_same(recorded: &Event, replayed: &Event) -> bool {
    match (recorded, replayed) {
        (
            Event::Token {
                request,
                token,
                index,
                logprobs,
            },
            Event::Token {
                request: its,
                token: its_token,
                index: its_index,
                logprobs: its_logprobs,
            },
        ) => {
            (request, token, index) == (its, its_token, its_index)
                && logprobs.as_ref().map(bits) == its_logprobs.as_ref().map(bits)
        }
        (
            Event::End {
                request,
                reason,
                tokens,
                ..
            },
            Event::End {
                request: its,
                reason: its_reason,
                tokens: its_tokens,
                ..
            },
        ) => (request, reason, tokens) == (its, its_reason, its_tokens),
        _ => false,
    }
}

fn bits(logprobs: &TokenLogprobs) -> (u32, Vec<(u32, u32)>) {
    let top = logprobs.top.iter();
    let top = top.map(|&(token, logprob)| (token, logprob.to_bits()));
    (logprobs.logprob.to_bits(), top.collect())
}
