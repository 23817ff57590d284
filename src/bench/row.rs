//! A result: one JSON object that says all of what was measured, on what, and how. Where llama-bench (`n_prompt`,
//! `avg_ts`, `samples_ns` ...) or vLLM's serving benchmark (`mean_ttft_ms`, `output_throughput`, `total_input_tokens` ...)
//! has a name for the same thing, it is that name. What was not measured is null.

use super::floors::{Least, Rates};
use super::metrics::Figures;
use super::routing::Spread;
use super::stats::{self, quantile, sorted};
use super::{Kind, Point};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Of the format: another number is another format.
pub const VERSION: u32 = 1;

/// What all results of a run of `bench` share.
#[derive(Debug, Clone, Serialize)]
pub struct Subject {
    pub schema: u32,
    pub build_version: &'static str,
    /// Null in debug builds, and where the source was no checkout.
    pub build_commit: Option<&'static str>,
    /// `debug` or `release`
    pub build_profile: &'static str,
    pub command: String,
    /// UTC, RFC 3339.
    pub test_time: String,
    pub model_filename: String,
    pub model_size: u64,
    pub model_n_params: u64,
    /// `CPU` or `CUDA`
    pub backends: &'static str,
    pub cpu_info: Option<String>,
    pub gpu_info: Option<String>,
    pub host_cores: usize,
    pub warm_up: u32,
    pub seed: u64,
}

/// How the engine was set up.
#[derive(Debug, Clone, Serialize)]
pub struct Setting {
    /// As in `--launch`; null on the CPU.
    pub launch: Option<String>,
    pub dtype: String,
    /// Null: the built-in one.
    pub bucket_file: Option<String>,
    /// Null: the built-in one.
    pub kernel_file: Option<String>,
    /// Which kernels served which bucket: the same text, the same choice. Null on the CPU.
    pub kernel_variants: Option<String>,
    /// Devices that run the whole model each; sizes are those of one.
    pub replicas: usize,
    /// Devices that share the model's stages out.
    pub stage_devices: usize,
    pub max_seqs: u32,
    pub max_context: u32,
    pub step_tokens: u32,
    pub chunk_tokens: u32,
}

/// How long an engine took until it served, in milliseconds; one entry a repeat.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Startup {
    /// The model's files or its generation, once for all engines.
    pub model_ms: f64,
    pub load_ms: Vec<f64>,
    /// Until all graphs are ready to launch. This and the three below are of GPUs.
    pub graphs_ms: Option<Vec<f64>>,
    /// These three are within the graphs' time. Threads do them side by side, so together they can be longer.
    pub capture_ms: Option<Vec<f64>>,
    pub instantiate_ms: Option<Vec<f64>>,
    pub upload_ms: Option<Vec<f64>>,
    /// All of it up to the running engine, the phases above included.
    pub engine_ms: Vec<f64>,
    /// From the first request to its token.
    pub first_token_ms: Vec<f64>,
}

/// What `score` was held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Verdict {
    pub valid: bool,
    pub top1_agreeing: u64,
    pub top1_total: u64,
}

/// What a result is made of.
pub struct Measured<'a> {
    pub subject: &'a Subject,
    pub setting: &'a Setting,
    pub point: &'a Point,
    /// Kernels of a step; only of `launch`.
    pub kernels: Option<u32>,
    /// Of `score`: logits are not sent to the host.
    pub logits_on_device: Option<bool>,
    pub startup: &'a Startup,
    /// One a repeat; at least one.
    pub repeats: &'a [Figures],
    /// What a step, or a run, takes at least; without `rates` it has no time.
    pub least: Option<Least>,
    /// The same with the experts that were counted.
    pub counted_least: Option<Least>,
    pub rates: Option<&'a Rates>,
    /// Of the vocabulary, named in the prompts.
    pub vocabulary_share: f64,
    /// Experts of a layer that a step's rows choose, were routing even; null where no step is typical.
    pub experts_expected: Option<f64>,
    /// As it was counted; null where no step is typical.
    pub spread: Option<Spread>,
    pub verdict: Option<Verdict>,
    /// What measuring adds for each token.
    pub cost_ns: f64,
}

impl Measured<'_> {
    /// The result.
    pub fn row(&self) -> Value {
        let mut row = Map::new();
        extend(&mut row, json!(self.subject));
        extend(&mut row, json!(self.setting));
        extend(&mut row, self.what());
        extend(&mut row, self.spread());
        self.rates_of_runs(&mut row);
        self.latencies(&mut row);
        extend(&mut row, self.traced());
        extend(&mut row, self.costs());
        extend(&mut row, self.floor());
        extend(&mut row, self.starting());
        row.insert("samples".to_owned(), json!(self.samples()));
        Value::Object(row)
    }

    fn what(&self) -> Value {
        let point = self.point;
        let infinite = point.rate.is_some_and(f64::is_infinite);
        json!({
            "kind": point.kind,
            "batch": point.batch,
            "n_prompt": point.mean_prompt(),
            "n_prompt_min": point.ragged_from,
            "n_prompt_max": point.ragged_from.map(|_| point.prompt_tokens),
            "n_gen": point.new_tokens,
            "n_kernels": self.kernels,
            // As vLLM writes it.
            "request_rate": if infinite { json!("inf") } else { json!(point.rate) },
            "max_concurrency": point.most_in_flight,
            "logits_on_device": self.logits_on_device,
            "cpu_load": point.cpu_load,
            "gpu_load": point.gpu_load,
            "penalties": point.penalties,
            "repeats": self.repeats.len(),
            "vocabulary_share": self.vocabulary_share,
            "experts_expected": self.experts_expected,
            "valid": self.verdict.map(|verdict| verdict.valid),
            "top1_agreeing": self.verdict.map(|verdict| verdict.top1_agreeing),
            "top1_total": self.verdict.map(|verdict| verdict.top1_total),
        })
    }

    fn spread(&self) -> Value {
        let of = |value: fn(&Spread) -> Value| self.spread.as_ref().map(value);
        json!({
            "experts_hit_min": of(|spread| json!(spread.experts_hit_min)),
            "experts_hit_mean": of(|spread| json!(spread.experts_hit_mean)),
            "experts_hit_max": of(|spread| json!(spread.experts_hit_max)),
            "expert_share_min": of(|spread| json!(spread.expert_share_min)),
            "expert_share_mean": of(|spread| json!(spread.expert_share_mean)),
            "expert_share_max": of(|spread| json!(spread.expert_share_max)),
        })
    }

    fn each(&self, value: impl Fn(&Figures) -> f64) -> Vec<f64> {
        self.repeats.iter().map(value).collect()
    }

    fn rates_of_runs(&self, row: &mut Map<String, Value>) {
        let samples_ns = self.each(|f| f.counted_ns);
        let samples_ts = self.each(Figures::tokens_per_s);
        for (name, samples) in [("ns", &samples_ns), ("ts", &samples_ts)] {
            let summary = stats::summary(samples);
            row.insert(format!("avg_{name}"), json!(summary.map(|s| s.mean)));
            row.insert(format!("stddev_{name}"), json!(summary.map(|s| s.sd)));
            row.insert(format!("median_{name}"), json!(summary.map(|s| s.median)));
        }
        let mean =
            |value: &dyn Fn(&Figures) -> f64| stats::summary(&self.each(value)).map(|s| s.mean);
        let whole = json!({
            "samples_ns": samples_ns,
            "samples_ts": samples_ts,
            "duration": mean(&|f| f.duration_s),
            "completed": self.repeats[0].completed,
            "total_input_tokens": self.repeats[0].input_tokens,
            "total_output_tokens": self.repeats[0].output_tokens,
            "request_throughput": mean(&request_throughput),
            "output_throughput": mean(&output_throughput),
            "total_token_throughput": mean(&total_token_throughput),
        });
        extend(row, whole);
    }

    /// Over the values of all repeats together.
    fn latencies(&self, row: &mut Map<String, Value>) {
        for (name, values) in LATENCIES {
            let all: Vec<f64> = self.repeats.iter().flat_map(values).copied().collect();
            let (summary, ascending) = (stats::summary(&all), sorted(&all));
            let at = |share| summary.map(|_| quantile(&ascending, share));
            row.insert(format!("mean_{name}_ms"), json!(summary.map(|s| s.mean)));
            row.insert(format!("std_{name}_ms"), json!(summary.map(|s| s.sd)));
            row.insert(
                format!("median_{name}_ms"),
                json!(summary.map(|s| s.median)),
            );
            for (percent, share) in [("90", 0.9), ("99", 0.99), ("99.9", 0.999)] {
                row.insert(format!("p{percent}_{name}_ms"), json!(at(share)));
            }
            row.insert(format!("{name}_count"), json!(all.len()));
        }
    }

    /// Of all repeats together, as `latencies`.
    fn traced(&self) -> Value {
        let repeats = self.repeats.iter();
        let all: Vec<f64> = repeats.flat_map(|f| &f.traced_step_ms).copied().collect();
        json!({
            "median_traced_step_ms": stats::summary(&all).map(|s| s.median),
            "traced_step_count": (!all.is_empty()).then_some(all.len()),
        })
    }

    fn costs(&self) -> Value {
        let kind = self.point.kind;
        let total = |value: &dyn Fn(&Figures) -> f64| self.each(value).iter().sum::<f64>();
        let tokens = total(&|f| f.tokens(kind));
        let joules: Option<Vec<f64>> = self.repeats.iter().map(|f| f.energy_j).collect();
        let turns_us: Vec<f64> = self
            .repeats
            .iter()
            .flat_map(|f| &f.turn_us)
            .copied()
            .collect();
        let noted = total(&|f| f.noted() as f64);
        let uncertainty_us = self.each(|f| f.clock_uncertainty_us);
        json!({
            "median_turn_us": stats::summary(&turns_us).map(|s| s.median),
            "launches_per_token": self.on_gpu().then(|| total(&|f| f.launches as f64) / tokens),
            "host_cpu_s_per_1k_tokens": total(&|f| f.processor_s) / tokens * 1e3,
            "energy_j_per_token": joules.map(|joules| joules.iter().sum::<f64>() / tokens),
            "clock_uncertainty_us": uncertainty_us.into_iter().fold(0.0, f64::max),
            "bench_overhead": noted * self.cost_ns / (total(&|f| f.duration_s) * 1e9),
            "turns_lost": self.repeats.iter().map(|f| f.turns_lost).sum::<u64>(),
        })
    }

    fn on_gpu(&self) -> bool {
        self.setting.launch.is_some()
    }

    /// What is held against the floor: a step of `decode`, a run of the others.
    fn floor(&self) -> Value {
        let floor = self.rates.and(self.least);
        let floor_ms = floor.map(|least| least.us() / 1e3);
        let counted = self.rates.and(self.counted_least);
        let counted_ms = counted.map(|least| least.us() / 1e3);
        let taken_ms = match self.point.kind {
            Kind::Decode => {
                let all: Vec<f64> = self
                    .repeats
                    .iter()
                    .flat_map(|f| &f.step_ms)
                    .copied()
                    .collect();
                stats::summary(&all)
            }
            _ => stats::summary(&self.each(|f| f.counted_ns / 1e6)),
        };
        json!({
            "floor_bytes": self.least.map(|least| least.bytes),
            "floor_flops": self.least.map(|least| least.flops),
            "floor_ms": floor_ms,
            "floor_bound": floor.map(|least| least.bound().name()),
            "floor_fraction": floor_ms.zip(taken_ms).map(|(ms, taken)| ms / taken.median),
            // With the experts that the run's rows went to, rather than those of even routing.
            "floor_counted_ms": counted_ms,
            "floor_counted_fraction": counted_ms.zip(taken_ms).map(|(ms, taken)| ms / taken.median),
            "floor_source": floor.and(self.rates).map(|rates| rates.source.as_str()),
        })
    }

    fn starting(&self) -> Value {
        let startup = self.startup;
        let mean = |values: &[f64]| stats::summary(values).map(|s| s.mean);
        let phase = |values: &Option<Vec<f64>>| values.as_deref().and_then(mean);
        json!({
            "startup_model_ms": startup.model_ms,
            "startup_load_ms": mean(&startup.load_ms),
            "startup_graphs_ms": phase(&startup.graphs_ms),
            "startup_capture_ms": phase(&startup.capture_ms),
            "startup_instantiate_ms": phase(&startup.instantiate_ms),
            "startup_upload_ms": phase(&startup.upload_ms),
            "startup_engine_ms": mean(&startup.engine_ms),
            "startup_first_token_ms": mean(&startup.first_token_ms),
        })
    }

    /// A value for each repeat: what `bench compare` works on.
    fn samples(&self) -> BTreeMap<String, Vec<f64>> {
        let kind = self.point.kind;
        let mut samples = BTreeMap::new();
        let mut add = |name: String, values: Vec<f64>| {
            if !values.is_empty() && values.iter().all(|value| value.is_finite()) {
                samples.insert(name, values);
            }
        };
        add("tokens_per_s".to_owned(), self.each(Figures::tokens_per_s));
        add(
            "request_throughput".to_owned(),
            self.each(request_throughput),
        );
        add("output_throughput".to_owned(), self.each(output_throughput));
        add(
            "host_cpu_s_per_1k_tokens".to_owned(),
            self.each(|f| f.processor_s / f.tokens(kind) * 1e3),
        );
        add(
            "startup_engine_ms".to_owned(),
            self.startup.engine_ms.clone(),
        );
        add(
            "startup_first_token_ms".to_owned(),
            self.startup.first_token_ms.clone(),
        );
        for (name, values) in LATENCIES {
            let ascending: Vec<Vec<f64>> = self.repeats.iter().map(|f| sorted(values(f))).collect();
            if ascending.iter().any(Vec::is_empty) {
                continue;
            }
            for (prefix, share) in [("median", 0.5), ("p99", 0.99)] {
                let at = ascending.iter().map(|values| quantile(values, share));
                add(format!("{prefix}_{name}_ms"), at.collect());
            }
        }
        if let Some(joules) = self
            .repeats
            .iter()
            .map(|f| f.energy_j)
            .collect::<Option<Vec<_>>>()
        {
            let tokens = self.each(|f| f.tokens(kind));
            let each = joules
                .iter()
                .zip(tokens)
                .map(|(joules, tokens)| joules / tokens);
            add("energy_j_per_token".to_owned(), each.collect());
        }
        samples
    }
}

type Values = fn(&Figures) -> &Vec<f64>;
const LATENCIES: [(&str, Values); 5] = [
    ("ttft", |f| &f.ttft_ms),
    ("tpot", |f| &f.tpot_ms),
    ("itl", |f| &f.itl_ms),
    ("e2el", |f| &f.e2el_ms),
    ("step", |f| &f.step_ms),
];

fn request_throughput(figures: &Figures) -> f64 {
    figures.completed as f64 / figures.duration_s
}

fn output_throughput(figures: &Figures) -> f64 {
    figures.output_tokens as f64 / figures.duration_s
}

fn total_token_throughput(figures: &Figures) -> f64 {
    (figures.input_tokens + figures.output_tokens) as f64 / figures.duration_s
}

fn extend(row: &mut Map<String, Value>, fields: Value) {
    if let Value::Object(fields) = fields {
        row.extend(fields);
    }
}
