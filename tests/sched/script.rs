//! A core driven by hand: exact scenarios push, turn, bring steps back and read events.

use super::api::Api;
use super::check;
use super::machine::{Lanes, Machine};
use super::model::Step;
use tailgraph::sys::abi;

pub struct Script {
    pub machine: Machine,
    pub now_ns: u64,
    tokens: u64,
}

/// 4 slots, pages of 4 tokens, steps of 16 rows, which prompts may fill beside running sequences too, chunks on multiples of 4; one stage, one step in flight.
pub fn config() -> abi::tg_config {
    let mut config = abi::tg_config {
        slots: 4,
        pages: 64,
        page_tokens: 4,
        max_context: 64,
        step_tokens: 16,
        chunk_tokens: 16,
        chunk_align: 4,
        stages: 1,
        steps_in_flight: 1,
        mailbox_depth: 1,
        request_capacity: 8,
        token_capacity: 256,
        event_capacity: 64,
        sampled_capacity: 64,
        grow_tokens: 8,
        bucket_count: [3, 2, 2],
        ..Default::default()
    };
    config.bucket_rows[0][..3].copy_from_slice(&[1, 2, 4]);
    config.bucket_rows[1][..2].copy_from_slice(&[8, 16]);
    config.bucket_rows[2][..2].copy_from_slice(&[4, 16]);
    config
}

/// Rings for `config`, with as much room for controls and trace records.
pub fn shape(config: &abi::tg_config) -> abi::tg_rings {
    abi::tg_rings {
        request_capacity: config.request_capacity,
        token_capacity: config.token_capacity,
        control_capacity: 8,
        event_capacity: config.event_capacity,
        sampled_capacity: config.sampled_capacity,
        trace_capacity: 64,
        ..Default::default()
    }
}

impl Script {
    pub fn new(config: &abi::tg_config) -> Self {
        Self::with_rings(config, &shape(config))
    }

    pub fn with_rings(config: &abi::tg_config, shape: &abi::tg_rings) -> Self {
        let machine = Machine::new(Api::linked(), config, shape, Lanes::ONE);
        Self {
            machine: machine.expect("a good configuration"),
            now_ns: 100,
            tokens: 0,
        }
    }

    /// Pushes a request with a prompt of `prompt_tokens` tokens 0, 1, 2 ...; `change` sets the rest.
    pub fn push(
        &mut self,
        prompt_tokens: u32,
        max_new_tokens: u32,
        change: impl FnOnce(&mut abi::tg_request),
    ) -> u64 {
        let mut request = abi::tg_request {
            token_start: self.tokens,
            timeout_ns: abi::TG_NO_TIMEOUT,
            prompt_tokens,
            max_new_tokens,
            ..Default::default()
        };
        request.sampling.logprobs = abi::TG_LOGPROBS_NONE;
        change(&mut request);
        let rings = self.machine.rings();
        let (requests, tokens, number) = (rings.requests, rings.tokens, rings.request_head.value);
        let capacities = (rings.request_capacity, rings.token_capacity);
        self.machine
            .ring_set(requests, capacities.0, number, request);
        for (at, token) in (self.tokens..).zip(0..prompt_tokens as i32) {
            self.machine.ring_set(tokens, capacities.1, at, token);
        }
        self.tokens += u64::from(prompt_tokens);
        self.machine.rings_mut().request_head.value += 1;
        number
    }

    pub fn cancel(&mut self, request: u64) {
        let rings = self.machine.rings();
        let (controls, head, capacity) = (
            rings.controls,
            rings.control_head.value,
            rings.control_capacity,
        );
        let entry = abi::tg_control { request };
        self.machine.ring_set(controls, capacity, head, entry);
        self.machine.rings_mut().control_head.value += 1;
    }

    pub fn flag(&mut self, flag: u32) {
        self.machine.rings_mut().flags.value |= u64::from(flag);
    }

    pub fn turn(&mut self) -> abi::tg_outcome {
        self.now_ns += 1;
        self.machine.turn(self.now_ns)
    }

    /// A turn that must compose a step; gives it.
    pub fn step(&mut self) -> Step {
        let outcome = self.turn();
        assert_eq!(outcome.action, abi::TG_ACTION_STEP, "{outcome:?}");
        check::read_step(&self.machine, outcome.step)
    }

    /// Step `number` comes back with `token` in every sampled row.
    pub fn finish(&mut self, number: u64, token: i32) {
        let rows = self.machine.step(number).sample_rows;
        self.finish_with(number, &vec![token; rows as usize]);
    }

    /// Step `number` comes back with one of `tokens` in each sampled row, and [`logprob`] of it.
    pub fn finish_with(&mut self, number: u64, tokens: &[i32]) {
        assert_eq!(tokens.len(), self.machine.step(number).sample_rows as usize);
        for (row, &token) in (0..).zip(tokens) {
            let sampled = abi::tg_sampled {
                token,
                logprob: logprob(number, row),
                ..Default::default()
            };
            self.machine.set_sampled(number, row, sampled);
        }
        assert!(self.machine.post(0, number), "mailbox 0 has credit");
    }

    /// The next event as (request, type, detail of an end or token of a token, index).
    pub fn event(&mut self) -> Option<(u64, u32, i64, u32)> {
        let rings = self.machine.rings();
        let tail = rings.event_tail.value;
        if tail == rings.event_head.value {
            return None;
        }
        let event: abi::tg_event = self
            .machine
            .ring_get(rings.events, rings.event_capacity, tail);
        self.machine.rings_mut().event_tail.value += 1;
        let what = if event.type_ == abi::TG_EVENT_END {
            i64::from(event.detail)
        } else {
            i64::from(event.token)
        };
        Some((event.request, event.type_, what, event.index))
    }

    /// What stands where the logprobs of the oldest event that was not read would, as far as [`logprob`] says it.
    pub fn logprob(&self) -> u32 {
        let rings = self.machine.rings();
        let (capacity, tail) = (rings.sampled_capacity, rings.event_tail.value);
        let sampled: abi::tg_sampled = self.machine.ring_get(rings.sampled, capacity, tail);
        sampled.logprob
    }

    pub fn events(&mut self) -> Vec<(u64, u32, i64, u32)> {
        std::iter::from_fn(|| self.event()).collect()
    }
}

/// The logprob of a sampled row: no other row of another step has it.
pub fn logprob(step: u64, row: u32) -> u32 {
    1 + step as u32 * 16 + row
}

/// A token event as [`Script::event`] gives it.
pub fn token(request: u64, token: i64, index: u32) -> (u64, u32, i64, u32) {
    (request, abi::TG_EVENT_TOKEN, token, index)
}

/// An end event as [`Script::event`] gives it.
pub fn end(request: u64, reason: u32, tokens: u32) -> (u64, u32, i64, u32) {
    (request, abi::TG_EVENT_END, i64::from(reason), tokens)
}
