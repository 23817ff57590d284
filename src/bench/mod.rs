//! Benchmarks: what is measured, how, and what is said about it.
//!
//! - `commands`: the command line, tables and files; a file a kind, with its arguments and columns: `decode`, `prefill`, `score`,
//!   `serve` and `kernel`
//! - `measure`: the engines of all that run a model, and their repeats; [`drive`]: one run on an engine; [`metrics`]: from runs
//!   to figures
//! - [`row`], [`output`]: a result as JSON and as tables; [`compare`]: two files of results
//! - [`bare`]: a model's steps without a scheduler, and [`over_bare`]: what each way to launch adds to it
//! - [`variants`], [`tuning`]: what `tune` measures

mod args;
pub mod bare;
mod commands;
pub mod compare;
mod cublaslt;
mod decode;
pub mod drive;
pub mod floors;
pub mod gpu_state;
pub mod host;
mod kernel;
mod kernels;
mod measure;
pub mod metrics;
pub mod output;
pub mod over_bare;
mod prefill;
pub mod ranges;
pub mod routing;
pub mod row;
mod score;
mod serve;
pub mod stats;
pub mod tuning;
pub mod variants;
pub mod workload;

pub use args::PrintArgs;
pub use commands::{BenchCommand, run};

use crate::plan::StepKind;
use serde::{Deserialize, Serialize};

/// What is measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Steps in which every sequence generates a token.
    #[default]
    Decode,
    /// Prompts up to their first token.
    Prefill,
    /// Logits of prompts, all sent at once: 1,024 of 32 tokens unless told otherwise.
    Score,
    /// Requests that arrive at a rate, and how long they take under that load.
    Serve,
}

impl Kind {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Prefill => "prefill",
            Self::Score => "score",
            Self::Serve => "serve",
        }
    }

    /// The columns of what was measured.
    pub fn columns(self) -> &'static [output::Column] {
        match self {
            Self::Decode => decode::COLUMNS,
            Self::Prefill => prefill::COLUMNS,
            Self::Score => score::COLUMNS,
            Self::Serve => serve::COLUMNS,
        }
    }
}

/// One thing to measure on an engine.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Point {
    pub kind: Kind,
    /// Sequences at once; prompts for `score`; most sequences at once for `serve`.
    pub batch: u32,
    /// Tokens of each prompt; of prompts that differ in length the longest.
    pub prompt_tokens: u32,
    /// Prompts' lengths are drawn, each as likely as the others, from this one to `prompt_tokens`; `None`: all are the same.
    pub ragged_from: Option<u32>,
    /// What prompts begin with; `None`: each is its own.
    pub shared: Option<Shared>,
    /// Requests of a run.
    pub requests: u32,
    /// Tokens generated for each.
    pub new_tokens: u32,
    /// Requests a second; infinite sends all at once. Only of `serve`.
    pub rate: Option<f64>,
    /// Requests that are sent and have not ended, at most: the next one is sent when one ends. Only of `serve`.
    pub most_in_flight: Option<u32>,
    /// Threads that spin meanwhile.
    pub cpu_load: u32,
}

/// Beginnings of prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shared {
    pub tokens: u32,
    /// How many there are, of which each prompt has one at random.
    pub groups: u32,
}

impl Point {
    /// Prompts of one length that come at once, with nothing beside them.
    pub fn of(kind: Kind, batch: u32, prompt_tokens: u32, new_tokens: u32) -> Self {
        Self {
            kind,
            batch,
            requests: batch,
            prompt_tokens,
            new_tokens,
            ..Self::default()
        }
    }

    /// Tokens of the longest sequence at its end.
    pub fn tokens(&self) -> u32 {
        self.prompt_tokens.saturating_add(self.new_tokens)
    }

    /// The steps that it is about, of one number of rows where that matters; `None`: no step is typical.
    pub fn typical(&self) -> Option<(StepKind, Option<u32>)> {
        match self.kind {
            Kind::Decode => Some((StepKind::Decode, Some(self.batch))),
            Kind::Prefill => Some((StepKind::Mixed, None)),
            Kind::Score => Some((StepKind::Score, None)),
            Kind::Serve => None,
        }
    }

    /// The same measurement without threads that spin.
    pub fn idle(self) -> Self {
        Self {
            cpu_load: 0,
            ..self
        }
    }

    /// Tokens of the shortest prompt.
    pub fn shortest_prompt(&self) -> u32 {
        self.ragged_from.unwrap_or(self.prompt_tokens)
    }

    /// Tokens of a prompt in the mean.
    pub fn mean_prompt(&self) -> u32 {
        let shortest = self.shortest_prompt();
        shortest + (self.prompt_tokens - shortest) / 2
    }
}

const BUILD_PROFILE: &str = if cfg!(debug_assertions) {
    "debug"
} else {
    "release"
};

/// The time, as results say it.
fn now() -> String {
    chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string()
}
