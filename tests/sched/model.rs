//! The scheduling rules once more: sequential, with lists and no lanes, written from their description and
//! not from the core. A turn of the core must do what a turn of this does.

use super::model_prefix::Prefix;
use std::collections::{BTreeMap, VecDeque};
use tailgraph::sys::abi;

pub use super::spec::{Event, Place, Running, Seen, Step, Turn};

#[derive(Debug, Clone)]
pub(super) struct Waiting {
    seen_ns: u64,
    cancelled: bool,
}

pub struct Model {
    pub(super) config: abi::tg_config,
    pub requests: Vec<abi::tg_request>,
    pub prompts: Vec<Vec<i32>>,
    pub controls: Vec<u64>,
    pub(super) waiting: VecDeque<Waiting>,
    pub running: BTreeMap<u32, Running>,
    pub(super) prefill: Vec<u32>,
    pub free_pages: u32,
    /// By their places.
    pub prefixes: BTreeMap<u32, Prefix>,
    pub(super) turns: u64,
    pub(super) pending: VecDeque<Event>,
    /// Published and not yet popped.
    pub published: VecDeque<Event>,
    pub events_published: u64,
    /// A request that asks for logprobs has been admitted.
    pub(super) logprobs: bool,
    /// In flight, with what each sampled row got.
    pub steps: VecDeque<(Step, Vec<i32>)>,
    pub steps_composed: u64,
    pub taken: u64,
    pub controls_taken: u64,
    pub token_tail: u64,
    pub(super) cursor: u32,
    /// The requests that were decoding, with pages for it, when the last step was composed.
    pub(super) decoding: Vec<u64>,
}

impl Model {
    pub fn new(config: &abi::tg_config) -> Self {
        Self {
            config: *config,
            requests: Vec::new(),
            prompts: Vec::new(),
            controls: Vec::new(),
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            prefill: Vec::new(),
            free_pages: config.pages,
            prefixes: BTreeMap::new(),
            turns: 0,
            pending: VecDeque::new(),
            published: VecDeque::new(),
            events_published: 0,
            logprobs: false,
            steps: VecDeque::new(),
            steps_composed: 0,
            taken: 0,
            controls_taken: 0,
            token_tail: 0,
            cursor: 0,
            decoding: Vec::new(),
        }
    }

    pub(super) fn request(&self, number: u64) -> &abi::tg_request {
        &self.requests[number as usize]
    }

    /// Is somebody in the middle of its prompt?
    pub fn in_chunked_prompt(&self) -> bool {
        self.prefill.iter().any(|slot| {
            let running = &self.running[slot];
            running.composed > 0 && running.end.is_none()
        })
    }

    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub fn turn(&mut self, seen: &Seen) -> Turn {
        let mut turn = Turn::default();
        self.turns += 1;
        if seen.flags & abi::TG_INPUT_STOP != 0 {
            turn.action = abi::TG_ACTION_DONE;
            turn.changed = true;
            return turn;
        }
        if seen.trace_full {
            turn.action = abi::TG_ACTION_BLOCKED;
            return turn;
        }
        let collecting = self.pending.is_empty();
        self.observe(seen, &mut turn);
        if collecting && seen.finished {
            self.collect(seen, &mut turn);
        }
        self.deadlines(seen, &mut turn);
        // What this turn's step is made of: pages that are handed out now are for the next one.
        let ready = self.ready(&mut turn);
        self.take_back(&mut turn);
        if collecting {
            self.end_slots(seen, &mut turn);
            self.preempt_leaving(&mut turn);
            self.hand_out(seen, &ready.wanting, &mut turn);
        }
        self.free_places(&turn);
        self.publish(seen, &mut turn);
        if self.pending.is_empty() {
            if self.steps.len() < self.config.steps_in_flight as usize {
                self.compose(seen, &ready, &mut turn);
            } else {
                turn.pipeline_full = !ready.candidates.is_empty() || !self.prefill.is_empty();
            }
        }
        turn.changed |= self.any_go();
        self.release_tokens();
        self.choose_action(seen, &mut turn);
        turn
    }

    fn observe(&mut self, seen: &Seen, turn: &mut Turn) {
        while self.taken + (self.waiting.len() as u64) < seen.request_head {
            turn.changed = true;
            self.waiting.push_back(Waiting {
                seen_ns: seen.now_ns,
                cancelled: false,
            });
        }
        while self.controls_taken < seen.control_head {
            turn.changed = true;
            let number = self.controls[self.controls_taken as usize];
            self.controls_taken += 1;
            if number >= self.taken {
                self.waiting[(number - self.taken) as usize].cancelled = true;
                continue;
            }
            let Some(running) = self.running.values_mut().find(|r| r.request == number) else {
                continue;
            };
            if running.end.is_none() {
                running.end = Some(abi::TG_END_CANCELLED);
                let request = &self.requests[number as usize];
                turn.cancel_in_prefill |= running.composed < running.reading;
                turn.ended_in_flight |= running.steps > 0;
                let last = running.generated + 1 == request.max_new_tokens;
                turn.cancel_with_last_token |= last && seen.finished && running.steps == 1;
            }
        }
    }

    fn collect(&mut self, seen: &Seen, turn: &mut Turn) {
        let (step, sampled) = self
            .steps
            .pop_front()
            .expect("a finished step is in flight");
        turn.returned = Some(step.number);
        turn.changed = true;
        for sequence in &step.sequences {
            let running = self
                .running
                .get_mut(&sequence.slot)
                .expect("a running slot");
            let request = &self.requests[running.request as usize];
            running.steps -= 1;
            if running.end.is_some() {
                continue;
            }
            let through = sequence.first_position + sequence.rows >= running.reading;
            let token =
                (through && request.max_new_tokens != 0).then(|| sampled[sequence.sample as usize]);
            if through && running.first_ns == 0 && token != Some(-1) {
                running.first_ns = seen.now_ns;
            }
            if request.max_new_tokens == 0 {
                if through {
                    running.end = Some(abi::TG_END_LENGTH);
                }
            } else if let Some(token) = token {
                self.pending.push_back(Event::Token {
                    request: running.request,
                    index: running.generated,
                    token,
                    step: step.number,
                    time_ns: seen.now_ns,
                    sample: (request.sampling.logprobs != abi::TG_LOGPROBS_NONE)
                        .then_some(sequence.sample),
                });
                if token == -1 {
                    running.end = Some(abi::TG_END_NOT_FINITE);
                    continue;
                }
                running.generated += 1;
                running.tokens.push(token);
                let stops = &request.stop_ids[..request.stop_count as usize];
                let last = running.generated == request.max_new_tokens;
                if stops.contains(&token) {
                    running.end = Some(abi::TG_END_STOP);
                    turn.stop_with_last_token |= last;
                } else if last {
                    running.end = Some(abi::TG_END_LENGTH);
                } else if self.deadline(sequence.slot) <= seen.now_ns {
                    turn.deadline_with_token = true;
                }
            }
        }
    }

    fn deadline(&self, slot: u32) -> u64 {
        let running = &self.running[&slot];
        let timeout_ns = self.request(running.request).timeout_ns;
        running.seen_ns.saturating_add(timeout_ns)
    }

    fn deadlines(&mut self, seen: &Seen, turn: &mut Turn) {
        for slot in 0..self.config.slots {
            let Some(running) = self.running.get(&slot) else {
                continue;
            };
            if running.end.is_none() && seen.now_ns >= self.deadline(slot) {
                turn.changed = true;
                turn.timeout_in_prefill |= running.composed < running.reading;
                turn.ended_in_flight |= running.steps > 0;
                self.running.get_mut(&slot).unwrap().end = Some(abi::TG_END_TIMEOUT);
            }
        }
        let running = &self.running;
        self.prefill.retain(|slot| running[slot].end.is_none());
    }

    /// Ends what can end. Its events stand in slot order, each slot's token before its end.
    fn end_slots(&mut self, seen: &Seen, turn: &mut Turn) {
        let mut tokens = std::mem::take(&mut self.pending);
        for slot in 0..self.config.slots {
            let Some(running) = self.running.get(&slot) else {
                continue;
            };
            let number = running.request;
            let own = tokens
                .iter()
                .position(|e| matches!(e, Event::Token { request, .. } if *request == number));
            self.pending.extend(own.and_then(|at| tokens.remove(at)));
            let (Some(reason), 0) = (running.end, running.steps) else {
                continue;
            };
            turn.changed = true;
            let (pages, prefix) = (running.pages, running.prefix);
            turn.ended_while_leaving |= running.place == Place::Leaving;
            turn.ended_while_preempted |= running.place == Place::Preempted;
            self.pending.push_back(Event::End {
                request: number,
                reason,
                tokens: running.generated,
                time_ns: seen.now_ns,
                seen_ns: running.seen_ns,
                admitted_ns: running.admitted_ns,
                first_ns: running.first_ns,
                again: running.again,
                skipped: running.skipped,
            });
            self.free_pages += pages - self.filled(prefix);
            self.leave(prefix);
            self.running.remove(&slot);
        }
        assert!(tokens.is_empty(), "tokens of nobody: {tokens:?}");
    }

    pub(super) fn refuses(&self, request: &abi::tg_request) -> bool {
        let tokens = u64::from(request.prompt_tokens) + u64::from(request.max_new_tokens);
        let scores = [abi::TG_REQUEST_LOGITS_LAST, abi::TG_REQUEST_LOGITS_ALL];
        let flags_fit = if request.max_new_tokens == 0 {
            scores.contains(&request.flags)
        } else {
            [0, abi::TG_REQUEST_UNLIMITED].contains(&request.flags)
        };
        let logprobs = request.sampling.logprobs;
        let borders = Self::borders(request);
        let ascend = borders.is_sorted_by(|a, b| a.tokens < b.tokens);
        let first = borders.first().is_none_or(|border| border.tokens > 0);
        let last = borders
            .last()
            .is_none_or(|border| border.tokens < request.prompt_tokens);
        let all = request.flags == abi::TG_REQUEST_LOGITS_ALL && !borders.is_empty();
        !(ascend && first && last)
            || all
            || request.prompt_tokens == 0
            || request.stop_count > abi::TG_MAX_STOP_IDS
            || !flags_fit
            || (logprobs > abi::TG_MAX_LOGPROBS && logprobs != abi::TG_LOGPROBS_NONE)
            || request.sampling.bias_count > self.config.bias_capacity
            || tokens > u64::from(self.config.max_context)
            || tokens.div_ceil(u64::from(self.config.page_tokens)) > u64::from(self.config.pages)
    }

    /// Pages that a request is admitted with.
    pub(super) fn pages_at_first(&self, request: &abi::tg_request) -> u32 {
        match request.flags {
            abi::TG_REQUEST_UNLIMITED => self.pages_to_grow(request, request.prompt_tokens),
            _ => self.pages_to_grow(request, u32::MAX),
        }
    }

    pub(super) fn admit(&mut self, seen: &Seen, turn: &mut Turn) {
        for _ in 0..abi::TG_MAX_TAKES {
            let Some(front) = self.waiting.front().cloned() else {
                return;
            };
            let request = *self.request(self.taken);
            let reason = if front.cancelled {
                turn.cancel_waiting = true;
                Some(abi::TG_END_CANCELLED)
            } else if seen.now_ns >= front.seen_ns.saturating_add(request.timeout_ns) {
                turn.timeout_waiting = true;
                Some(abi::TG_END_TIMEOUT)
            } else if self.refuses(&request) {
                Some(abi::TG_END_REFUSED)
            } else {
                None
            };
            if let Some(reason) = reason {
                self.pending.push_back(Event::End {
                    request: self.taken,
                    reason,
                    tokens: 0,
                    time_ns: seen.now_ns,
                    seen_ns: front.seen_ns,
                    admitted_ns: 0,
                    first_ns: 0,
                    again: 0,
                    skipped: 0,
                });
            } else {
                let free = (0..self.config.slots).find(|slot| !self.running.contains_key(slot));
                let Some(slot) = free else {
                    turn.front_without_slot = true;
                    return;
                };
                let share = self.share(&request, self.pages_at_first(&request), turn);
                if self.waits_for_prefixes(&share, turn) {
                    return;
                }
                let prefix = self.make_prefixes(&share, turn);
                self.free_pages -= share.own;
                self.prefill.push(slot);
                self.logprobs |= request.sampling.logprobs != abi::TG_LOGPROBS_NONE;
                let running = Running {
                    request: self.taken,
                    seen_ns: front.seen_ns,
                    admitted_ns: seen.now_ns,
                    first_ns: 0,
                    place: Place::Runs,
                    composed: 0,
                    reading: request.prompt_tokens,
                    again: 0,
                    generated: 0,
                    tokens: Vec::new(),
                    steps: 0,
                    pages: self.filled(prefix) + share.own,
                    prefix,
                    skipped: 0,
                    end: None,
                    overtaken_by: Vec::new(),
                    passed_over: 0,
                };
                self.running.insert(slot, running);
            }
            turn.changed = true;
            self.waiting.pop_front();
            self.taken += 1;
        }
    }

    fn publish(&mut self, seen: &Seen, turn: &mut Turn) {
        while !self.pending.is_empty() {
            let unread = self.events_published - seen.event_tail;
            let room = if self.logprobs {
                self.config.sampled_capacity
            } else {
                self.config.event_capacity
            };
            if unread >= u64::from(room) {
                let full = unread == u64::from(self.config.event_capacity);
                turn.ring_full |= full;
                turn.logprobs_full |= !full;
                turn.beyond_logprobs |= unread > u64::from(room);
                return;
            }
            self.published.extend(self.pending.pop_front());
            self.events_published += 1;
            turn.changed = true;
        }
    }
}
