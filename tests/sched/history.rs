//! One random history: a host, stages and a core, all driven by one seed. Every turn is compared with the
//! model, every event with what the model published.

use super::api::Api;
use super::check::{self, ensure};
use super::contents::Contents;
use super::coverage::Coverage;
use super::machine::{Lanes, Machine, Order};
use super::model::{Model, Seen, Step, Turn};
use super::world::World;
use crate::common::random::Random;
use std::collections::VecDeque;
use tailgraph::io::hash::mix64;
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

pub(super) struct History {
    seed: u64,
    lanes: Lanes,
    pub(super) rng: Random,
    pub(super) world: World,
    pub(super) machine: Machine,
    pub(super) model: Model,
    pub(super) contents: Contents,
    pub(super) report: Report,
    pub(super) options: Options,
    pub(super) now_ns: u64,
    /// Ticks for which the host reads nothing.
    pub(super) stalled: u32,
    pub(super) pushed: usize,
    pub(super) token_head: u64,
    pub(super) to_cancel: Vec<u64>,
    pub(super) popped: u64,
    pub(super) traces_read: u64,
    /// Per stage: steps it will run, the one it works on, and whether that one is done.
    pub(super) queues: Vec<VecDeque<u64>>,
    pub(super) done: Vec<Option<u64>>,
    pub(super) in_mailbox: Vec<u32>,
    pub(super) drain_seen: bool,
    pub(super) changed_turns: u64,
}

/// Runs the history of `seed`; an error names the seed and the tick.
pub fn run(api: Api, seed: u64, options: Options) -> Result<Report, String> {
    run_to_end(api, seed, options).map(|(report, _)| report)
}

/// Runs as [`run`] does, and gives the core as it is afterwards.
pub fn run_to_end(api: Api, seed: u64, options: Options) -> Result<(Report, Machine), String> {
    let mut rng = Random::new(seed);
    let mut world = World::new(&mut rng);
    if options.record {
        world.shape.record = 1;
    }
    let mut history = History::new(api, seed, rng, world, options)?;
    for tick in 0..MOST_TICKS {
        if history
            .tick(tick)
            .map_err(|message| history.at(tick, &message))?
        {
            history
                .finish()
                .map_err(|message| history.at(tick, &message))?;
            return Ok((history.report, history.machine));
        }
    }
    Err(history.at(MOST_TICKS, "not drained"))
}

/// What happens before a turn of [`explore`].
#[derive(Debug, Clone, Copy)]
pub enum Choice {
    Push,
    /// The oldest request that was pushed and not cancelled.
    Cancel,
    /// Every stage does what it can.
    Run,
    /// Time enough for every timeout passes.
    Wait,
}

impl Choice {
    pub const ALL: [Self; 4] = [Self::Push, Self::Cancel, Self::Run, Self::Wait];
}

/// Runs a world with these choices, a turn after each, and then with a host and stages that do all they can.
pub fn explore(api: Api, seed: u64, world: World, choices: &[Choice]) -> Result<Coverage, String> {
    let mut history = History::new(api, seed, Random::new(seed), world, Options::default())?;
    for tick in 0..MOST_TICKS {
        let done = match choices.get(tick as usize) {
            Some(choice) => history.choose(*choice),
            None => {
                history.to_cancel.clear();
                history.tick(PATIENT_TICKS + tick)
            }
        };
        if done.map_err(|message| history.at(tick, &message))? {
            history
                .finish()
                .map_err(|message| history.at(tick, &message))?;
            return Ok(history.report.coverage);
        }
    }
    Err(history.at(MOST_TICKS, "not drained"))
}

/// Mostly few lanes, sometimes as many as a GPU runs.
fn random_lanes(seed: u64) -> Lanes {
    let mut rng = Random::new(mix64(seed));
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
    fn new(
        api: Api,
        seed: u64,
        rng: Random,
        world: World,
        options: Options,
    ) -> Result<Self, String> {
        let lanes = options.lanes.unwrap_or_else(|| random_lanes(seed));
        let machine = Machine::new(api, &world.config, &world.shape, lanes)
            .map_err(|error| format!("seed {seed}: the core refuses its configuration: {error}"))?;
        let stages = world.config.stages as usize;
        Ok(Self {
            seed,
            lanes,
            rng,
            model: Model::new(&world.config),
            contents: Contents::new(&world.config),
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
        })
    }

    /// What went wrong, and where.
    fn at(&self, tick: u32, message: &str) -> String {
        format!(
            "seed {}, tick {tick}, {:?}, {} running, {} waiting: {message}",
            self.seed,
            self.lanes,
            self.model.running.len(),
            self.model.waiting()
        )
    }

    /// One choice and a turn. True once the core is done.
    fn choose(&mut self, choice: Choice) -> Result<bool, String> {
        self.now_ns += 1;
        match choice {
            Choice::Push if self.pushed < self.world.requests.len() => {
                self.push_request();
            }
            Choice::Cancel if !self.to_cancel.is_empty() => self.push_cancel(),
            Choice::Run => self.stages(true),
            Choice::Wait => self.now_ns += 1000,
            _ => {}
        }
        while self.popped < self.machine.rings().event_head.value {
            self.pop_event()?;
        }
        self.turn()
    }

    /// Host, stages, one turn. True once the core is done.
    fn tick(&mut self, tick: u32) -> Result<bool, String> {
        let patient = tick >= PATIENT_TICKS;
        self.now_ns += u64::from(self.rng.below(self.world.tick_ns + 1));
        self.host(tick, patient)?;
        self.stages(patient);
        self.turn()
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
        self.in_mailbox[0] -= u32::from(expected.returned.is_some());
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

    fn compare(&mut self, expected: &Turn, outcome: &abi::tg_outcome) -> Result<(), String> {
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
            returned_step: expected.returned.unwrap_or(abi::TG_NO_STEP),
            queue_depth: model.waiting() as u32,
            running: model.running.len() as u32,
            free_pages: model.free_pages,
            steps_in_flight: model.steps.len() as u32,
            preempted: model.preempted().len() as u32,
            recomputed: expected.recomputed,
            skipped: expected.skipped,
            prefixes: model.prefixes.len() as u32,
        };
        ensure!(
            *outcome == wanted,
            "outcome {outcome:?}, expected {wanted:?}"
        );
        if expected.step.is_some() {
            let found = check::read_step(&self.machine, step.number);
            let core = found.clone().without_pages();
            ensure!(core == step, "step {found:?}, expected {step:?}");
            check::step(&self.machine, &found)?;
            self.contents.run(&self.machine, &self.model, &found)?;
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

    /// While a sequence could decode and waits, no other slot gets two rows; and the steps that pass it over are fewer
    /// than may be in flight, as long as the same sequences decode.
    fn nobody_starves(&self) -> Result<(), String> {
        for (slot, running) in &self.model.running {
            let others = &running.overtaken_by;
            ensure!(
                (1..others.len()).all(|at| !others[..at].contains(&others[at])),
                "slot {slot} waited while rows went to slots {others:?}"
            );
            ensure!(
                running.passed_over < self.world.config.steps_in_flight,
                "slot {slot} was passed over by {} steps of the same sequences",
                running.passed_over
            );
        }
        Ok(())
    }

    fn count(&mut self, seen: &Seen, turn: &Turn) {
        let config = &self.world.config;
        let (step_tokens, chunk_tokens) = (config.step_tokens as usize, config.chunk_tokens);
        let coverage = &mut self.report.coverage;
        coverage.event_ring_full += u64::from(turn.ring_full);
        coverage.logprobs_full += u64::from(turn.logprobs_full);
        coverage.unread_beyond_logprobs += u64::from(turn.beyond_logprobs);
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
        coverage.ran_ahead += u64::from(turn.ran_ahead);
        coverage.waited_for_the_step_ahead += u64::from(turn.waited_for_step);
        coverage.pipeline_full += u64::from(turn.pipeline_full);
        coverage.grew += u64::from(turn.grew);
        coverage.decoding_without_pages += u64::from(turn.stalled);
        coverage.left_while_decoding += u64::from(turn.left_while_decoding);
        coverage.left_in_prompt += u64::from(turn.left_in_prompt);
        coverage.left_while_recomputed += u64::from(turn.left_while_recomputed);
        coverage.waited_as_the_newest += u64::from(turn.waited_as_the_newest);
        coverage.recomputed += u64::from(turn.recomputed);
        coverage.recomputed_twice += u64::from(turn.recomputed_twice);
        coverage.ended_while_leaving += u64::from(turn.ended_while_leaving);
        coverage.ended_while_preempted += u64::from(turn.ended_while_preempted);
        coverage.front_behind_one_preempted += u64::from(turn.front_behind_one_preempted);
        coverage.waited_for_a_prefix += u64::from(turn.waited_for_a_prefix);
        coverage.began_behind_a_prefix += u64::from(turn.skipped > 0);
        coverage.took_a_prefix_over += u64::from(turn.took_a_prefix_over);
        coverage.went_on_from_a_prefix += u64::from(turn.went_on_from_a_prefix);
        coverage.place_in_use += u64::from(turn.place_in_use);
        coverage.place_was_wanted += u64::from(turn.place_was_wanted);
        coverage.way_for_others += u64::from(turn.way_for_others);
        coverage.prefix_made_room += u64::from(turn.prefix_made_room);
        coverage.too_large_to_share += u64::from(turn.too_large_to_share);
        coverage.left_with_a_prefix += u64::from(turn.left_with_a_prefix);
        coverage.trace_ring_full += u64::from(seen.trace_full);
        coverage.stopped_by_host += u64::from(seen.flags & abi::TG_INPUT_STOP != 0);
        if let Some(step) = &turn.step {
            let ends_in_a_page = |s: &abi::tg_sequence| s.from_page != abi::TG_NONE;
            coverage.prefix_ends_in_a_page += u64::from(step.sequences.iter().any(ends_in_a_page));
            coverage.row_budget_exactly_met += u64::from(step.rows.len() == step_tokens);
            let prompt_rows = step.rows.len() as u32 - step.decode_rows;
            let beside = step.decode_rows > 0;
            coverage.chunk_budget_exactly_met += u64::from(beside && prompt_rows == chunk_tokens);
            coverage.prompts_alone_beyond_the_chunk_budget +=
                u64::from(!beside && prompt_rows > chunk_tokens);
            coverage.a_share_beyond_the_chunk_budget +=
                u64::from(beside && prompt_rows > chunk_tokens);
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
            mix64(hash ^ u64::from_le_bytes(word.try_into().unwrap()))
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
            let shared = self.model.prefixes.values().map(|prefix| prefix.pages);
            let free = state.free_pages + shared.sum::<u32>();
            ensure!(
                free == state.config.pages && state.running == 0,
                "drained with {free} of {} pages free or shared",
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
