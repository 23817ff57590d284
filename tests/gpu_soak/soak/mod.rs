//! A long and varied load on one engine, and everything it must leave behind as it was: see [`Soak::run`]. On a random
//! tiny model in tests/gpu_soak, at full size by profiles/soak.rs.

mod alone;
pub mod bits;
pub mod drive;
pub mod load;
mod memory;
pub mod on_gpu;
#[path = "../../common/probe.rs"]
#[allow(dead_code, reason = "its log alone is of use here")]
mod probe;
pub mod recorded;

use alone::{Comparison, LastLogits};
use drive::{Driver, Tally};
use load::{Ask, Fate, Random, Shape};
use memory::{Growth, Samples};
use recorded::Replayed;
use serde::Serialize;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailgraph::Result;
use tailgraph::backend::SharedSink;
use tailgraph::model::{DType, Model};
use tailgraph::runtime::options::EngineShape;
use tailgraph::runtime::replay::Replayer;
use tailgraph::runtime::{EngineOptions, SingleEngine};

/// How much is asked.
#[derive(Debug, Clone)]
pub struct Soak {
    pub seed: u64,
    /// In each of the two types.
    pub requests: u64,
    /// Requests, in the exact type, that are run alone as well.
    pub alone: usize,
    /// In the engine at once, waiting ones included; more than its slots, so that some wait.
    pub at_once: usize,
    /// How long the last part goes on.
    pub last: Duration,
    /// The type whose tokens do not depend on company but for ties, and the one that is served.
    pub dtypes: [DType; 2],
    pub options: EngineOptions,
    pub longest_prompt: u32,
    pub most_new_tokens: u32,
    pub longest_timeout: Duration,
}

#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub seed: u64,
    pub in_company: Part,
    pub alone: Comparison,
    pub alone_s: f64,
    pub served: Part,
    pub replayed: Replayed,
    pub lasting: Lasting,
    pub holds: bool,
}

/// Requests put through at once, and how they ended.
#[derive(Debug, Clone, Serialize)]
pub struct Part {
    pub dtype: String,
    pub seconds: f64,
    pub ended: Tally,
}

#[derive(Debug, Clone, Serialize)]
pub struct Lasting {
    pub seconds: f64,
    pub ended: Tally,
    pub memory: Growth,
}

/// What a soak needs of the place it runs in.
pub struct Place<'a> {
    pub model: &'a Model,
    /// An engine of this type with these options that waits for its launch.
    pub engine: &'a dyn Fn(DType, &EngineOptions, &SharedSink) -> Result<SingleEngine>,
    /// What runs a recorded engine's schedule again, by another way to launch.
    pub replayer: &'a dyn Fn(DType, &EngineShape) -> Result<Replayer>,
    /// Free memory of the device, where there is one.
    pub free_bytes: &'a dyn Fn() -> Result<Option<u64>>,
}

impl Soak {
    /// Sizes of what is asked of this model.
    pub fn shape(&self, model: &Model) -> Shape {
        Shape {
            vocab_size: model.config.vocab_size as u32,
            max_context: self.options.max_context,
            longest_prompt: self.longest_prompt,
            most_new_tokens: self.most_new_tokens,
            longest_timeout: self.longest_timeout,
        }
    }

    /// 1. In the exact type: `requests` requests, of which each must end once and as was asked, then as many at once as
    ///    there are slots, then some of them alone: equal tokens, but for ties that are shown.
    /// 2. In the served type: the same requests on record, and the recorded schedule by another launcher: the same bits.
    ///    Then others until the time is over, without growth of memory.
    ///
    /// After each, every slot and every page is free.
    ///
    /// # Errors
    /// The engine's, and the first request that did not end as was asked.
    pub fn run(&self, place: &Place<'_>, say: &mut dyn FnMut(&str)) -> Result<Report> {
        let shape = self.shape(place.model);
        let chosen = alone::choose(self.seed, self.requests, self.alone, &shape);
        let asks = |numbers: std::ops::Range<u64>| {
            let (chosen, shape, seed) = (&chosen, &shape, self.seed);
            numbers.map(move |number| {
                let again = chosen.get(&number).cloned();
                again.unwrap_or_else(|| load::ask(seed, number, shape))
            })
        };

        let logits = Arc::new(LastLogits::default());
        let mut driver = self.driver(place, self.dtypes[0], false, &Some(logits.clone()))?;
        let mut kept = Vec::with_capacity(chosen.len());
        let in_company = self.part(self.dtypes[0], || {
            driver.run(&mut asks(0..self.requests), self.at_once, &mut |ended| {
                if chosen.contains_key(&ended.ask.number) {
                    kept.push(ended);
                }
                Ok(())
            })
        })?;
        say(&format!("in company: {in_company:?}"));
        let full = driver.run(&mut self.full_house(&shape), usize::MAX, &mut |_| Ok(()))?;
        let start = Instant::now();
        let alone = alone::compare(&mut driver, &kept, &logits, &shape)?;
        let alone_s = start.elapsed().as_secs_f64();
        drop(driver);
        say(&format!(
            "alone: {} of {} equal, {} ties, {} wrong, in {alone_s:.1} s",
            alone.equal,
            alone.requests,
            alone.ties.len(),
            alone.wrong.len()
        ));

        let mut driver = self.driver(place, self.dtypes[1], true, &None)?;
        let shape = driver.shape().clone();
        let served = self.part(self.dtypes[1], || {
            driver.run(&mut asks(0..self.requests), self.at_once, &mut |_| Ok(()))
        })?;
        say(&format!("served: {served:?}"));
        let recording = driver.finish()?.unwrap_or_default();
        let replayer = (place.replayer)(self.dtypes[1], &shape)?;
        let replayed = recording.replay(replayer, &mut vec![]);
        say(&format!("replayed: {replayed:?}"));

        let mut driver = self.driver(place, self.dtypes[1], false, &None)?;
        let lasting = self.lasting(&mut driver, &mut asks(self.requests..u64::MAX), place)?;
        say(&format!("lasting: {lasting:?}"));
        let holds = alone.wrong.is_empty()
            && alone.requests == self.alone
            && lasting.memory.holds
            && replayed.difference.is_none()
            && replayed.events as u64 == served.ended.tokens + served.ended.requests
            && full.most_running == self.options.max_seqs
            && [&in_company, &served]
                .iter()
                .all(|part| part.ended.requests == self.requests && part.ended.has_every_end());
        Ok(Report {
            seed: self.seed,
            in_company,
            alone,
            alone_s,
            served,
            replayed,
            lasting,
            holds,
        })
    }

    fn driver(
        &self,
        place: &Place<'_>,
        dtype: DType,
        record: bool,
        sink: &SharedSink,
    ) -> Result<Driver> {
        let options = EngineOptions {
            record,
            ..self.options
        };
        let vocab_size = place.model.config.vocab_size as u32;
        let engine = (place.engine)(dtype, &options, sink)?;
        Driver::new(engine, options.pages, vocab_size)
    }

    fn part(&self, dtype: DType, run: impl FnOnce() -> Result<Tally>) -> Result<Part> {
        let start = Instant::now();
        let ended = run()?;
        Ok(Part {
            dtype: format!("{dtype:?}"),
            seconds: start.elapsed().as_secs_f64(),
            ended,
        })
    }

    /// One short request for each slot: they all run at once, or a slot is lost.
    fn full_house(&self, shape: &Shape) -> impl Iterator<Item = Ask> + use<> {
        let (shape, page) = (*shape, self.options.page_tokens);
        let mut random = Random(self.seed);
        (0..u64::from(self.options.max_seqs)).map(move |number| {
            let mut ask = load::ask(u64::from(random.below(u32::MAX)), number, &shape);
            ask.fate = Fate::Whole;
            let request = &mut ask.request;
            request.timeout = None;
            request.stop_ids.clear();
            request.prompt.truncate(4);
            request.max_new_tokens = page - 4;
            ask
        })
    }

    fn lasting(
        &self,
        driver: &mut Driver,
        asks: &mut dyn Iterator<Item = Ask>,
        place: &Place<'_>,
    ) -> Result<Lasting> {
        let mut samples = Samples::new((self.last / 100).min(Duration::from_secs(1)));
        let start = Instant::now();
        let mut asks = asks.take_while(|_| start.elapsed() < self.last);
        let ended = driver.run(&mut asks, self.at_once, &mut |_| {
            samples.tick(place.free_bytes)
        })?;
        Ok(Lasting {
            seconds: start.elapsed().as_secs_f64(),
            ended,
            memory: samples.growth()?,
        })
    }
}
