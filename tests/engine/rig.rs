//! A backend that samples by a formula, and an engine around it.

pub use crate::common::engine::*;
use std::time::Duration;
use tailgraph::backend::{StageBackend, StepView};
use tailgraph::error::{Error, Result};
use tailgraph::plan::{BucketSizes, EngineOptions};
use tailgraph::runtime::SingleEngine;
use tailgraph::sys::abi;

/// What the formula samples after the token at `position`.
pub fn token_after(position: u32) -> u32 {
    1000 + position
}

/// The last stage of a pipeline samples; the others only pass steps on.
pub struct Formula {
    pub samples: bool,
    pub takes: Duration,
    /// Fails in this step.
    pub fails_at: Option<u64>,
    pub panics: bool,
    /// Samples nothing after this position.
    pub silent_at: Option<u32>,
}

/// A stage that samples at once.
pub fn formula() -> Formula {
    Formula {
        samples: true,
        takes: Duration::ZERO,
        fails_at: None,
        panics: false,
        silent_at: None,
    }
}

impl StageBackend for Formula {
    fn run(&mut self, step: &StepView<'_>) -> Result<()> {
        std::thread::sleep(self.takes);
        if self.fails_at == Some(step.header().number) {
            assert!(!self.panics, "the formula gave up");
            return Err(Error::Runtime("the formula found no answer".into()));
        }
        if self.samples {
            sample(step, self.silent_at);
        }
        Ok(())
    }
}

/// Samples by the formula, and nothing after position `silent_at`.
pub fn sample(step: &StepView<'_>, silent_at: Option<u32>) {
    for (index, &row) in step.sample_rows().iter().enumerate() {
        let position = step.rows()[row as usize].position;
        let token = match silent_at {
            Some(silent) if silent == position => -1,
            _ => token_after(position) as i32,
        };
        let sampled = abi::tg_sampled {
            token,
            ..Default::default()
        };
        step.set_sampled(index, sampled);
    }
}

pub const OPTIONS: EngineOptions = EngineOptions {
    max_seqs: 4,
    max_context: 64,
    page_tokens: 16,
    pages: 12,
    step_tokens: 16,
    chunk_tokens: 16,
    chunk_share: 0,
    chunk_align: 4,
    steps_in_flight: 1,
    prefixes: 0,
    record: false,
};

pub fn bucket_sizes() -> BucketSizes {
    BucketSizes {
        decode: vec![1, 2, 4],
        mixed: vec![8, 16],
        score: vec![16],
    }
}

pub fn stages(count: u32, takes: Duration) -> Vec<Box<dyn StageBackend>> {
    (1..=count)
        .map(|stage| {
            Box::new(Formula {
                samples: stage == count,
                takes,
                ..formula()
            }) as Box<dyn StageBackend>
        })
        .collect()
}

pub fn engine(count: u32, takes: Duration) -> SingleEngine {
    let options = EngineOptions {
        steps_in_flight: count,
        ..OPTIONS
    };
    SingleEngine::start(stages(count, takes), &bucket_sizes(), &options).unwrap()
}
