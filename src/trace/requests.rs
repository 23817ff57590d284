//! A track per request: from when the scheduler first saw it to its end, and within that queued, prefill, decode.

use super::json::{Nothing, Out};
use crate::error::Result;
use crate::io::record::EndLine;
use crate::runtime::{EndReason, Request};
use crate::sys::abi;
use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};

/// The process that requests' tracks are in.
pub const PROCESS: u32 = 2;

/// What is known of a request before it ends.
struct Open {
    prompt_tokens: usize,
    max_new_tokens: u32,
    seen_ns: Option<u64>,
}

/// The scheduler's times of a request that has ended; 0: never.
struct Times {
    request: u64,
    seen_ns: u64,
    admitted_ns: u64,
    first_ns: u64,
    end_ns: u64,
    reason: u32,
    tokens: u32,
    read_again: u64,
}

/// Requests that were asked for and have not been drawn yet.
#[derive(Default)]
pub struct Requests {
    open: BTreeMap<u64, Open>,
    asked: u64,
    seen: u64,
    /// Ends as the core comes to them and as the host was told, in the same order; one side may be ahead.
    times: VecDeque<Times>,
    told: VecDeque<EndLine>,
    pub ended: u64,
}

#[derive(Serialize)]
struct Args {
    prompt_tokens: usize,
    max_new_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    end: Option<EndReason>,
    /// How often it gave its pages back and was read again; `None`: never.
    #[serde(skip_serializing_if = "Option::is_none")]
    read_again: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unfinished: bool,
}

fn reason(end: u32) -> EndReason {
    match end {
        abi::TG_END_STOP => EndReason::Stop,
        abi::TG_END_LENGTH => EndReason::Length,
        abi::TG_END_CANCELLED => EndReason::Cancelled,
        abi::TG_END_TIMEOUT => EndReason::Timeout,
        abi::TG_END_NOT_FINITE => EndReason::NotFinite,
        _ => EndReason::Refused,
    }
}

impl Requests {
    /// Requests so far.
    pub fn asked(&self) -> u64 {
        self.asked
    }

    pub fn request(&mut self, request: &Request) {
        let open = Open {
            prompt_tokens: request.prompt.len(),
            max_new_tokens: request.max_new_tokens,
            seen_ns: None,
        };
        self.open.insert(self.asked, open);
        self.asked += 1;
    }

    /// A turn that began at `now_ns` has seen all requests below `head`.
    pub fn seen(&mut self, head: u64, now_ns: u64) {
        // The file may claim to have seen more than there are.
        let head = head.min(self.asked);
        for number in self.seen..head {
            if let Some(open) = self.open.get_mut(&number) {
                open.seen_ns = Some(now_ns);
            }
        }
        self.seen = self.seen.max(head);
    }

    /// An event of the core.
    pub fn event(&mut self, event: &abi::tg_event) {
        if event.type_ == abi::TG_EVENT_END {
            self.times.push_back(Times {
                request: event.request,
                seen_ns: event.seen_ns,
                admitted_ns: event.admitted_ns,
                first_ns: event.first_ns,
                end_ns: event.time_ns,
                reason: event.detail,
                tokens: event.index,
                read_again: event.step,
            });
        }
    }

    /// What the host was told: of logits that are not finite the core alone does not know.
    pub fn told(&mut self, end: EndLine) {
        self.told.push_back(end);
    }

    /// Draws those that both sides have come to.
    pub fn draw(&mut self, out: &mut Out) -> Result<()> {
        let both = self.times.len().min(self.told.len());
        let times: Vec<Times> = self.times.drain(..both).collect();
        let told: Vec<EndLine> = self.told.drain(..both).collect();
        for (times, told) in times.iter().zip(&told) {
            self.one(out, times, told.reason, told.tokens)?;
        }
        Ok(())
    }

    /// Draws the others: those that a run which was broken off ended without the host being told, and those that never
    /// ended, up to `last_ns`.
    pub fn finish(&mut self, out: &mut Out, last_ns: u64) -> Result<()> {
        self.draw(out)?;
        while let Some(times) = self.times.pop_front() {
            self.one(out, &times, reason(times.reason), times.tokens)?;
        }
        for (number, open) in std::mem::take(&mut self.open) {
            let Some(seen_ns) = open.seen_ns else {
                continue;
            };
            let name = format!("request {number}");
            let args = Args {
                prompt_tokens: open.prompt_tokens,
                max_new_tokens: open.max_new_tokens,
                new_tokens: None,
                end: None,
                read_again: None,
                unfinished: true,
            };
            out.nested(true, PROCESS, number, &name, seen_ns.into(), args)?;
            out.nested(false, PROCESS, number, &name, last_ns.into(), Nothing {})?;
        }
        Ok(())
    }

    fn one(&mut self, out: &mut Out, times: &Times, end: EndReason, tokens: u32) -> Result<()> {
        let Some(open) = self.open.remove(&times.request) else {
            return Ok(());
        };
        self.ended += 1;
        let id = times.request;
        let name = format!("request {id}");
        let args = Args {
            prompt_tokens: open.prompt_tokens,
            max_new_tokens: open.max_new_tokens,
            new_tokens: Some(tokens),
            end: Some(end),
            read_again: (times.read_again > 0).then_some(times.read_again),
            unfinished: false,
        };
        out.nested(true, PROCESS, id, &name, times.seen_ns.into(), args)?;
        for (phase, from, to) in phases(times) {
            out.nested(true, PROCESS, id, phase, from.into(), Nothing {})?;
            out.nested(false, PROCESS, id, phase, to.into(), Nothing {})?;
        }
        out.nested(false, PROCESS, id, &name, times.end_ns.into(), Nothing {})
    }
}

/// Name, begin and end of each, one after the other, without those that took no time: who is admitted at once never
/// queued, and who has one token to make never decodes.
fn phases(times: &Times) -> Vec<(&'static str, u64, u64)> {
    let or_end = |ns| if ns == 0 { times.end_ns } else { ns };
    let mut phases = vec![("queued", times.seen_ns, or_end(times.admitted_ns))];
    if times.admitted_ns != 0 {
        phases.push(("prefill", times.admitted_ns, or_end(times.first_ns)));
    }
    if times.first_ns != 0 {
        phases.push(("decode", times.first_ns, times.end_ns));
    }
    phases.retain(|(_, from, to)| from < to);
    phases
}
