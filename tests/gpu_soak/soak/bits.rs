//! Rounds of a mixed load on record, each taken again by another launcher: see [`Bits::run`].

use super::drive::{Driver, Tally};
use super::load::{Random, Shape, ask, length};
use super::recorded::{Recording, Replayed};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tailgraph::plan::StepKind;
use tailgraph::runtime::replay::Replayer;
use tailgraph::runtime::{EndReason, EngineOptions, EngineShape, Event, SingleEngine};
use tailgraph::sys::abi::TG_NO_STEP;
use tailgraph::{Error, Result};

/// Slots of a round's engine, by its seed.
pub const SLOTS: [u32; 6] = [1, 3, 32, 130, 258, 1024];

/// [`Recording::descriptors`] of an engine, once that has ended.
pub type Descriptors = Box<dyn FnOnce() -> Result<Vec<(u64, u64)>>>;

/// How much is asked, of what.
pub struct Bits<'a> {
    /// The first round's; each has the next one.
    pub seed: u64,
    /// No round begins later than this.
    pub last: Duration,
    /// How long a round asks for more, and for how many requests at least.
    pub round: Duration,
    pub least_requests: u64,
    pub shape: Shape,
    /// For so many slots.
    pub options: &'a dyn Fn(u32) -> EngineOptions,
    /// An engine that waits for its launch.
    pub engine: &'a dyn Fn(&EngineOptions) -> Result<(SingleEngine, Descriptors)>,
    /// What runs a recorded engine's schedule again, by another way to launch.
    pub replayer: &'a dyn Fn(&EngineShape) -> Result<Replayer>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct Report {
    pub steps: u64,
    pub rounds: Vec<Round>,
    pub load: Load,
    /// What differed in the last round, with its seed.
    pub difference: Option<String>,
    pub holds: bool,
}

#[derive(Debug, Clone, Serialize)]
pub struct Round {
    pub seed: u64,
    pub slots: u32,
    pub recorded_s: f64,
    pub replayed: Replayed,
}

/// What was asked, and what came of it, counted.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Load {
    pub ended: Tally,
    /// Requests that a stop id ended, by how many stop ids they had.
    pub stops_by_ids: BTreeMap<usize, u64>,
    /// Requests without a limit that surely outgrew their first pages.
    pub grown: u64,
    /// How often a sequence was preempted and recomputed.
    #[serde(rename = "read_again")]
    pub recomputed: u64,
    /// Names of buckets are those of `decode 8`.
    pub steps_by_bucket: BTreeMap<String, u64>,
    /// By their rows, rounded up to a power of two.
    pub steps_by_rows: BTreeMap<u32, u64>,
}

impl Bits<'_> {
    /// Rounds until the time is over, or something differs: an engine of other sizes each, requests in waves that each run to
    /// their end, and the recording once more. Each step has the same descriptor, tokens and logprobs again, to the last bit.
    ///
    /// # Errors
    /// The engine's, and the first request that did not end as was asked, with the round's seed.
    pub fn run(&self, say: &mut dyn FnMut(&str)) -> Result<Report> {
        let start = Instant::now();
        let mut report = Report::default();
        for seed in self.seed.. {
            if start.elapsed() >= self.last || report.difference.is_some() {
                break;
            }
            let wrong = |error| Error::Runtime(format!("the round of seed {seed}: {error}"));
            let round = self.round(seed, &mut report.load).map_err(wrong)?;
            report.steps += round.replayed.steps;
            let difference = round.replayed.difference.as_ref();
            report.difference = difference.map(|found| format!("seed {seed}: {found}"));
            say(&format!("{} steps in all; {round:?}", report.steps));
            report.rounds.push(round);
        }
        report.holds = report.difference.is_none() && report.load.is_mixed();
        Ok(report)
    }

    fn round(&self, seed: u64, load: &mut Load) -> Result<Round> {
        let slots = SLOTS[(seed % SLOTS.len() as u64) as usize];
        let options = EngineOptions {
            record: true,
            ..(self.options)(slots)
        };
        let (engine, descriptors) = (self.engine)(&options)?;
        let mut driver = Driver::new(engine, options.pages, self.shape.vocab_size)?;
        let shape = driver.shape().clone();
        let mut random = Random(seed);
        let mut numbers = 0..;
        let start = Instant::now();
        let goes_on = |number| number < self.least_requests || start.elapsed() < self.round;
        while goes_on(numbers.start) {
            // Some wait, so that what leaves is followed; where none is left the buckets get smaller.
            let at_once = length(&mut random, options.max_seqs * 3 / 2 + 1) as usize;
            let mut asks = numbers
                .by_ref()
                .take(2 * at_once)
                .take_while(|&number| goes_on(number))
                .map(|number| ask(seed, number, &self.shape));
            driver.run(&mut asks, at_once, &mut |_| Ok(()))?;
        }
        let recorded_s = start.elapsed().as_secs_f64();
        let mut recording = driver.finish()?.unwrap_or_default();
        recording.descriptors = descriptors()?;
        load.count(&recording, &shape);
        Ok(Round {
            seed,
            slots: options.max_seqs,
            recorded_s,
            replayed: recording.replay((self.replayer)(&shape)?, &mut vec![]),
        })
    }
}

impl Load {
    fn count(&mut self, recording: &Recording, shape: &EngineShape) {
        let options = &shape.options;
        for event in &recording.events {
            let Event::End {
                request,
                reason,
                tokens,
                ..
            } = event
            else {
                continue;
            };
            let request = &recording.requests[*request as usize];
            self.ended.count(*reason, u64::from(*tokens));
            if *reason == EndReason::Stop {
                let stops = &mut self.stops_by_ids;
                *stops.entry(request.stop_ids.len()).or_default() += 1;
            }
            // Its first pages are for its prompt and a quarter of the context at most, and the last may have room left.
            let first = options.max_context / 4 + options.page_tokens;
            self.grown += u64::from(request.unlimited && *tokens > first);
        }
        for outcome in recording.turns.iter().map(|turn| &turn.outcome) {
            let most_running = &mut self.ended.most_running;
            *most_running = outcome.running.max(*most_running);
            self.recomputed += u64::from(outcome.recomputed);
            if outcome.step == TG_NO_STEP {
                continue;
            }
            let kind = StepKind::ALL[outcome.kind as usize];
            let bucket = shape.bucket_sizes.of(kind)[outcome.bucket as usize];
            let buckets = &mut self.steps_by_bucket;
            *buckets
                .entry(format!("{} {bucket}", kind.name()))
                .or_default() += 1;
            let rows = outcome.rows.next_power_of_two();
            *self.steps_by_rows.entry(rows).or_default() += 1;
        }
    }

    /// Nothing that a load may hold was missing, so none of it went untested.
    fn is_mixed(&self) -> bool {
        self.ended.has_every_end()
            && self.stops_by_ids.len() > 1
            && self.grown > 0
            && self.recomputed > 0
            && ["decode", "mixed"].iter().all(|kind| {
                let mut buckets = self.steps_by_bucket.keys();
                buckets.any(|bucket| bucket.starts_with(kind))
            })
    }
}
