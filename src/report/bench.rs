//! Results of `bench`, as `--format json` and `--format jsonl` write them.

use super::steps::{Beside, Host, Latency, Point, Source};
use crate::bench::Kind;
use crate::bench::row::VERSION;
use crate::error::{Error, Result};
use crate::json;
use crate::quote;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::Path;

/// One result, as far as a page has use for it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Row {
    #[serde(skip)]
    pub file: String,
    schema: u32,
    pub kind: Kind,
    pub command: String,
    /// UTC, RFC 3339.
    pub test_time: Option<String>,
    pub build_profile: String,
    pub model_filename: String,
    pub cpu_info: Option<String>,
    pub gpu_info: Option<String>,
    pub host_cores: usize,
    launch: Option<String>,
    pub dtype: String,
    pub bucket_file: Option<String>,
    pub kernel_file: Option<String>,
    pub max_seqs: u32,
    pub batch: u32,
    pub n_prompt: u32,
    pub n_gen: u32,
    pub n_kernels: Option<u32>,
    request_rate: Value,
    #[serde(default)]
    pub n_prompt_min: Option<u32>,
    #[serde(default)]
    pub n_prompt_max: Option<u32>,
    #[serde(default)]
    pub max_concurrency: Option<u32>,
    #[serde(default)]
    pub logits_on_device: Option<bool>,
    pub cpu_load: u32,
    /// Missing in older results, which had no such thing.
    #[serde(default)]
    pub gpu_load: u32,
    pub repeats: u32,
    pub valid: Option<bool>,
    pub top1_agreeing: Option<u64>,
    pub top1_total: Option<u64>,
    pub avg_ts: f64,
    pub stddev_ts: f64,
    /// Seconds of a run.
    pub duration: f64,
    pub request_throughput: f64,
    pub output_throughput: f64,
    pub floor_ms: Option<f64>,
    pub floor_bound: Option<String>,
    pub floor_fraction: Option<f64>,
    pub floor_source: Option<String>,
    pub startup_model_ms: Option<f64>,
    pub startup_load_ms: Option<f64>,
    /// None of results from before graphs were made ready beside their capture.
    pub startup_graphs_ms: Option<f64>,
    pub startup_capture_ms: Option<f64>,
    pub startup_instantiate_ms: Option<f64>,
    pub startup_upload_ms: Option<f64>,
    pub startup_engine_ms: Option<f64>,
    pub startup_first_token_ms: Option<f64>,
    /// The rest, numbers by name.
    #[serde(flatten)]
    rest: Map<String, Value>,
}

/// When requests came.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// So many a second.
    Rate(f64),
    AtOnce,
    /// As a file had it.
    File,
}

impl Arrivals {
    pub fn name(self) -> String {
        match self {
            Self::Rate(rate) => super::svg::figure(rate),
            Self::AtOnce => "all at once".to_owned(),
            Self::File => "from a file".to_owned(),
        }
    }
}

impl Row {
    fn number(&self, name: &str) -> Option<f64> {
        self.rest.get(name)?.as_f64()
    }

    /// As in `--launch`; `cpu` where nothing is launched. Beside other processes on the GPU it is another way.
    pub fn way(&self) -> String {
        let way = self.launch.clone().unwrap_or_else(|| "cpu".to_owned());
        match self.gpu_load {
            0 => way,
            1 => format!("{way}, 1 process beside"),
            load => format!("{way}, {load} processes beside"),
        }
    }

    pub fn host(&self) -> Host {
        Host::of_load(self.cpu_load)
    }

    /// What it was measured on.
    pub fn device(&self) -> &str {
        let names = [&self.gpu_info, &self.cpu_info];
        let found = names.into_iter().find_map(Option::as_deref);
        found.unwrap_or("a CPU that does not say its name")
    }

    /// Tokens of a prompt, or from how many to how many.
    pub fn prompt(&self) -> String {
        match (self.n_prompt_min, self.n_prompt_max) {
            (Some(shortest), Some(longest)) => format!("{shortest} to {longest}"),
            _ => self.n_prompt.to_string(),
        }
    }

    pub fn arrivals(&self) -> Arrivals {
        match &self.request_rate {
            Value::Null => Arrivals::File,
            value => value.as_f64().map_or(Arrivals::AtOnce, Arrivals::Rate),
        }
    }

    pub fn source(&self) -> Source {
        Source {
            file: self.file.clone(),
            command: self.command.clone(),
        }
    }

    /// `step`, `itl`, `tpot`, `ttft` or `e2el`; `None` where no run showed any.
    pub fn latency(&self, name: &str) -> Option<Latency> {
        let at = |prefix: &str| self.number(&format!("{prefix}_{name}_ms"));
        Some(Latency {
            count: self.number(&format!("{name}_count")).map(|n| n as usize),
            median: at("median")?,
            p90: at("p90"),
            p99: at("p99"),
            p99_9: at("p99.9"),
        })
    }

    fn beside(&self) -> Beside {
        Beside {
            turn_us: self.number("median_turn_us"),
            launches_per_token: self.number("launches_per_token"),
            host_cpu_s_per_1k_tokens: self.number("host_cpu_s_per_1k_tokens"),
            energy_j_per_token: self.number("energy_j_per_token"),
            experts_expected: self.number("experts_expected"),
            experts_hit: self.number("experts_hit_mean"),
        }
    }

    /// As a point of a series of steps; `None` of a kind that times none.
    pub fn point(&self) -> Option<Point> {
        Some(Point {
            sequences: self.batch,
            step: self.latency("step")?,
            tokens_per_s: self.avg_ts,
            tokens_per_s_sd: (self.repeats > 1).then_some(self.stddev_ts),
            itl: self.latency("itl"),
            tpot: self.latency("tpot"),
            ttft: self.latency("ttft"),
            beside: self.beside(),
        })
    }

    /// What two results of one page part may not share: they would be the same point.
    fn place(&self) -> (Kind, String, &str, [Option<&str>; 2], [u32; 8], String) {
        (
            self.kind,
            self.way(),
            &self.dtype,
            [self.bucket_file.as_deref(), self.kernel_file.as_deref()],
            [
                self.batch,
                self.n_prompt,
                self.n_gen,
                self.n_kernels.unwrap_or(0),
                self.n_prompt_min.unwrap_or(0),
                self.max_concurrency.unwrap_or(0),
                u32::from(self.logits_on_device == Some(true)),
                self.cpu_load,
            ],
            self.request_rate.to_string(),
        )
    }

    pub fn same_place(&self, other: &Self) -> bool {
        self.place() == other.place()
    }

    /// What makes it of no use: said in words.
    fn wrong(&self) -> Option<String> {
        if self.schema != VERSION {
            let schema = self.schema;
            return Some(format!("found schema {schema}, expected {VERSION}"));
        }
        let steps = matches!(self.kind, Kind::Decode | Kind::Launch);
        let step = self.latency("step");
        let timed = step.is_some_and(|l| {
            let times = [Some(l.median), l.p99, l.p99_9];
            times.into_iter().all(|ms| ms.is_some_and(|ms| ms > 0.0))
        });
        if self.batch == 0 || self.avg_ts <= 0.0 || (steps && !timed) {
            let (name, way) = (self.kind.name(), quote::text(self.way()));
            return Some(format!(
                "found a {name} of {} by {way}, which took no time",
                self.batch
            ));
        }
        (self.kind == Kind::Launch && self.n_kernels.is_none())
            .then(|| "found a launch without n_kernels".to_owned())
    }
}

/// Reads a file of results.
///
/// # Errors
/// The file holds something else, or the same combination twice.
pub fn read(path: &Path, file: &str) -> Result<Vec<Row>> {
    const EXPECTED: &str = "results of `bench --format json` or `--format jsonl`";
    let wrong = |message: String| Error::file(path, format!("{message}, expected {EXPECTED}"));
    let mut rows: Vec<Row> = json::rows(path, EXPECTED)?;
    for (n, row) in rows.iter().enumerate() {
        if let Some(message) = row.wrong() {
            return Err(wrong(message));
        }
        if rows[..n].iter().any(|earlier| earlier.same_place(row)) {
            let message = format!(
                "results {} and an earlier one are of the same combination",
                n + 1
            );
            return Err(wrong(message));
        }
    }
    for row in &mut rows {
        row.file = file.to_owned();
    }
    Ok(rows)
}
