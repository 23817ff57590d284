//! The columns of each table.

use super::{Column, digits, number};
use crate::bench::Kind;
use serde_json::Value;

fn cell(row: &Value, name: &str) -> Option<String> {
    match &row[name] {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(value) if value.is_f64() => value.as_f64().map(number),
        value => Some(value.to_string()),
    }
}

fn per_cent(row: &Value, name: &str) -> Option<String> {
    Some(format!("{:.1}%", row[name].as_f64()? * 100.0))
}

macro_rules! field {
    ($title:literal, $name:literal) => {
        field!($title, $name, 0)
    };
    ($title:literal, $name:literal, $rank:literal) => {
        Column {
            title: $title,
            cell: |row| cell(row, $name),
            rank: $rank,
            is_setting: false,
        }
    };
}

/// What was asked for, rather than what came of it.
macro_rules! setting {
    ($title:literal, $name:literal) => {
        Column {
            title: $title,
            cell: |row| cell(row, $name),
            rank: 0,
            is_setting: true,
        }
    };
}

/// Median and p99 of a latency.
macro_rules! latency {
    ($title:literal, $median:literal, $p99:literal, $rank:literal) => {
        Column {
            title: $title,
            cell: |row| {
                let short = |name: &str| Some(digits(row[name].as_f64()?, 3));
                Some(short($median)? + "/" + &short($p99)?)
            },
            rank: $rank,
            is_setting: false,
        }
    };
}

/// A number that most rows have as 0, which then say nothing.
macro_rules! above_zero {
    ($title:literal, $name:literal, $rank:literal) => {
        Column {
            title: $title,
            cell: |row| cell(row, $name).filter(|cell| cell != "0"),
            rank: $rank,
            is_setting: false,
        }
    };
}

/// A fraction as a percentage.
macro_rules! share {
    ($title:literal, $name:literal, $rank:literal) => {
        Column {
            title: $title,
            cell: |row| per_cent(row, $name),
            rank: $rank,
            is_setting: false,
        }
    };
}

/// Two numbers with text between.
macro_rules! pair {
    ($title:literal, $first:literal, $between:literal, $second:literal, $rank:literal) => {
        Column {
            title: $title,
            cell: |row| Some(cell(row, $first)? + $between + &cell(row, $second)?),
            rank: $rank,
            is_setting: false,
        }
    };
}

/// Of prompts whose lengths are drawn the range.
const PROMPT: Column = Column {
    title: "n_prompt",
    rank: 0,
    is_setting: true,
    cell: |row| match (&row["n_prompt_min"], &row["n_prompt_max"]) {
        (Value::Number(shortest), Value::Number(longest)) => Some(format!("{shortest}-{longest}")),
        _ => cell(row, "n_prompt"),
    },
};

/// What `bench` is asked to measure.
const SETTINGS: &[Column] = &[
    setting!("kind", "kind"),
    setting!("launch", "launch"),
    setting!("dtype", "dtype"),
    setting!("buckets", "bucket_file"),
    setting!("kernel file", "kernel_file"),
    setting!("batch", "batch"),
    PROMPT,
    setting!("n_gen", "n_gen"),
    setting!("req/s asked", "request_rate"),
    setting!("in flight", "max_concurrency"),
    setting!("cpu load", "cpu_load"),
];

/// Steps: of `decode`.
const STEPS: &[Column] = &[
    pair!("t/s (mean ± sd)", "avg_ts", " ± ", "stddev_ts", 0),
    field!("step ms p50", "median_step_ms", 0),
    field!("p99", "p99_step_ms", 0),
    field!("p99.9", "p99.9_step_ms", 6),
    share!("of floor", "floor_fraction", 0),
    field!("floor ms", "floor_ms", 1),
    field!("by trace", "median_traced_step_ms", 4),
    latency!("TTFT ms", "median_ttft_ms", "p99_ttft_ms", 5),
    latency!("ITL ms", "median_itl_ms", "p99_itl_ms", 6),
    field!("turn us", "median_turn_us", 5),
];

/// Prompts alone: of `prefill` and `score`.
const PROMPTS: &[Column] = &[
    pair!("t/s (mean ± sd)", "avg_ts", " ± ", "stddev_ts", 0),
    Column {
        title: "valid",
        rank: 0,
        is_setting: false,
        cell: |row| {
            let valid = row["valid"].as_bool()?;
            Some(if valid { "VALID" } else { "INVALID" }.to_owned())
        },
    },
    pair!("top-1", "top1_agreeing", "/", "top1_total", 0),
    field!("TTFT ms p50", "median_ttft_ms", 0),
    field!("p99", "p99_ttft_ms", 0),
    field!("E2E ms p50", "median_e2el_ms", 4),
    share!("of floor", "floor_fraction", 0),
    field!("floor ms", "floor_ms", 1),
];

/// Requests: of `serve`.
const REQUESTS: &[Column] = &[
    field!("req/s", "request_throughput", 0),
    field!("t/s out", "output_throughput", 0),
    latency!("TTFT ms", "median_ttft_ms", "p99_ttft_ms", 0),
    latency!("TPOT ms", "median_tpot_ms", "p99_tpot_ms", 0),
    latency!("ITL ms", "median_itl_ms", "p99_itl_ms", 0),
    latency!("E2E ms", "median_e2el_ms", "p99_e2el_ms", 0),
    field!("t/s in and out", "total_token_throughput", 4),
];

/// What runs cost beside time, and where their rows went.
const COSTS: &[Column] = &[
    field!("s", "duration", 8),
    field!("experts/layer", "experts_hit_mean", 7),
    share!("most chosen", "expert_share_max", 7),
    field!("counted floor ms", "floor_counted_ms", 9),
    field!("launches/token", "launches_per_token", 8),
    field!("CPU s/1k tokens", "host_cpu_s_per_1k_tokens", 8),
    field!("J/token", "energy_j_per_token", 8),
];

/// Of results of `kind`.
pub fn results(kind: Kind) -> Vec<Column> {
    let measured = match kind {
        Kind::Decode => STEPS,
        Kind::Prefill | Kind::Score => PROMPTS,
        Kind::Serve => REQUESTS,
    };
    [SETTINGS, measured, COSTS].concat()
}

/// Of how engines started.
pub const STARTS: &[Column] = &[
    setting!("launch", "launch"),
    setting!("dtype", "dtype"),
    setting!("buckets", "bucket_file"),
    setting!("kernel file", "kernel_file"),
    setting!("max seqs", "max_seqs"),
    field!("model ms", "startup_model_ms", 1),
    field!("load ms", "startup_load_ms"),
    field!("graphs ms", "startup_graphs_ms", 2),
    field!("capture ms", "startup_capture_ms", 2),
    field!("instantiate ms", "startup_instantiate_ms", 2),
    field!("upload ms", "startup_upload_ms", 2),
    field!("engine ms", "startup_engine_ms"),
    field!("first token ms", "startup_first_token_ms"),
];

/// Of a comparison.
pub const COMPARED: &[Column] = &[
    field!("kind", "kind", 1),
    field!("model", "model"),
    field!("replicas", "replicas"),
    field!("stages", "stage_devices"),
    field!("launch", "launch"),
    field!("dtype", "dtype", 2),
    field!("batch", "batch"),
    Column { rank: 3, ..PROMPT },
    field!("n_gen", "n_gen", 3),
    field!("req/s asked", "request_rate", 1),
    field!("in flight", "max_concurrency", 1),
    field!("cpu load", "cpu_load", 2),
    above_zero!("gpu load", "gpu_load", 2),
    field!("figure", "figure"),
    field!("A", "a"),
    field!("B", "b"),
    field!("B / A", "ratio"),
    pair!("95% interval", "low", " to ", "high", 1),
    field!("verdict", "verdict"),
];

/// Of products.
pub const GEMM: &[Column] = &[
    field!("dtype", "dtype", 3),
    field!("step", "kind"),
    field!("rows", "rows"),
    field!("operations", "operations"),
    field!("weights", "weights", 4),
    field!("kernels", "kernels", 5),
    field!("us", "us"),
    field!("bound", "bound", 6),
    field!("bound us", "floor_us", 2),
    share!("of it", "fraction", 0),
    field!("FLOP/B", "intensity", 7),
    field!("TFLOP/s", "tflops"),
    field!("TB/s", "tbytes_per_s"),
    field!("cuBLASLt us", "cublaslt_us", 1),
    field!("its TFLOP/s", "cublaslt_tflops", 2),
    field!("its us / ours", "cublaslt_ratio", 1),
];
