//! Measured steps of one thing on one machine, whichever file they came from: by launch way, by what else the host was
//! doing, and by sequences in the batch.

use std::collections::BTreeMap;

/// The launch way that nobody schedules in: a step's graph, launched again and again.
pub const BARE: &str = "bare";

/// A file that figures came from.
#[derive(Debug, Clone, PartialEq)]
pub struct Source {
    pub file: String,
    /// What made it.
    pub command: String,
}

/// What a step is of.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    Decode {
        model: String,
        dtype: String,
        prompt_tokens: u32,
        new_tokens: u32,
    },
    /// Small kernels without a model, so many of them.
    Launch { kernels: u32 },
}

/// Steps by launch way and batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Steps {
    pub sources: Vec<Source>,
    /// The device, as its driver names it.
    pub device: String,
    pub host_cores: usize,
    /// When it was measured, each day once, where the files say.
    pub days: Vec<String>,
    /// `debug` or `release`.
    pub build: String,
    /// Runs that were measured, each on an engine of its own.
    pub repeats: u32,
    pub what: What,
    /// In the order of the files.
    pub series: Vec<Series>,
    pub roofline: Option<Roofline>,
    pub startup: Vec<Startup>,
}

/// How one engine came up.
#[derive(Debug, Clone, PartialEq)]
pub struct Startup {
    /// Of the engine: its launch way, and what else tells it from the others.
    pub name: String,
    /// One after the other, ms each.
    pub phases: Vec<(&'static str, f64)>,
    /// Within the graphs' phase, ms each: threads do them side by side.
    pub beside: Vec<(&'static str, f64)>,
}

/// The least that a step takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Roofline {
    /// By sequences.
    pub ms: BTreeMap<u32, f64>,
    /// What it is made of.
    pub note: String,
}

/// One way to launch, with the host in one state.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// As in `--launch`; [`BARE`] is one too.
    pub way: String,
    pub host: Host,
    /// By sequences, ascending.
    pub points: Vec<Point>,
}

/// What else the host was doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Host {
    Idle,
    /// So many threads that spin.
    Busy(u32),
}

/// Values in ms of all repeats together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Latency {
    /// None: not known, where there is the median alone.
    pub count: Option<usize>,
    pub median: f64,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    pub p99_9: Option<f64>,
}

/// Steps of one batch. What a file does not have is `None`.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub sequences: u32,
    pub step: Latency,
    pub tokens_per_s: f64,
    /// Standard deviation over repeats.
    pub tokens_per_s_sd: Option<f64>,
    /// Between a token and the next one of its sequence.
    pub itl: Option<Latency>,
    /// A request's mean over its tokens after the first.
    pub tpot: Option<Latency>,
    pub ttft: Option<Latency>,
    pub beside: Beside,
}

/// What a step came with beside its time, as `bench` names it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Beside {
    pub turn_us: Option<f64>,
    pub launches_per_token: Option<f64>,
    pub host_cpu_s_per_1k_tokens: Option<f64>,
    pub energy_j_per_token: Option<f64>,
    pub experts_expected: Option<f64>,
    pub experts_hit: Option<f64>,
}

impl Host {
    /// After a way's name: nothing of an idle one.
    pub fn suffix(self) -> String {
        match self {
            Self::Idle => String::new(),
            Self::Busy(threads) => format!(", {threads} busy"),
        }
    }

    pub fn name(self) -> String {
        match self {
            Self::Idle => "idle".to_owned(),
            Self::Busy(threads) => format!("{threads} busy"),
        }
    }

    /// After a title: nothing of an idle one.
    pub fn words(self) -> String {
        match self {
            Self::Idle => String::new(),
            Self::Busy(1) => ", beside a busy thread".to_owned(),
            Self::Busy(threads) => format!(", beside {threads} busy threads"),
        }
    }

    /// As `--cpu-load` has it.
    pub fn of_load(threads: u32) -> Self {
        match threads {
            0 => Self::Idle,
            threads => Self::Busy(threads),
        }
    }
}

/// How times are written: the unit, and how many of it a millisecond has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Unit {
    pub name: &'static str,
    pub per_ms: f64,
}

impl Unit {
    pub fn of(self, ms: f64) -> f64 {
        ms * self.per_ms
    }
}

impl Steps {
    /// Small kernels take microseconds.
    pub fn unit(&self) -> Unit {
        match self.what {
            What::Decode { .. } => Unit {
                name: "ms",
                per_ms: 1.0,
            },
            What::Launch { .. } => Unit {
                name: "us",
                per_ms: 1e3,
            },
        }
    }

    /// The ways to schedule, with the host in this state.
    pub fn with(&self, host: Host) -> impl Iterator<Item = &Series> {
        self.scheduled().filter(move |series| series.host == host)
    }

    /// All series but the bare graph's.
    pub fn scheduled(&self) -> impl Iterator<Item = &Series> {
        self.series.iter().filter(|series| series.way != BARE)
    }

    /// The bare graph of a batch, with an idle host: median ms.
    pub fn bare_ms(&self, sequences: u32) -> Option<f64> {
        let mut series = self.series.iter();
        let bare = series.find(|series| series.way == BARE && series.host == Host::Idle)?;
        Some(bare.at(sequences)?.step.median)
    }

    /// Every batch that was measured, ascending.
    pub fn batches(&self) -> Vec<u32> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let mut all: Vec<u32> = points.map(|point| point.sequences).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

impl Series {
    pub fn at(&self, sequences: u32) -> Option<&Point> {
        self.points
            .iter()
            .find(|point| point.sequences == sequences)
    }

    pub fn name(&self) -> String {
        format!("{}{}", self.way, self.host.suffix())
    }
}

/// The colour of a way, the same in every chart.
pub fn color(way: &str) -> usize {
    match way {
        "device-graph" | "cpu" => 0,
        "host-graph" => 1,
        "host-kernels" => 2,
        BARE => super::NEUTRAL,
        _ => 3,
    }
}

/// `1 sequence`, `8 sequences`.
pub fn sequences(batch: u32) -> String {
    format!("{batch} sequence{}", if batch == 1 { "" } else { "s" })
}
