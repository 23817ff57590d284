//! A history's host and stages: they push and cancel, read events and records, run and hand over steps, each
//! with its own pace and its own stalls.

use super::check::ensure;
use super::history::History;
use super::model::Event;
use super::world::{VOCABULARY, biases};
use tailgraph::io::hash::mix64;
use tailgraph::sys::abi;

impl History {
    pub(super) fn host(&mut self, tick: u32, patient: bool) -> Result<(), String> {
        while self.pushed < self.world.requests.len()
            && (patient || self.rng.percent(self.world.push))
            && self.push_request()
        {}
        if self.rng.percent(self.world.cancel) && !self.to_cancel.is_empty() {
            self.push_cancel();
        }
        let all_pushed = self.pushed == self.world.requests.len() && self.to_cancel.is_empty();
        if all_pushed && (patient || self.rng.percent(20)) {
            self.machine.rings_mut().flags.value |= u64::from(abi::TG_INPUT_DRAIN);
        }
        if self.world.stop_at == Some(tick) {
            self.machine.rings_mut().flags.value |= u64::from(abi::TG_INPUT_STOP);
        }
        if patient {
            self.stalled = 0;
        } else if self.stalled == 0 && self.rng.percent(self.world.stall) {
            self.stalled = self.rng.range(1, 30);
        }
        if self.stalled > 0 {
            self.stalled -= 1;
            return Ok(());
        }
        while self.popped < self.machine.rings().event_head.value
            && (patient || self.rng.percent(70))
        {
            self.pop_event()?;
        }
        if patient || self.rng.percent(50) {
            self.read_traces();
        }
        Ok(())
    }

    pub(super) fn push_request(&mut self) -> bool {
        let rings = self.machine.rings();
        let (config, number) = (&self.world.config, self.pushed as u64);
        let planned = &self.world.requests[self.pushed];
        let prompt = &planned.prompt;
        let used = self.token_head - rings.token_tail.value;
        if number - rings.request_tail.value >= u64::from(config.request_capacity)
            || used + prompt.len() as u64 > u64::from(config.token_capacity)
        {
            return false;
        }
        let mut request = planned.request;
        request.token_start = self.token_head;
        let (requests, tokens) = (rings.requests, rings.tokens);
        let capacities = (config.request_capacity, config.token_capacity);
        self.machine
            .ring_set(requests, capacities.0, number, request);
        let biases = biases(number, request.sampling.bias_count);
        self.machine.set_biases(number, biases);
        for (at, &token) in (self.token_head..).zip(prompt) {
            self.machine.ring_set(tokens, capacities.1, at, token);
        }
        let coverage = &mut self.report.coverage;
        coverage.request_ring_wrapped += u64::from(number >= u64::from(capacities.0));
        let wraps = self.token_head % u64::from(capacities.1) + prompt.len() as u64;
        coverage.token_ring_wrapped += u64::from(wraps > u64::from(capacities.1));
        self.token_head += prompt.len() as u64;
        self.model.requests.push(request);
        self.model.prompts.push(prompt.clone());
        if planned.cancel {
            self.to_cancel.push(number);
        }
        self.pushed += 1;
        self.machine.rings_mut().request_head.value += 1;
        true
    }

    pub(super) fn push_cancel(&mut self) {
        let rings = self.machine.rings();
        let capacity = self.world.shape.control_capacity;
        let head = rings.control_head.value;
        if head - rings.control_tail.value >= u64::from(capacity) {
            return;
        }
        let controls = rings.controls;
        // A cancel that meets the last token is rare unless somebody looks for it.
        let last = |request: &u64| {
            let max_new_tokens = self.model.requests[*request as usize].max_new_tokens;
            let mut running = self.model.running.values();
            running
                .any(|r| r.request == *request && r.steps == 1 && r.generated + 1 == max_new_tokens)
        };
        let at = match self.to_cancel.iter().position(last) {
            Some(at) if self.rng.percent(95) => at,
            _ => self.rng.below(self.to_cancel.len() as u32) as usize,
        };
        let request = self.to_cancel.swap_remove(at);
        if self.rng.percent(10) {
            // A host may cancel twice.
            self.to_cancel.push(request);
        }
        self.model.controls.push(request);
        self.machine
            .ring_set(controls, capacity, head, abi::tg_control { request });
        self.machine.rings_mut().control_head.value += 1;
    }

    pub(super) fn pop_event(&mut self) -> Result<(), String> {
        let rings = self.machine.rings();
        let config = &self.world.config;
        let event: abi::tg_event =
            self.machine
                .ring_get(rings.events, config.event_capacity, self.popped);
        let wanted = self.model.published.pop_front();
        let wanted = wanted.ok_or_else(|| format!("an event nobody published: {event:?}"))?;
        match wanted {
            Event::Token {
                request,
                step,
                sample,
                ..
            } => {
                let logprobs = self.model.requests[request as usize].sampling.logprobs;
                ensure!(
                    event.detail == logprobs,
                    "token of request {request} says logprobs {}, expected {logprobs}",
                    event.detail
                );
                if let Some(sample) = sample {
                    let capacity = config.sampled_capacity;
                    let sampled: abi::tg_sampled =
                        self.machine.ring_get(rings.sampled, capacity, self.popped);
                    ensure!(
                        sampled == sample_of(step, sample),
                        "request {request} came with the logprobs of another row"
                    );
                }
            }
            Event::End { reason, .. } => {
                self.report.coverage.refused += u64::from(reason == abi::TG_END_REFUSED);
                self.report.coverage.not_finite += u64::from(reason == abi::TG_END_NOT_FINITE);
            }
        }
        let found = event_of(&event, &wanted);
        ensure!(
            found == Some(wanted),
            "event {} is {event:?}, expected {wanted:?}",
            self.popped
        );
        self.popped += 1;
        self.machine.rings_mut().event_tail.value = self.popped;
        Ok(())
    }

    pub(super) fn read_traces(&mut self) {
        let rings = self.machine.rings();
        let capacity = self.world.shape.trace_capacity;
        let head = rings.trace_head.value;
        let oldest = head.saturating_sub(u64::from(capacity));
        self.report.coverage.trace_records_lost += oldest.saturating_sub(self.traces_read);
        for n in self.traces_read.max(oldest)..head {
            if self.options.record {
                let record = self.machine.ring_get(rings.trace, capacity, n);
                self.report.records.push(record);
            }
        }
        self.traces_read = head;
        self.machine.rings_mut().trace_tail.value = head;
    }

    /// Every stage works on its oldest step; whoever is done hands over as soon as there is credit.
    pub(super) fn stages(&mut self, patient: bool) {
        let stages = self.queues.len();
        for stage in (0..stages).rev() {
            if self.done[stage].is_none() && (patient || self.rng.percent(self.world.stage)) {
                let next = if stage == 0 {
                    self.queues[0].pop_front()
                } else {
                    let step = self.machine.take(stage);
                    self.in_mailbox[stage] -= u32::from(step.is_some());
                    step
                };
                if let (Some(number), true) = (next, stage + 1 == stages) {
                    self.sample(number);
                }
                self.done[stage] = next;
            }
            let Some(number) = self.done[stage] else {
                continue;
            };
            let to = (stage + 1) % stages;
            if self.machine.post(to, number) {
                self.in_mailbox[to] += 1;
                self.done[stage] = None;
            } else {
                self.report.coverage.mailbox_without_credit += 1;
            }
        }
    }

    fn sample(&mut self, number: u64) {
        let rows = self.machine.step(number).sample_rows;
        let sampled: Vec<abi::tg_sampled> = (0..rows).map(|row| sample_of(number, row)).collect();
        for (row, sampled) in (0..).zip(&sampled) {
            self.machine.set_sampled(number, row, *sampled);
        }
        let step = self.model.steps.iter_mut().find(|s| s.0.number == number);
        step.expect("the step is in flight").1 = sampled.iter().map(|s| s.token).collect();
    }
}

/// What the test's sampler leaves for a row: a function of the step and the row alone. Now and then no token.
fn sample_of(step: u64, row: u32) -> abi::tg_sampled {
    let bits = mix64(step << 16 | u64::from(row));
    abi::tg_sampled {
        token: if (bits >> 8).is_multiple_of(64) {
            -1
        } else {
            (bits % u64::from(VOCABULARY)) as i32
        },
        logprob: (bits >> 32) as u32,
        top_ids: [row as i32; 20],
        top_logprobs: [step as u32; 20],
    }
}

/// The core's event in the model's terms, `None` where it is malformed. What the core does not say is taken
/// from `like`.
fn event_of(event: &abi::tg_event, like: &Event) -> Option<Event> {
    match event.type_ {
        abi::TG_EVENT_TOKEN => Some(Event::Token {
            request: event.request,
            index: event.index,
            token: event.token,
            step: event.step,
            time_ns: event.time_ns,
            sample: match like {
                Event::Token { sample, .. } => *sample,
                Event::End { .. } => None,
            },
        }),
        abi::TG_EVENT_END => Some(Event::End {
            request: event.request,
            reason: event.detail,
            tokens: event.index,
            time_ns: event.time_ns,
            seen_ns: event.seen_ns,
            admitted_ns: event.admitted_ns,
            first_ns: event.first_ns,
            again: event.step as u32,
            skipped: event.token as u32,
        }),
        _ => None,
    }
}
