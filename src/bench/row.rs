//! A result: one JSON object that says all of what was measured, on what, and how. `bench` writes it, `report` and
//! `bench compare` read it, and `tests/schemas/bench.schema.json` is derived from it. Where llama-bench (`n_prompt`,
//! `avg_ts`, `samples_ns` ...) or vLLM's serving benchmark (`mean_ttft_ms`, `output_throughput`, `total_input_tokens` ...)
//! has a name for the same thing, it is that name. What was not measured is null; what older results lack, too.

use super::floors::{Least, Rates};
use super::gpu_state::{GpuState, Machine};
use super::metrics::Figures;
use super::over_bare::OverBare;
use super::routing::Spread;
use super::stats::{interval, quantile, sorted, summary};
use super::{Kind, Point};
use crate::error::Result;
use crate::json;
use crate::model::fingerprint;
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

/// The version of the format: another number is another format.
pub const VERSION: u32 = 1;

/// One result.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Row {
    #[serde(flatten)]
    pub subject: Subject,
    #[serde(flatten)]
    pub choice: Choice,
    #[serde(flatten)]
    pub setting: Setting,
    #[serde(flatten)]
    pub workload: Workload,
    #[serde(flatten)]
    pub routing: Routing,
    #[serde(flatten)]
    pub throughput: Throughput,
    #[serde(flatten)]
    pub ttft: Ttft,
    #[serde(flatten)]
    pub tpot: Tpot,
    #[serde(flatten)]
    pub itl: Itl,
    #[serde(flatten)]
    pub e2el: E2el,
    #[serde(flatten)]
    pub step: Step,
    #[serde(flatten)]
    pub costs: Costs,
    #[serde(flatten)]
    pub floor: Floored,
    #[serde(flatten)]
    pub startup: Startup,
    #[serde(flatten)]
    pub gpu: GpuState,
    /// SHA-256 of the tokens that all repeats generated: the same work has the same.
    pub outputs_sha256: Option<String>,
    #[serde(flatten)]
    pub over_bare: OverBare,
    /// A value for each repeat of each figure that `bench compare` works on.
    pub samples: BTreeMap<String, Vec<f64>>,
}

/// What all results of a run of `bench` share.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Subject {
    /// The version of this format. The first field, by which `report` knows what a file is.
    pub schema: u32,
    pub build_version: String,
    /// Null in debug builds, and where the source was no checkout.
    pub build_commit: Option<String>,
    /// `debug` or `release`
    pub build_profile: String,
    pub command: String,
    /// UTC, RFC 3339.
    pub test_time: Option<String>,
    pub model_filename: String,
    pub model_size: u64,
    pub model_n_params: u64,
    /// `CPU` or `CUDA`
    pub backends: String,
    pub cpu_info: Option<String>,
    pub gpu_info: Option<String>,
    pub host_cores: usize,
    pub warm_up: u32,
    pub seed: u64,
    #[serde(flatten)]
    pub machine: Machine,
}

/// What is chosen about an engine, to be compared.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Choice {
    /// The way to launch, by its name in `--launch`; null on the CPU.
    pub launch: Option<String>,
    pub dtype: String,
    /// The name in `--weights`; null: as they are stored.
    #[serde(default)]
    pub weights: Option<String>,
    /// The name in `--activations`; null: prompts' activations are multiplied in their type.
    #[serde(default)]
    pub activations: Option<String>,
    /// Null: the built-in one.
    pub bucket_file: Option<String>,
    /// Null: the built-in one.
    pub kernel_file: Option<String>,
}

/// How the engine was set up beside that.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Setting {
    /// Which kernels served which bucket: the same text, the same choice. Null on the CPU.
    pub kernel_variants: Option<String>,
    /// Devices that run the whole model each; sizes are those of one.
    #[serde(default = "one")]
    pub replicas: usize,
    /// Devices that share the model's stages out.
    #[serde(default = "one")]
    pub stage_devices: usize,
    pub max_seqs: u32,
    pub max_context: u32,
    pub step_tokens: u32,
    #[serde(default)]
    pub chunk_tokens: u32,
    /// Prefixes that may be shared at once; 0: nothing is.
    #[serde(default)]
    pub prefixes: u32,
}

fn one() -> usize {
    1
}

/// What was run: a [`Point`] as results have it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Workload {
    pub kind: Kind,
    pub batch: u32,
    pub n_prompt: u32,
    pub n_prompt_min: Option<u32>,
    pub n_prompt_max: Option<u32>,
    /// Tokens that prompts begin with alike, and how many such beginnings there are.
    pub shared_prefix: Option<u32>,
    pub prefix_groups: Option<u32>,
    pub n_gen: u32,
    /// Requests a second; `inf`, as vLLM writes it: all at once.
    pub request_rate: Option<Value>,
    pub max_concurrency: Option<u32>,
    /// `score` left its logits on the device.
    pub logits_on_device: Option<bool>,
    /// Threads that spin beside the run.
    pub cpu_load: u32,
}

impl From<&Point> for Workload {
    fn from(point: &Point) -> Self {
        let rate = |rate: f64| {
            if rate.is_finite() {
                json!(rate)
            } else {
                json!("inf")
            }
        };
        Self {
            kind: point.kind,
            batch: point.batch,
            n_prompt: point.mean_prompt(),
            n_prompt_min: point.ragged_from,
            n_prompt_max: point.ragged_from.map(|_| point.prompt_tokens),
            shared_prefix: point.shared.map(|shared| shared.tokens),
            prefix_groups: point.shared.map(|shared| shared.groups),
            n_gen: point.new_tokens,
            request_rate: point.rate.map(rate),
            max_concurrency: point.most_in_flight,
            logits_on_device: None,
            cpu_load: point.cpu_load,
        }
    }
}

/// Where rows went. The counts are null where no step is typical.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Routing {
    /// Experts of a layer that a step's rows choose, were routing even.
    pub experts_expected: Option<f64>,
    #[serde(flatten)]
    pub spread: Spread,
}

/// Rates, over repeats.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Throughput {
    pub repeats: usize,
    /// Nanoseconds that the rate is counted over.
    pub avg_ns: f64,
    pub stddev_ns: f64,
    pub median_ns: f64,
    /// Tokens a second.
    pub avg_ts: f64,
    pub stddev_ts: f64,
    pub median_ts: f64,
    pub samples_ns: Vec<f64>,
    pub samples_ts: Vec<f64>,
    /// Seconds of a run.
    pub duration: f64,
    pub completed: usize,
    pub total_input_tokens: u64,
    /// Input tokens that were not computed, but shared; null where prompts had nothing in common.
    pub total_cached_tokens: Option<u64>,
    pub total_output_tokens: u64,
    pub request_throughput: f64,
    pub output_throughput: f64,
    pub total_token_throughput: f64,
}

impl Throughput {
    fn of(repeats: &[Figures]) -> Self {
        let each = |value: fn(&Figures) -> f64| repeats.iter().map(value).collect::<Vec<_>>();
        let mean = |value| summary(&each(value)).map_or(0.0, |s| s.mean);
        let (samples_ns, samples_ts) = (each(|f| f.counted_ns), each(Figures::tokens_per_s));
        let (ns, ts) = (summary(&samples_ns), summary(&samples_ts));
        let (ns, ts) = (ns.unwrap_or_default(), ts.unwrap_or_default());
        Self {
            repeats: repeats.len(),
            avg_ns: ns.mean,
            stddev_ns: ns.sd,
            median_ns: ns.median,
            avg_ts: ts.mean,
            stddev_ts: ts.sd,
            median_ts: ts.median,
            samples_ns,
            samples_ts,
            duration: mean(|f| f.duration_s),
            completed: repeats[0].completed,
            total_input_tokens: repeats[0].input_tokens,
            total_cached_tokens: repeats[0].cached_tokens,
            total_output_tokens: repeats[0].output_tokens,
            request_throughput: mean(Figures::requests_per_s),
            output_throughput: mean(Figures::output_per_s),
            total_token_throughput: mean(|f| {
                (f.input_tokens + f.output_tokens) as f64 / f.duration_s
            }),
        }
    }
}

/// A latency over the values of all repeats together, in milliseconds. The intervals are [`interval`]s: [low, high].
macro_rules! latency {
    ($(#[$doc:meta])* $name:ident: $mean:tt $std:tt $median:tt $median_ci95:tt $p90:tt $p99:tt $p99_ci95:tt $p999:tt $count:tt) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(test, derive(JsonSchema))]
        pub struct $name {
            #[serde(rename = $mean)]
            pub mean: Option<f64>,
            #[serde(rename = $std)]
            pub sd: Option<f64>,
            #[serde(rename = $median)]
            pub median: Option<f64>,
            #[serde(rename = $median_ci95)]
            pub median_ci95: Option<[f64; 2]>,
            #[serde(rename = $p90)]
            pub p90: Option<f64>,
            #[serde(rename = $p99)]
            pub p99: Option<f64>,
            #[serde(rename = $p99_ci95)]
            pub p99_ci95: Option<[f64; 2]>,
            #[serde(rename = $p999)]
            pub p999: Option<f64>,
            #[serde(rename = $count)]
            pub count: usize,
        }

        impl $name {
            fn of(values: Vec<f64>) -> Self {
                let (summary, ascending) = (summary(&values), sorted(&values));
                let at = |share| summary.map(|_| quantile(&ascending, share));
                Self {
                    mean: summary.map(|s| s.mean),
                    sd: summary.map(|s| s.sd),
                    median: summary.map(|s| s.median),
                    median_ci95: interval(&ascending, 0.5),
                    p90: at(0.9),
                    p99: at(0.99),
                    p99_ci95: interval(&ascending, 0.99),
                    p999: at(0.999),
                    count: values.len(),
                }
            }
        }
    };
}

latency! {
    /// From when a request was due to its first token.
    Ttft: "mean_ttft_ms" "std_ttft_ms" "median_ttft_ms" "median_ttft_ms_ci95" "p90_ttft_ms" "p99_ttft_ms" "p99_ttft_ms_ci95" "p99.9_ttft_ms" "ttft_count"
}
latency! {
    /// The mean time of a request's token after the first.
    Tpot: "mean_tpot_ms" "std_tpot_ms" "median_tpot_ms" "median_tpot_ms_ci95" "p90_tpot_ms" "p99_tpot_ms" "p99_tpot_ms_ci95" "p99.9_tpot_ms" "tpot_count"
}
latency! {
    /// Between a token and the next one of the same request.
    Itl: "mean_itl_ms" "std_itl_ms" "median_itl_ms" "median_itl_ms_ci95" "p90_itl_ms" "p99_itl_ms" "p99_itl_ms_ci95" "p99.9_itl_ms" "itl_count"
}
latency! {
    /// From when a request was due to its end.
    E2el: "mean_e2el_ms" "std_e2el_ms" "median_e2el_ms" "median_e2el_ms_ci95" "p90_e2el_ms" "p99_e2el_ms" "p99_e2el_ms_ci95" "p99.9_e2el_ms" "e2el_count"
}
latency! {
    /// From one decode step of the whole batch to the next.
    Step: "mean_step_ms" "std_step_ms" "median_step_ms" "median_step_ms_ci95" "p90_step_ms" "p99_step_ms" "p99_step_ms_ci95" "p99.9_step_ms" "step_count"
}

/// What runs cost beside time, and what the measuring itself costs and misses.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Costs {
    /// The scheduler's turns between steps.
    pub median_turn_us: Option<f64>,
    /// Kernels and graphs that the host launched; null on the CPU.
    pub launches_per_token: Option<f64>,
    pub host_cpu_s_per_1k_tokens: f64,
    pub energy_j_per_token: Option<f64>,
    /// How far off times may be that begin by the host's clock.
    pub clock_uncertainty_us: f64,
    /// The share of the run that taking tokens down took.
    pub bench_overhead: f64,
    pub turns_lost: u64,
}

impl Costs {
    /// `cost_ns`: what taking a token down costs.
    pub fn of(kind: Kind, repeats: &[Figures], on_gpu: bool, cost_ns: f64) -> Self {
        let total = |value: &dyn Fn(&Figures) -> f64| repeats.iter().map(value).sum::<f64>();
        let tokens = total(&|f| f.tokens(kind));
        let joules: Option<f64> = repeats.iter().map(|f| f.energy_j).sum();
        let uncertainty_us = repeats.iter().map(|f| f.clock_uncertainty_us);
        Self {
            median_turn_us: summary(&all(repeats, |f| &f.turn_us)).map(|s| s.median),
            launches_per_token: on_gpu.then(|| total(&|f| f.launches as f64) / tokens),
            host_cpu_s_per_1k_tokens: total(&|f| f.processor_s) / tokens * 1e3,
            energy_j_per_token: joules.map(|joules| joules / tokens),
            clock_uncertainty_us: uncertainty_us.fold(0.0, f64::max),
            bench_overhead: total(&|f| f.noted() as f64) * cost_ns
                / (total(&|f| f.duration_s) * 1e9),
            turns_lost: repeats.iter().map(|f| f.turns_lost).sum(),
        }
    }
}

/// The least that it could take, by operations ([`Rates::least`]): a step of `decode`, a run of the others.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Floored {
    pub floor_bytes: Option<f64>,
    pub floor_flops: Option<f64>,
    pub floor_ms: Option<f64>,
    /// `memory` or `compute`
    pub floor_bound: Option<String>,
    /// The floor's share of what it took.
    pub floor_fraction: Option<f64>,
    pub floor_source: Option<String>,
}

impl Floored {
    /// Without `rates` it has no time. `taken_ms`: what is held against it.
    pub fn of(rates: Option<&Rates>, least: Option<Least>, taken_ms: f64) -> Self {
        let floor = rates.and(least);
        let floor_ms = floor.map(|least| least.us() / 1e3);
        Self {
            floor_bytes: least.map(|least| least.bytes),
            floor_flops: least.map(|least| least.flops),
            floor_ms,
            floor_bound: floor.map(|least| least.bound().name().to_owned()),
            floor_fraction: floor_ms.map(|ms| ms / taken_ms),
            floor_source: floor.and(rates).map(|rates| rates.source.clone()),
        }
    }
}

/// How long an engine took until it served, in milliseconds: one of them, or the mean of all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct Startup {
    /// The model's files or its generation, once for all engines.
    pub startup_model_ms: Option<f64>,
    pub startup_load_ms: Option<f64>,
    /// Until all graphs are ready to launch; null on the CPU.
    pub startup_graphs_ms: Option<f64>,
    /// All of it up to the running engine, the phases above included.
    pub startup_engine_ms: Option<f64>,
    /// From the first request to its token.
    pub startup_first_token_ms: Option<f64>,
}

impl Startup {
    fn mean(starts: &[Self]) -> Self {
        let mean = |value: fn(&Self) -> Option<f64>| {
            let values: Option<Vec<f64>> = starts.iter().map(value).collect();
            Some(summary(&values?)?.mean)
        };
        Self {
            startup_model_ms: mean(|s| s.startup_model_ms),
            startup_load_ms: mean(|s| s.startup_load_ms),
            startup_graphs_ms: mean(|s| s.startup_graphs_ms),
            startup_engine_ms: mean(|s| s.startup_engine_ms),
            startup_first_token_ms: mean(|s| s.startup_first_token_ms),
        }
    }
}

fn all(repeats: &[Figures], values: impl Fn(&Figures) -> &Vec<f64>) -> Vec<f64> {
    repeats.iter().flat_map(values).copied().collect()
}

impl Row {
    /// What runs of `point` came to, a repeat each, at least one; and how their engines started. What else is known of
    /// them is for the caller to add.
    pub fn of(point: &Point, repeats: &[Figures], starts: &[Startup]) -> Self {
        Self {
            workload: Workload::from(point),
            throughput: Throughput::of(repeats),
            ttft: Ttft::of(all(repeats, |f| &f.ttft_ms)),
            tpot: Tpot::of(all(repeats, |f| &f.tpot_ms)),
            itl: Itl::of(all(repeats, |f| &f.itl_ms)),
            e2el: E2el::of(all(repeats, |f| &f.e2el_ms)),
            step: Step::of(all(repeats, |f| &f.step_ms)),
            startup: Startup::mean(starts),
            gpu: GpuState::of(repeats.iter().flat_map(|f| &f.gpu)),
            outputs_sha256: Some(fingerprint::of_parts(
                repeats.iter().map(|f| f.outputs_sha256.as_bytes()),
            )),
            samples: samples(point.kind, repeats, starts),
            ..Self::default()
        }
    }

    /// What is held against the floor.
    pub fn taken_ms(&self) -> f64 {
        let step = self.step.median;
        step.unwrap_or(self.throughput.median_ns / 1e6)
    }

    /// What each step of `repeats` took, as JSON of each.
    pub fn steps(&self, repeats: &[Figures]) -> impl Iterator<Item = Value> {
        let mut line = json!(self.workload);
        for (name, value) in json!(self.choice).as_object().into_iter().flatten() {
            line[name] = value.clone();
        }
        repeats.iter().zip(1..).map(move |(figures, repeat)| {
            line["repeat"] = repeat.into();
            line["step_ms"] = json!(figures.step_ms);
            line.clone()
        })
    }
}

/// Reads results as `--format json` and `--format jsonl` write them.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn read(path: &Path) -> Result<Vec<Row>> {
    json::rows(path, EXPECTED)
}

/// What a file of results is.
pub const EXPECTED: &str = "results of `bench --format json` or `--format jsonl`";

fn samples(kind: Kind, repeats: &[Figures], starts: &[Startup]) -> BTreeMap<String, Vec<f64>> {
    type Values = fn(&Figures) -> &Vec<f64>;
    const LATENCIES: [(&str, Values); 5] = [
        ("ttft", |f| &f.ttft_ms),
        ("tpot", |f| &f.tpot_ms),
        ("itl", |f| &f.itl_ms),
        ("e2el", |f| &f.e2el_ms),
        ("step", |f| &f.step_ms),
    ];
    let mut samples = BTreeMap::new();
    // A figure that some repeat lacks has no samples.
    let mut add = |name: &str, values: Option<Vec<f64>>| {
        samples.extend(values.map(|values| (name.to_owned(), values)));
    };
    let each = |value: &dyn Fn(&Figures) -> Option<f64>| repeats.iter().map(value).collect();
    add("tokens_per_s", each(&|f| Some(f.tokens_per_s())));
    add("request_throughput", each(&|f| Some(f.requests_per_s())));
    add("output_throughput", each(&|f| Some(f.output_per_s())));
    let processor_s = each(&|f| Some(f.processor_s / f.tokens(kind) * 1e3));
    add("host_cpu_s_per_1k_tokens", processor_s);
    let energy_j = each(&|f| Some(f.energy_j? / f.tokens(kind)));
    add("energy_j_per_token", energy_j);
    let start = |value: fn(&Startup) -> Option<f64>| starts.iter().map(value).collect();
    add("startup_engine_ms", start(|s| s.startup_engine_ms));
    let first_token = start(|s| s.startup_first_token_ms);
    add("startup_first_token_ms", first_token);
    for (name, values) in LATENCIES {
        for (at, share) in [("median", 0.5), ("p99", 0.99)] {
            let of = |f: &Figures| {
                let ascending = sorted(values(f));
                (!ascending.is_empty()).then(|| quantile(&ascending, share))
            };
            add(&format!("{at}_{name}_ms"), each(&of));
        }
    }
    samples.retain(|_, values| !values.is_empty() && values.iter().all(|v| v.is_finite()));
    samples
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::kernel;
    use schemars::generate::SchemaSettings;
    use std::path::PathBuf;

    fn repository(path: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
    }

    /// With TAILGRAPH_WRITE=1 they are written anew.
    #[test]
    fn schemas_are_those_of_the_structs() {
        check_schema::<Row>("bench", "Results of tailgraph bench");
        check_schema::<kernel::Row>("kernel", "Results of tailgraph bench kernel");
    }

    fn check_schema<T: JsonSchema>(name: &str, title: &str) {
        let settings = SchemaSettings::draft2020_12().for_serialize();
        let mut schema = settings.into_generator().into_root_schema_for::<Vec<T>>();
        schema.insert("title".into(), title.into());
        let row = schema.pointer_mut("/$defs/Row").unwrap();
        row["additionalProperties"] = false.into();
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        let path = repository(&format!("tests/schemas/{name}.schema.json"));
        if std::env::var_os("TAILGRAPH_WRITE").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let written = std::fs::read_to_string(&path).unwrap();
        assert!(
            written == text,
            "write it: TAILGRAPH_WRITE=1 cargo test --lib row"
        );
    }

    #[test]
    fn older_results_are_read() {
        let files = std::fs::read_dir(repository("profiles/results")).unwrap();
        let mut read = 0;
        for path in files.map(|file| file.unwrap().path()) {
            let text = std::fs::read_to_string(&path).unwrap();
            let first = text.trim_start_matches(['[', '{', ' ', '\n']);
            let has_rows = text.contains("\"samples_ts\"");
            // A report of tests/gpu/check.py has rows of its own among its parts.
            if !first.starts_with("\"schema\"") || !has_rows || text.contains("\"parts\"") {
                continue;
            }
            let rows = super::read(&path).unwrap();
            assert!(rows.iter().all(|row| row.throughput.avg_ts > 0.0));
            let again: Vec<Row> =
                serde_json::from_str(&serde_json::to_string(&rows).unwrap()).unwrap();
            assert_eq!(again, rows, "{}", path.display());
            read += rows.len();
        }
        assert!(read > 900, "{read}");
    }
}
