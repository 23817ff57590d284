//! A backend that samples by a formula, and an engine around it.

use std::time::Duration;
use tailgraph::backend::{StageBackend, StepView};
use tailgraph::error::{Error, Result};
use tailgraph::plan::{EngineOptions, Ladders};
use tailgraph::runtime::{EndReason, Engine, Event, Logits, Request, Sampling};
use tailgraph::sys::abi;

pub const PATIENCE: Duration = Duration::from_secs(60);

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
            for (index, &row) in step.sample_rows().iter().enumerate() {
                let position = step.rows()[row as usize].position;
                step.set_sampled(
                    index,
                    abi::tg_sampled {
                        token: match self.silent_at {
                            Some(silent) if silent == position => -1,
                            _ => token_after(position) as i32,
                        },
                        ..Default::default()
                    },
                );
            }
        }
        Ok(())
    }
}

pub const OPTIONS: EngineOptions = EngineOptions {
    max_seqs: 4,
    max_context: 64,
    page_tokens: 16,
    pages: 12,
    step_tokens: 16,
    chunk_align: 4,
    steps_in_flight: 1,
    record: false,
};

pub fn ladders() -> Ladders {
    Ladders {
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

pub fn engine(count: u32, takes: Duration) -> Engine {
    let options = EngineOptions {
        steps_in_flight: count,
        ..OPTIONS
    };
    Engine::start(stages(count, takes), &ladders(), &options).unwrap()
}

pub fn request(prompt_tokens: u32, max_new_tokens: u32) -> Request {
    Request {
        prompt: (0..prompt_tokens).collect(),
        max_new_tokens,
        stop_ids: vec![],
        sampling: Sampling::default(),
        timeout: None,
        logits: Logits::None,
    }
}

pub fn submit(engine: &mut Engine, request: &Request) -> u64 {
    engine
        .try_submit(request)
        .unwrap()
        .expect("the rings have room")
}

/// Reads events until `requests` have ended: each one's tokens and reason.
pub fn collect(engine: &mut Engine, requests: usize) -> Vec<(Vec<u32>, EndReason)> {
    let mut tokens = vec![vec![]; requests];
    let mut reasons = vec![None; requests];
    let mut left = requests;
    while left > 0 {
        match engine
            .next_event(PATIENCE)
            .unwrap()
            .expect("an event within a minute")
        {
            Event::Token {
                request,
                token,
                index,
                ..
            } => {
                let list: &mut Vec<u32> = &mut tokens[request as usize];
                assert_eq!(index as usize, list.len());
                list.push(token);
            }
            Event::End {
                request,
                reason,
                timing,
                ..
            } => {
                assert!(timing.queue <= timing.total);
                assert!(reasons[request as usize].replace(reason).is_none());
                left -= 1;
            }
        }
    }
    tokens
        .into_iter()
        .zip(reasons.into_iter().map(Option::unwrap))
        .collect()
}
