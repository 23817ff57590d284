//! `bench`.

mod gemm;

use crate::backend::{Handover, LaunchWay, Parallel};
use crate::bench::Kind;
use crate::bench::output::Format;
use crate::bench::ranges::{self, Lengths, List};
use crate::command::args::EngineArgs;
use crate::command::values::Positions;
use crate::model::DType;
use clap::builder::PossibleValue;
use clap::{Args, Subcommand, ValueEnum};
pub use gemm::GemmArgs;
use std::path::PathBuf;
use std::time::Duration;

const LISTS: &str = "Lists are values with commas between, or ranges: 1-4 is 1,2,3,4; 32-96+32 is 32,64,96; 1-256*4 is 1,4,16,64,256. \
All combinations are measured.";

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = LISTS)]
pub struct BenchCommand {
    #[command(subcommand)]
    pub other: Option<Other>,
    #[command(flatten)]
    pub bench: BenchArgs,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Other {
    /// Geometric means of two measurements' repeats, their ratios, and whether the repeats show a difference
    Compare(CompareArgs),
    /// Each product of a model by rows: the kernels that serve it, time, TFLOP/s, share of what bounds it, and cuBLASLt beside it
    Gemm(Box<GemmArgs>),
}

#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Results of `bench --format json` or `--format jsonl`: what is compared with
    pub a: PathBuf,
    /// ... and what is compared
    pub b: PathBuf,
    #[command(flatten)]
    pub print: PrintArgs,
}

/// Where results go, and how they look.
#[derive(Debug, Clone, Args)]
pub struct PrintArgs {
    /// The file to write [default: standard output]
    #[arg(long, short, value_name = "FILE|-")]
    pub output: Option<PathBuf>,
    /// How to print the results [default: as the file's name ends, else md]
    #[arg(long, value_name = "FORMAT")]
    pub format: Option<Format>,
    /// Tables of all columns, rather than of those that the terminal has room for
    #[arg(long)]
    pub wide: bool,
}

pub(super) fn positive(text: &str) -> std::result::Result<List, String> {
    let list = ranges::parse(text)?;
    match list.0.contains(&0) {
        true => Err("found 0, expected numbers of at least 1".to_owned()),
        false => Ok(list),
    }
}

fn rate(text: &str) -> std::result::Result<f64, String> {
    // One in twelve days, so that times add up to what a duration holds.
    let found = text.parse().ok().filter(|&rate: &f64| rate >= 1e-6);
    found.ok_or_else(|| {
        "expected requests a second of at least 1e-6, or inf for all at once".to_owned()
    })
}

fn above_zero(text: &str) -> std::result::Result<f64, String> {
    let found = text
        .parse()
        .ok()
        .filter(|&x: &f64| x > 0.0 && x.is_finite());
    found.ok_or_else(|| "expected a number above 0".to_owned())
}

fn pause(text: &str) -> std::result::Result<Duration, String> {
    let seconds = text.parse().ok().filter(|&x: &f64| x <= 3600.0);
    let found = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    found.ok_or_else(|| "expected seconds, 0 to 3600".to_owned())
}

#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// What to measure
    #[arg(value_name = "KIND", default_value = "decode")]
    pub kind: Kind,
    #[command(flatten)]
    pub print: PrintArgs,
    /// No progress on standard error
    #[arg(long, short)]
    pub quiet: bool,

    /// A checkpoint's directory, ORG/NAME[@REVISION] or random:PRESET[@SEED] (see `generate --help`)
    #[arg(long, short, value_name = "MODEL", help_heading = "Model and device")]
    pub model: Option<String>,
    /// cpu, cuda, or certain ones; several (cuda:0,1) for serve, score and prefill [default: cuda where it can run, else cpu]
    #[arg(long, value_name = "DEVICE", help_heading = "Model and device")]
    pub device: Option<String>,
    /// What several devices do (see `generate --help`) [default: replicas]
    #[arg(long, value_name = "HOW", help_heading = "Model and device")]
    pub parallel: Option<Parallel>,
    /// With --parallel stages on GPUs: hand steps on from GPU to GPU, or through memory of the host, whoever launches them
    /// [default: peer where the GPUs reach each other's memory, else host]
    #[arg(long, value_name = "WAY", help_heading = "Model and device")]
    pub handover: Option<Handover>,
    /// Ways to launch (GPUs only) [default: device-graph]
    #[arg(
        long,
        value_name = "WAYS",
        value_delimiter = ',',
        help_heading = "Model and device"
    )]
    pub launch: Vec<LaunchWay>,
    /// Types of matrix inputs, key-value pages and convolution state [default: f32 on the CPU, bf16 on GPUs]
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        help_heading = "Model and device"
    )]
    pub dtype: Vec<DType>,
    /// Bucket ladders and stages from these TOML files [default: the built-in one]
    #[arg(
        long,
        value_name = "FILES",
        value_delimiter = ',',
        help_heading = "Model and device"
    )]
    pub bucket_file: Vec<PathBuf>,
    /// Which kernels serve which bucket, from these TOML files (GPUs only) [default: the built-in ones]
    #[arg(
        long,
        value_name = "FILES",
        value_delimiter = ',',
        help_heading = "Model and device"
    )]
    pub kernel_file: Vec<PathBuf>,

    /// Sequences at once; prompts for `score`, most sequences at once for `serve` [default: 1,8,32; prefill 1; score 1024; serve 32, or --max-concurrency]
    #[arg(long, short, value_name = "LIST", value_parser = positive, help_heading = "Workload")]
    pub batch: Option<List>,
    /// Tokens of each prompt; a plain range such as 100-2000 is one workload, whose lengths are drawn from it by the seed
    /// [default: 32; prefill 512; serve 128]
    #[arg(long, short = 'p', value_name = "LIST", value_parser = ranges::lengths, help_heading = "Workload", conflicts_with = "context")]
    pub prompt_len: Option<Lengths>,
    /// Tokens to generate for each [default: 128; serve 64; prefill always 1, score none]
    #[arg(long, short = 'n', value_name = "LIST", value_parser = positive, help_heading = "Workload")]
    pub gen_len: Option<List>,
    /// Instead of --prompt-len: tokens of a sequence at its end, the generated ones included
    #[arg(long, value_name = "LIST", value_parser = positive, help_heading = "Workload")]
    pub context: Option<List>,
    /// Threads that spin meanwhile, up to 4096
    #[arg(long, value_name = "LIST", value_parser = ranges::threads, default_value = "0", help_heading = "Workload")]
    pub cpu_load: List,
    /// `decode`: every sequence has a presence penalty, a frequency penalty and 8 biased tokens
    #[arg(long, help_heading = "Workload")]
    pub penalties: bool,
    /// `serve`: requests a second, arriving as a Poisson process; inf is all at once
    #[arg(long, value_name = "RATES", value_delimiter = ',', value_parser = rate, help_heading = "Workload")]
    pub request_rate: Vec<f64>,
    /// `serve`: requests in flight at most: the next is sent when one ends, and its times begin there; all at once but for
    /// that where --request-rate says nothing
    #[arg(long, value_name = "LIST", value_parser = positive, help_heading = "Workload")]
    pub max_concurrency: Option<List>,
    /// `serve`: arrivals from a file instead, SECONDS or SECONDS PROMPT_LEN GEN_LEN a line
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "request_rate",
        help_heading = "Workload"
    )]
    pub arrivals: Option<PathBuf>,
    /// `serve`: how many requests arrive [default: 4 times the batch]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Workload")]
    pub num_prompts: Option<u32>,
    /// `score`: positions to give logits of
    #[arg(
        long,
        value_name = "WHICH",
        default_value = "all",
        help_heading = "Workload"
    )]
    pub logits: Positions,
    /// `score`: logits are computed as ever, but stay in the GPU's memory
    #[arg(long, help_heading = "Workload", conflicts_with = "expect")]
    pub logits_on_device: bool,
    /// `score`: token arrays instead of random prompts, .safetensors or .npy
    #[arg(long, value_name = "FILE", help_heading = "Workload", conflicts_with_all = ["batch", "prompt_len", "context"])]
    pub input: Option<PathBuf>,
    /// `score`: compare with logits.{i} of this .safetensors file; exit code 4 if a repeat disagrees
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Workload",
        requires = "input"
    )]
    pub expect: Option<PathBuf>,
    /// Of the prompts and arrival times
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Workload")]
    pub seed: u64,

    /// Runs of each combination before those that count, on every engine
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        help_heading = "Measuring"
    )]
    pub warm_up: u32,
    /// Runs that count; each starts every engine anew and goes through all combinations
    #[arg(long, short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Measuring")]
    pub repeats: u32,
    /// Idle time before each run that counts: a GPU that comes to its power limit slows down, and so the next run
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "0",
        value_parser = pause,
        help_heading = "Measuring"
    )]
    pub pause: Duration,
    /// The device's memory bandwidth in GB/s, for the floor [default: known for some GPUs, see `inspect --gpu`]
    #[arg(long, value_name = "GB/S", value_parser = above_zero, help_heading = "Measuring")]
    pub bandwidth: Option<f64>,
    /// The device's peak in TFLOP/s, for the floor
    #[arg(long, value_name = "TFLOP/S", value_parser = above_zero, help_heading = "Measuring")]
    pub tflops: Option<f64>,
    /// `decode`: also write a trace of each engine and repeat into this folder, and say how long steps are by it
    #[arg(long, value_name = "FOLDER", help_heading = "Measuring")]
    pub trace: Option<PathBuf>,

    #[command(flatten)]
    pub engine: EngineArgs,
}

impl ValueEnum for Kind {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Decode, Self::Prefill, Self::Score, Self::Serve]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let help = match self {
            Self::Decode => "Steps in which every sequence generates a token",
            Self::Prefill => "Prompts up to their first token",
            Self::Score => {
                "Logits of prompts, all sent at once: 1,024 of 32 tokens unless told otherwise"
            }
            Self::Serve => "Requests that arrive at a rate, and how long they take under that load",
        };
        Some(PossibleValue::new(self.name()).help(help))
    }
}

impl ValueEnum for Format {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Md, Self::Csv, Self::Json, Self::Jsonl]
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::Md => ("md", "Tables for people"),
            Self::Csv => (
                "csv",
                "A line a result, without the values of single repeats",
            ),
            Self::Json => ("json", "An array of all results"),
            Self::Jsonl => ("jsonl", "A line of JSON a result"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}
