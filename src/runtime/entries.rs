//! What lies in the rings, from and to the values of the library: requests as their entries, events by theirs.

use super::request::{Border, EndReason, Event, Logits, Request, Sampling, Timing, TokenLogprobs};
use crate::error::{Error, Result};
use crate::sys::abi;
use std::time::Duration;

/// # Errors
/// [`Error::Usage`]: rings of these capacities could never hold the request.
pub(super) fn check_size(request: &Request, tokens: u32, biases: u32) -> Result<()> {
    let (prompt, biased) = (request.prompt.len(), request.biases.len());
    if prompt == 0 || prompt > tokens as usize {
        return Err(Error::Usage(format!(
            "a prompt has 1 to {tokens} tokens here, not {prompt}"
        )));
    }
    if biased > biases as usize {
        return Err(Error::Usage(format!(
            "a request has at most {biases} biased tokens here, not {biased}"
        )));
    }
    Ok(())
}

/// Where requests are written: entries, biases beside them, and prompts. Capacities are powers of two, but for the biases of
/// one request.
pub(super) struct Tables {
    pub requests: *mut abi::tg_request,
    pub biases: *mut abi::tg_bias,
    pub tokens: *mut i32,
    pub capacity: u32,
    pub bias_capacity: u32,
    pub token_capacity: u32,
}

impl Tables {
    /// Writes request `number`, whose entry is `entry`.
    ///
    /// # Safety
    /// The tables are as large as they say, the request has passed [`check_size`] for them, and nobody else touches its places.
    pub unsafe fn write(&self, number: u64, request: &Request, entry: abi::tg_request) {
        let place = (number & u64::from(self.capacity - 1)) as usize;
        let mask = u64::from(self.token_capacity - 1);
        // SAFETY: the caller's promise; masked indices lie in their tables.
        unsafe {
            for (at, &token) in (entry.token_start..).zip(&request.prompt) {
                self.tokens.add((at & mask) as usize).write(token as i32);
            }
            let biases = self.biases.add(place * self.bias_capacity as usize);
            for (at, &(id, bias)) in request.biases.iter().enumerate() {
                let bias = bias.to_bits();
                biases.add(at).write(abi::tg_bias { id, bias });
            }
            self.requests.add(place).write(entry);
        }
    }
}

/// A request whose prompt begins at `token_start`; its biases lie beside the entry.
///
/// # Errors
/// [`Error::Usage`] where it has more stop ids than an entry has room for.
pub(super) fn entry(request: &Request, token_start: u64) -> Result<abi::tg_request> {
    let mut entry = abi::tg_request {
        token_start,
        timeout_ns: request.timeout.map_or(abi::TG_NO_TIMEOUT, nanoseconds),
        prompt_tokens: request.prompt.len() as u32,
        max_new_tokens: request.max_new_tokens,
        flags: match request.logits {
            Logits::None if request.unlimited => abi::TG_REQUEST_UNLIMITED,
            Logits::None => 0,
            Logits::Last => abi::TG_REQUEST_LOGITS_LAST,
            Logits::All => abi::TG_REQUEST_LOGITS_ALL,
        },
        stop_count: request.stop_ids.len() as u32,
        sampling: abi::tg_sampling {
            bias_count: request.biases.len() as u32,
            stop_from: match request.min_new_tokens {
                0 => 0,
                tokens => (request.prompt.len() as u32).saturating_add(tokens),
            },
            ..sampling(&request.sampling)
        },
        ..Default::default()
    };
    let room = entry.stop_ids.len();
    if request.stop_ids.len() > room {
        return Err(Error::Usage(format!(
            "a request has at most {room} stop ids (end-of-sequence ids included), not {}",
            request.stop_ids.len()
        )));
    }
    for (to, &from) in entry.stop_ids.iter_mut().zip(&request.stop_ids) {
        *to = from as i32;
    }
    let room = entry.borders.len();
    if request.borders.len() > room {
        return Err(Error::Usage(format!(
            "a request has at most {room} borders of shared prefixes, not {}",
            request.borders.len()
        )));
    }
    for (to, &Border { prefix, tokens }) in entry.borders.iter_mut().zip(&request.borders) {
        *to = abi::tg_border { prefix, tokens };
    }
    Ok(entry)
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(abi::TG_NO_TIMEOUT)
}

fn sampling(sampling: &Sampling) -> abi::tg_sampling {
    abi::tg_sampling {
        key: sampling.key,
        temperature: sampling.temperature.to_bits(),
        top_p: sampling.top_p.to_bits(),
        min_p: sampling.min_p.to_bits(),
        repetition_penalty: sampling.repetition_penalty.to_bits(),
        top_k: sampling.top_k,
        logprobs: sampling.logprobs.unwrap_or(abi::TG_LOGPROBS_NONE),
        presence_penalty: sampling.presence_penalty.to_bits(),
        frequency_penalty: sampling.frequency_penalty.to_bits(),
        ..Default::default()
    }
}

/// An event as the host hears it, with its logprobs where it has any.
pub(super) fn from_event(event: &abi::tg_event, sampled: Option<&abi::tg_sampled>) -> Event {
    if event.type_ == abi::TG_EVENT_TOKEN {
        return Event::Token {
            request: event.request,
            token: event.token as u32,
            index: event.index,
            logprobs: sampled.map(|s| from_sampled(s, event.detail)),
        };
    }
    let since_seen = |ns: u64| Duration::from_nanos(ns.saturating_sub(event.seen_ns));
    Event::End {
        request: event.request,
        reason: EndReason::of(event.detail),
        tokens: event.index,
        timing: Timing {
            // A request that never got a slot waited for all of its time.
            queue: since_seen(if event.admitted_ns == 0 {
                event.time_ns
            } else {
                event.admitted_ns
            }),
            first_token: since_seen(event.first_ns),
            total: since_seen(event.time_ns),
            recomputed: event.step as u32,
            cached_tokens: event.token as u32,
        },
    }
}

fn from_sampled(sampled: &abi::tg_sampled, alternatives: u32) -> TokenLogprobs {
    TokenLogprobs {
        logprob: f32::from_bits(sampled.logprob),
        top: sampled
            .top_ids
            .iter()
            .zip(&sampled.top_logprobs)
            .take(alternatives as usize)
            .map(|(&id, &bits)| (id as u32, f32::from_bits(bits)))
            .collect(),
    }
}
