//! What is to be measured, and what came of it so far: the values that the parts of `bench` hand each other.

use crate::backend::LaunchWay;
use crate::bench::Point;
use crate::bench::drive::Driven;
use crate::bench::metrics::Figures;
use crate::bench::routing::Spread;
use crate::bench::row::{Startup, Verdict};
use crate::bench::workload::Line;
use crate::cli::args::bench::BenchArgs;
use crate::error::Error;
use crate::io::arrays::Sample;
use crate::model::ModelConfig;
use crate::runtime::{Engine, Replicas};
use crate::session::Opened;
use std::sync::atomic::AtomicBool;

/// What runs are made of, the same for all engines.
pub(super) struct Work<'a> {
    pub args: &'a BenchArgs,
    pub config: ModelConfig,
    pub lines: Option<Vec<Line>>,
    pub samples: Option<Vec<Sample>>,
    pub interrupt: &'a AtomicBool,
}

/// An engine's setting, and what was measured with it.
pub(super) struct Unit {
    /// Of the engines, from 1.
    pub number: usize,
    pub opened: Opened,
    pub way: Option<LaunchWay>,
    pub bucket_file: Option<String>,
    pub kernel_file: Option<String>,
    pub points: Vec<Tried>,
    /// One a repeat.
    pub starts: Vec<Startup>,
}

/// What a unit runs on.
pub(super) enum Running {
    One(Box<Engine>),
    Several(Box<Replicas>),
}

impl Running {
    pub fn driven(&mut self) -> &mut dyn Driven {
        match self {
            Self::One(engine) => &mut **engine,
            Self::Several(replicas) => &mut **replicas,
        }
    }
}

/// A point and its repeats.
pub(super) struct Tried {
    pub point: Point,
    pub repeats: Vec<Figures>,
    pub vocabulary_share: f64,
    pub spread: Spread,
    /// The worst of all repeats'.
    pub verdict: Verdict,
    /// Why this point alone came to nothing.
    pub failed: Option<Error>,
}

impl Tried {
    /// It has a row.
    pub fn is_whole(&self) -> bool {
        self.failed.is_none() && !self.repeats.is_empty()
    }
}

impl Unit {
    /// What it failed by, with the way to launch named, if there is one.
    pub fn failed(&self, error: Error) -> Error {
        match (self.way, error) {
            (Some(way), Error::Runtime(message)) => {
                Error::Runtime(format!("--launch {}: {message}", way.name()))
            }
            (_, error) => error,
        }
    }

    /// The file of a repeat's trace.
    pub fn trace_name(&self, repeat: usize) -> String {
        let way = self.way.map_or("cpu", LaunchWay::name);
        let dtype = self.opened.spec.device.dtype().name();
        format!("{}-{way}-{dtype}-{}.json", self.number, repeat + 1)
    }
}
