//! One random history: a host, stages and a core, all driven by one seed. Every turn is compared with the
//! model, every event with what the model published.

use super::api::Api;
use super::check::{self, ensure};
use super::coverage::Coverage;
use super::machine::{Lanes, Machine, Order};
use super::model::{Event, Model, Seen, Step, Turn};
use super::rng::{Rng, mix};
use super::world::{VOCABULARY, World};
use std::collections::VecDeque;
use tailgraph::sys::abi;

/// What a history leaves behind.
#[derive(Default)]
pub struct Report {
    pub coverage: Coverage,
    /// After each turn: of everything in both blocks but the scratch (where asked for).
    pub hashes: Vec<u64>,
    pub records: Vec<abi::tg_trace>,
    pub steps: Vec<Step>,
    pub requests: Vec<abi::tg_request>,
    pub prompts: Vec<Vec<i32>>,
    pub controls: Vec<u64>,
    pub config: abi::tg_config,
    pub shape: abi::tg_rings,
}

/// What a history does beside running.
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// The lanes of every turn; without them each history has its own.
    pub lanes: Option<Lanes>,
    pub hash: bool,
    /// Run in recording mode and keep what a replay needs.
    pub record: bool,
}

/// A finite history must end: with everybody cooperating, each tick brings the end nearer.
const PATIENT_TICKS: u32 = 600;
const MOST_TICKS: u32 = 6000;

struct History {
    rng: Rng,
    world: World,
    machine: Machine,
    model: Model,
    report: Report,
    options: Options,
    now_ns: u64,
    /// Ticks for which the host reads nothing.
    stalled: u32,
    pushed: usize,
    token_head: u64,
    to_cancel: Vec<u64>,
    popped: u64,
    traces_read: u64,
    /// Per stage: steps it will run, the one it works on, and whether that one is done.
    queues: Vec<VecDeque<u64>>,
    done: Vec<Option<u64>>,
    in_mailbox: Vec<u32>,
    drain_seen: bool,
    changed_turns: u64,
}

/// Runs the history of `seed`; an error names the seed and the tick.
pub fn run(api: Api, seed: u64, options: Options) -> Result<Report, String> {
    run_to_end(api, seed, options).map(|(report, _)| report)
}

/// Likewise, and gives the core as it is afterwards.
pub fn run_to_end(api: Api, seed: u64, options: Options) -> Result<(Report, Machine), String> {
    let mut rng = Rng::new(seed);
    let mut world = World::new(&mut rng);
    if options.record {
        world.shape.record = 1;
    }
    let lanes = options.lanes.unwrap_or_else(|| random_lanes(seed));
    let machine = Machine::new(api, &world.config, &world.shape, lanes)
        .map_err(|error| format!("seed {seed}: the core refuses its configuration: {error}"))?;
    let stages = world.config.stages as usize;
    let mut history = History {
        rng,
        model: Model::new(&world.config),
        machine,
        report: Report {
            config: world.config,
            shape: world.shape,
            ..Report::default()
        },
        world,
        options,
        now_ns: 1000,
        stalled: 0,
        pushed: 0,
        token_head: 0,
        to_cancel: Vec::new(),
        popped: 0,
        traces_read: 0,
        queues: vec![VecDeque::new(); stages],
        done: vec![None; stages],
        in_mailbox: vec![0; stages],
        drain_seen: false,
        changed_turns: 0,
    };
    for tick in 0..MOST_TICKS {
        let result = history.tick(tick).and_then(|done| {
            if done {
                history.finish()?;
            }
            Ok(done)
        });
        match result {
            Ok(true) => return Ok((history.report, history.machine)),
            Ok(false) => {}
            Err(message) => return Err(format!("seed {seed}, tick {tick}, {lanes:?}: {message}")),
        }
    }
    Err(format!(
        "seed {seed}: not drained after {MOST_TICKS} ticks, {} running, {} waiting",
        history.model.running.len(),
        history.model.waiting()
    ))
}

/// Mostly few lanes, sometimes as many as a GPU runs.
fn random_lanes(seed: u64) -> Lanes {
    let mut rng = Rng::new(mix(seed));
    let count = match rng.below(128) {
        0 => 256,
        1..=3 => 32,
        4..=8 => rng.range(5, 20),
        _ => rng.range(1, 4),
    };
    let order = match rng.below(3) {
        0 => Order::Forward,
        1 => Order::Backward,
        _ => Order::Shuffled(seed),
    };
    Lanes { count, order }
}

impl History {
    /// Host, stages, one turn. True once the core is done.
    fn tick(&mut self, tick: u32) -> Result<bool, String> {
        let patient = tick >= PATIENT_TICKS;
        self.now_ns += u64::from(self.rng.below(self.world.tick_ns + 1));
        self.host(tick, patient)?;
        self.stages(patient);
        self.turn()
    }

    fn host(&mut self, tick: u32, patient: bool) -> Result<(), String> {
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

    fn push_request(&mut self) -> bool {
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

    fn push_cancel(&mut self) {
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
            Some(at) if self.rng.percent(50) => at,
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

    fn pop_event(&mut self) -> Result<(), String> {
        let rings = self.machine.rings();
        let capacity = self.world.config.event_capacity;
        let event: abi::tg_event = self.machine.ring_get(rings.events, capacity, self.popped);
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

    fn read_traces(&mut self) {
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
    fn stages(&mut self, patient: bool) {
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

    fn turn(&mut self) -> Result<bool, String> {
        for (mailbox, posted) in self.in_mailbox.iter().enumerate() {
            ensure!(
                *posted <= self.world.config.mailbox_depth,
                "mailbox {mailbox} holds {posted} steps with {} credits",
                self.world.config.mailbox_depth
            );
        }
        let rings = self.machine.rings();
        let traces = self.machine.state().traces_written;
        let unread = traces - rings.trace_tail.value;
        let seen = Seen {
            now_ns: self.now_ns,
            request_head: rings.request_head.value,
            control_head: rings.control_head.value,
            event_tail: rings.event_tail.value,
            flags: rings.flags.value as u32,
            finished: self.in_mailbox[0] > 0,
            trace_full: rings.record != 0 && unread >= u64::from(self.world.shape.trace_capacity),
        };
        let drain_new = seen.flags & abi::TG_INPUT_DRAIN != 0 && !self.drain_seen;
        if drain_new && !seen.trace_full {
            self.drain_seen = true;
            self.report.coverage.drain_in_chunked_prompt +=
                u64::from(self.model.in_chunked_prompt());
        }
        let expected = self.model.turn(&seen);
        self.in_mailbox[0] -= u32::from(expected.returned);
        let outcome = self.machine.turn(self.now_ns);
        self.count(&seen, &expected);
        self.compare(&expected, &outcome)?;
        check::pages_and_slots(&self.machine, &self.model)?;
        self.nobody_starves()?;
        if let Some(step) = expected.step {
            self.queues[0].push_back(step.number);
            if self.options.record {
                self.report.steps.push(step);
            }
        }
        if self.options.hash {
            self.report.hashes.push(self.hash());
        }
        self.changed_turns += u64::from(expected.changed);
        Ok(outcome.action == abi::TG_ACTION_DONE)
    }

    fn compare(&self, expected: &Turn, outcome: &abi::tg_outcome) -> Result<(), String> {
        let (model, state) = (&self.model, self.machine.state());
        let step = expected.step.clone().unwrap_or_default();
        let wanted = abi::tg_outcome {
            action: expected.action,
            error: abi::TG_ERROR_NONE,
            kind: step.kind,
            bucket: step.bucket,
            rows: step.rows.len() as u32,
            sequences: step.sequences.len() as u32,
            sample_rows: step.sample_rows.len() as u32,
            changed: u32::from(expected.changed),
            step: expected.step.as_ref().map_or(abi::TG_NO_STEP, |s| s.number),
            returned_step: if expected.returned {
                model.steps_composed
                    - u64::from(expected.step.is_some())
                    - (model.steps.len() as u64 - u64::from(expected.step.is_some()))
                    - 1
            } else {
                abi::TG_NO_STEP
            },
            queue_depth: model.waiting() as u32,
            running: model.running.len() as u32,
            free_pages: model.free_pages,
            steps_in_flight: model.steps.len() as u32,
        };
        ensure!(
            *outcome == wanted,
            "outcome {outcome:?}, expected {wanted:?}"
        );
        if expected.step.is_some() {
            let found = check::read_step(&self.machine, step.number);
            ensure!(found == step, "step {found:?}, expected {step:?}");
            check::step(&self.machine, &found)?;
        }
        let rings = self.machine.rings();
        let found = [
            rings.request_tail.value,
            rings.token_tail.value,
            rings.control_tail.value,
            rings.event_head.value,
            rings.action.value,
            state.turn,
        ];
        let turns = found[5];
        let action = u64::from(expected.action);
        let wanted = [
            model.taken,
            model.token_tail,
            model.controls_taken,
            model.events_published,
            action,
            turns,
        ];
        ensure!(
            found == wanted,
            "request tail, token tail, control tail, event head, action {found:?}, expected {wanted:?}"
        );
        Ok(())
    }

    /// A sequence that could decode waits at most as many steps as may be in flight.
    fn nobody_starves(&self) -> Result<(), String> {
        for (slot, running) in &self.model.running {
            ensure!(
                running.passed_over <= self.world.config.steps_in_flight,
                "slot {slot} was passed over by {} steps",
                running.passed_over
            );
        }
        Ok(())
    }

    fn count(&mut self, seen: &Seen, turn: &Turn) {
        let step_tokens = self.world.config.step_tokens as usize;
        let coverage = &mut self.report.coverage;
        coverage.event_ring_full += u64::from(turn.ring_full);
        coverage.front_without_pages += u64::from(turn.front_without_pages);
        coverage.front_without_slot += u64::from(turn.front_without_slot);
        coverage.cancel_while_waiting += u64::from(turn.cancel_waiting);
        coverage.cancel_in_prefill += u64::from(turn.cancel_in_prefill);
        coverage.cancel_with_last_token += u64::from(turn.cancel_with_last_token);
        coverage.timeout_while_waiting += u64::from(turn.timeout_waiting);
        coverage.timeout_in_prefill += u64::from(turn.timeout_in_prefill);
        coverage.deadline_with_token += u64::from(turn.deadline_with_token);
        coverage.stop_with_last_token += u64::from(turn.stop_with_last_token);
        coverage.ended_with_steps_in_flight += u64::from(turn.ended_in_flight);
        coverage.chunk_skipped += u64::from(turn.chunk_skipped);
        coverage.decode_rows_shared += u64::from(turn.decode_share);
        coverage.pipeline_full += u64::from(turn.pipeline_full);
        coverage.trace_ring_full += u64::from(seen.trace_full);
        coverage.stopped_by_host += u64::from(seen.flags & abi::TG_INPUT_STOP != 0);
        if let Some(step) = &turn.step {
            coverage.row_budget_exactly_met += u64::from(step.rows.len() == step_tokens);
            coverage.scored += u64::from(step.kind == abi::TG_KIND_SCORE);
        }
    }

    /// Everything but the scratch.
    fn hash(&self) -> u64 {
        let state = self.machine.state();
        let kept = &self.machine.state_bytes()[..state.scratch_table as usize];
        let words = kept
            .chunks_exact(8)
            .chain(self.machine.rings_bytes().chunks_exact(8));
        words.fold(0, |hash, word| {
            mix(hash ^ u64::from_le_bytes(word.try_into().unwrap()))
        })
    }

    /// The core is done: every request ended once, everything is free, nothing was lost on the way.
    fn finish(&mut self) -> Result<(), String> {
        while self.popped < self.machine.rings().event_head.value {
            self.pop_event()?;
        }
        self.read_traces();
        let stopped = self.machine.rings().flags.value & u64::from(abi::TG_INPUT_STOP) != 0;
        if !stopped {
            let state = self.machine.state();
            let all = self.world.requests.len() as u64;
            ensure!(
                self.model.taken == all && self.model.running.is_empty(),
                "drained with {} of {all} requests taken",
                self.model.taken
            );
            ensure!(
                state.free_pages == state.config.pages && state.running == 0,
                "drained with {} of {} pages free",
                state.free_pages,
                state.config.pages
            );
            ensure!(
                self.machine.rings().token_tail.value == self.token_head,
                "drained with prompt tokens left"
            );
        }
        if self.options.record {
            let (read, lost) = (self.traces_read, self.machine.rings().trace_lost.value);
            ensure!(
                read + lost == self.changed_turns && (stopped || lost == 0),
                "{read} records of {} turns, {lost} lost",
                self.changed_turns
            );
        }
        self.report.requests = std::mem::take(&mut self.model.requests);
        self.report.prompts = std::mem::take(&mut self.model.prompts);
        self.report.controls = std::mem::take(&mut self.model.controls);
        Ok(())
    }
}

/// What the test's sampler leaves for a row: a function of the step and the row alone.
fn sample_of(step: u64, row: u32) -> abi::tg_sampled {
    let bits = mix(step << 16 | u64::from(row));
    abi::tg_sampled {
        token: (bits % u64::from(VOCABULARY)) as i32,
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
        abi::TG_EVENT_END if event.token == -1 => Some(Event::End {
            request: event.request,
            reason: event.detail,
            tokens: event.index,
            time_ns: event.time_ns,
            seen_ns: event.seen_ns,
            admitted_ns: event.admitted_ns,
            first_ns: event.first_ns,
        }),
        _ => None,
    }
}
