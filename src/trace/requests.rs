//! A track per request: from when the scheduler first saw it to its end, and within that queued, prefill, decode.

use super::json::Out;
use crate::error::Result;
use crate::io::record::EndLine;
use crate::runtime::{EndReason, Request};
use crate::sys::abi::{self, tg_event};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};

/// Requests that were asked for and have not been drawn yet.
#[derive(Default)]
pub struct Requests {
    /// What is known of each before it ends, and when it was first seen.
    open: BTreeMap<u64, (Value, Option<u64>)>,
    pub asked: u64,
    seen: u64,
    /// Ends as the core comes to them and as the host was told, which alone knows of logits that are not finite: in the same
    /// order, and one side may be ahead.
    ends: VecDeque<tg_event>,
    pub told: VecDeque<EndLine>,
    pub ended: u64,
}

impl Requests {
    pub fn request(&mut self, request: &Request) {
        let args = json!({
            "prompt_tokens": request.prompt.len(),
            "max_new_tokens": request.max_new_tokens,
        });
        self.open.insert(self.asked, (args, None));
        self.asked += 1;
    }

    /// A turn that began at `now_ns` has seen all requests below `head`.
    pub fn seen(&mut self, head: u64, now_ns: u64) {
        // The file may claim to have seen more than there are.
        let head = head.min(self.asked).max(self.seen);
        for (_, (_, seen_ns)) in self.open.range_mut(self.seen..head) {
            *seen_ns = Some(now_ns);
        }
        self.seen = head;
    }

    /// An event of the core.
    pub fn event(&mut self, event: &tg_event) {
        if event.type_ == abi::TG_EVENT_END {
            self.ends.push_back(*event);
        }
    }

    /// Draws those that both sides have come to.
    pub fn draw(&mut self, out: &mut Out) -> Result<()> {
        while !self.ends.is_empty()
            && let Some(told) = self.told.pop_front()
            && let Some(end) = self.ends.pop_front()
        {
            self.one(out, &end, told.reason, told.tokens)?;
        }
        Ok(())
    }

    /// Draws the others: those that a run which was broken off ended without the host being told, and those that never
    /// ended, up to `last_ns`.
    pub fn finish(&mut self, out: &mut Out, last_ns: u64) -> Result<()> {
        self.draw(out)?;
        while let Some(end) = self.ends.pop_front() {
            self.one(out, &end, EndReason::of(end.detail), end.index)?;
        }
        for (number, (mut args, seen_ns)) in std::mem::take(&mut self.open) {
            if let Some(seen_ns) = seen_ns {
                args["unfinished"] = true.into();
                let name = format!("request {number}");
                out.nested("b", number, &name, seen_ns, args)?;
                out.nested("e", number, &name, last_ns, json!({}))?;
            }
        }
        Ok(())
    }

    /// One that ended: `event` has the scheduler's times of it, 0 for what never was.
    fn one(&mut self, out: &mut Out, event: &tg_event, end: EndReason, tokens: u32) -> Result<()> {
        let Some((mut args, _)) = self.open.remove(&event.request) else {
            return Ok(());
        };
        self.ended += 1;
        args["new_tokens"] = tokens.into();
        args["end"] = json!(end);
        // How often it was preempted and recomputed.
        if event.step > 0 {
            args["read_again"] = event.step.into();
        }
        if event.token > 0 {
            args["cached_tokens"] = event.token.into();
        }
        let id = event.request;
        let name = format!("request {id}");
        out.nested("b", id, &name, event.seen_ns, args)?;
        // Those that took no time are left out: who is admitted at once never queued, and who has one token to make never decodes.
        let or_end = |ns| if ns == 0 { event.time_ns } else { ns };
        for (phase, from, to) in [
            ("queued", event.seen_ns, or_end(event.admitted_ns)),
            ("prefill", event.admitted_ns, or_end(event.first_ns)),
            ("decode", event.first_ns, event.time_ns),
        ] {
            if from > 0 && from < to {
                out.nested("b", id, phase, from, json!({}))?;
                out.nested("e", id, phase, to, json!({}))?;
            }
        }
        out.nested("e", id, &name, event.time_ns, json!({}))
    }
}
