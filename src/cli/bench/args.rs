//! `bench` as clap sees it, and the combinations that its lists ask for.

use super::super::args::{
    BucketArgs, Dtype, EngineArgs, Launch, Positions, PrecisionArgs, RunArgs,
};
use crate::bench::output::Format;
use crate::bench::ranges::{self, List};
use crate::bench::{Kind, Point};
use crate::error::{Error, Result};
use clap::{Args, Subcommand, ValueEnum};
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
}

#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// Results of `bench -o json` or `-o jsonl`: what is compared with
    pub a: PathBuf,
    /// ... and what is compared
    pub b: PathBuf,
    /// How to print it
    #[arg(long, short, value_name = "FORMAT", default_value = "md")]
    pub output: Format,
}

/// Who launches, the host that runs ahead included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Way {
    /// A step's graph, launched again and again by the host with nobody scheduling; of `decode` and `launch`
    Bare,
    HostKernels,
    HostGraph,
    /// host-graph with --ahead
    HostGraphAhead,
    DeviceGraph,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::HostKernels => "host-kernels",
            Self::HostGraph => "host-graph",
            Self::HostGraphAhead => "host-graph-ahead",
            Self::DeviceGraph => "device-graph",
        }
    }

    /// As `--launch` and `--ahead` of other commands.
    fn flags(self) -> (Launch, bool) {
        match self {
            Self::HostKernels => (Launch::HostKernels, false),
            // Its graphs are those that the host launches.
            Self::Bare | Self::HostGraph => (Launch::HostGraph, false),
            Self::HostGraphAhead => (Launch::HostGraph, true),
            Self::DeviceGraph => (Launch::DeviceGraph, false),
        }
    }
}

fn positive(text: &str) -> std::result::Result<List, String> {
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
    /// How to print the results
    #[arg(long, short, value_name = "FORMAT", default_value = "md")]
    pub output: Format,
    /// No progress on standard error
    #[arg(long, short)]
    pub quiet: bool,

    /// A checkpoint's directory, or random:PRESET[@SEED] (see `generate --help`) [not for `launch`: required]
    #[arg(
        long,
        value_name = "DIR|random:PRESET[@SEED]",
        help_heading = "Model and device"
    )]
    pub model: Option<String>,
    /// cpu, cuda, or cuda:N for a certain GPU [default: cuda where it can run, else cpu]
    #[arg(long, value_name = "DEVICE", help_heading = "Model and device")]
    pub device: Option<String>,
    /// Ways to launch (GPUs only) [default: device-graph; launch: all of them, always with bare]
    #[arg(
        long,
        value_name = "WAYS",
        value_delimiter = ',',
        help_heading = "Model and device"
    )]
    pub launch: Vec<Way>,
    /// Types of matrix inputs, key-value pages and convolution state [default: f32 on the CPU, bf16 on GPUs]
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        help_heading = "Model and device"
    )]
    pub dtype: Vec<Dtype>,
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

    /// Sequences at once; prompts for `score`, most sequences at once for `serve` [default: 1,8,32; prefill 1; score 1024; serve 32]
    #[arg(long, short, value_name = "LIST", value_parser = positive, help_heading = "Workload")]
    pub batch: Option<List>,
    /// Tokens of each prompt [default: 32; prefill 512; serve 128]
    #[arg(long, short = 'p', value_name = "LIST", value_parser = positive, help_heading = "Workload", conflicts_with = "context")]
    pub prompt_len: Option<List>,
    /// Tokens to generate for each [default: 128; serve 64; prefill always 1, score none]
    #[arg(long, short = 'n', value_name = "LIST", value_parser = positive, help_heading = "Workload")]
    pub gen_len: Option<List>,
    /// Instead of --prompt-len: tokens of a sequence at its end, the generated ones included
    #[arg(long, value_name = "LIST", value_parser = positive, help_heading = "Workload")]
    pub context: Option<List>,
    /// Threads that spin meanwhile
    #[arg(long, value_name = "LIST", value_parser = ranges::parse, default_value = "0", help_heading = "Workload")]
    pub cpu_load: List,
    /// `serve`: requests a second, arriving as a Poisson process; inf is all at once
    #[arg(long, value_name = "RATES", value_delimiter = ',', value_parser = rate, help_heading = "Workload")]
    pub request_rate: Vec<f64>,
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
    /// `launch`: small kernels of a step, at least 4
    #[arg(long, value_name = "LIST", value_parser = positive, default_value = "4,123", help_heading = "Workload")]
    pub kernels: List,
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

fn usage<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Usage(message.into()))
}

impl BenchArgs {
    /// Refuses options that the kind has no use for.
    pub fn check(&self) -> Result<()> {
        let (kind, name) = (self.kind, self.kind.name());
        let only = |given: bool, option: &str, of: Kind| match given && kind != of {
            true => usage(format!(
                "{option}: an option of `bench {}`, found `bench {name}`",
                of.name()
            )),
            false => Ok(()),
        };
        only(!self.request_rate.is_empty(), "--request-rate", Kind::Serve)?;
        only(self.arrivals.is_some(), "--arrivals", Kind::Serve)?;
        only(self.num_prompts.is_some(), "--num-prompts", Kind::Serve)?;
        only(self.trace.is_some(), "--trace", Kind::Decode)?;
        only(self.input.is_some(), "--input", Kind::Score)?;
        only(self.logits != Positions::All, "--logits", Kind::Score)?;
        only(self.kernels.0 != [4, 123], "--kernels", Kind::Launch)?;
        let bare = self.launch.contains(&Way::Bare);
        if bare && !matches!(kind, Kind::Decode | Kind::Launch) {
            return usage(format!(
                "--launch bare: a way of `bench decode` and `bench launch`, found `bench {name}`, which needs a scheduler"
            ));
        }
        match kind {
            Kind::Serve if self.request_rate.is_empty() && self.arrivals.is_none() => {
                usage("bench serve: expected --request-rate or --arrivals")
            }
            Kind::Serve if self.arrivals.is_some() && self.num_prompts.is_some() => {
                usage("--num-prompts: the file of --arrivals says how many there are")
            }
            Kind::Prefill | Kind::Score if self.gen_len.is_some() => usage(format!(
                "--gen-len: `bench {name}` generates nothing that is measured"
            )),
            Kind::Launch => self.check_launch(),
            _ if self.model.is_none() => usage(format!(
                "bench {name}: expected --model DIR or --model random:PRESET[@SEED]"
            )),
            _ => Ok(()),
        }
    }

    /// Steps of kernels without a model have no model's sizes.
    fn check_launch(&self) -> Result<()> {
        let EngineArgs {
            max_seqs,
            max_context,
            page_tokens,
            step_tokens,
            chunk_align,
            memory_limit,
            stages,
        } = &self.engine;
        let sizes = [
            max_seqs,
            max_context,
            page_tokens,
            step_tokens,
            chunk_align,
            stages,
        ];
        for (given, option) in [
            (self.model.is_some(), "--model"),
            (!self.dtype.is_empty(), "--dtype"),
            (!self.bucket_file.is_empty(), "--bucket-file"),
            (!self.kernel_file.is_empty(), "--kernel-file"),
            (self.prompt_len.is_some(), "--prompt-len"),
            (self.context.is_some(), "--context"),
            (self.bandwidth.is_some(), "--bandwidth"),
            (self.tflops.is_some(), "--tflops"),
            (
                sizes.iter().any(|size| size.is_some()) || memory_limit.is_some(),
                "the sizes of an engine",
            ),
        ] {
            if given {
                return usage(format!("{option}: `bench launch` runs no model"));
            }
        }
        Ok(())
    }

    /// All combinations of launch, type, bucket file and kernel file, as the flags of other commands.
    pub fn settings(&self) -> Vec<(Option<Way>, RunArgs)> {
        let launches = options(&self.launch);
        let dtypes = options(&self.dtype);
        let files: Vec<BucketArgs> = options(&self.bucket_file)
            .into_iter()
            .flat_map(|bucket_file| {
                let kernel_files = options(&self.kernel_file).into_iter();
                kernel_files.map(move |kernel_file| BucketArgs {
                    bucket_file: bucket_file.clone(),
                    kernel_file,
                })
            })
            .collect();
        let mut settings = Vec::new();
        for &way in &launches {
            for &dtype in &dtypes {
                for buckets in &files {
                    let flags = way.map(Way::flags);
                    let run = RunArgs {
                        device: self.device.clone(),
                        precision: PrecisionArgs { dtype, fp16: false },
                        launch: flags.map(|(launch, _)| launch),
                        ahead: flags.is_some_and(|(_, ahead)| ahead),
                        step_timeout_ms: None,
                        buckets: buckets.clone(),
                    };
                    settings.push((way, run));
                }
            }
        }
        settings
    }

    /// All combinations of batch, lengths, rate and load.
    pub fn points(&self) -> Result<Vec<Point>> {
        let kind = self.kind;
        let (batches, prompts, news): (&[u32], u32, u32) = match kind {
            Kind::Decode => (&[1, 8, 32], 32, 128),
            Kind::Prefill => (&[1], 512, 1),
            Kind::Score => (&[1024], 32, 0),
            Kind::Serve => (&[32], 128, 64),
            Kind::Launch => (&[1, 32, 256], 4, 1000),
        };
        let list = |given: &Option<List>, default: &[u32]| {
            given
                .as_ref()
                .map_or_else(|| default.to_vec(), |l| l.0.clone())
        };
        let rates = options(&self.request_rate);
        let mut points = Vec::new();
        for batch in list(&self.batch, batches) {
            for new_tokens in list(&self.gen_len, &[news]) {
                for prompt_tokens in self.prompts(prompts, new_tokens)? {
                    for &rate in &rates {
                        for &cpu_load in &self.cpu_load.0 {
                            points.push(Point {
                                kind,
                                batch,
                                prompt_tokens,
                                new_tokens,
                                rate,
                                cpu_load,
                            });
                        }
                    }
                }
            }
        }
        Ok(points)
    }

    fn prompts(&self, default: u32, new_tokens: u32) -> Result<Vec<u32>> {
        let Some(context) = &self.context else {
            return Ok(self
                .prompt_len
                .as_ref()
                .map_or_else(|| vec![default], |list| list.0.clone()));
        };
        let prompt = |&context: &u32| match context.checked_sub(new_tokens) {
            None | Some(0) => usage(format!(
                "--context {context}: expected more than the {new_tokens} tokens that are generated"
            )),
            Some(prompt) => Ok(prompt),
        };
        context.0.iter().map(prompt).collect()
    }
}

/// Each of `values`, or nothing once where there are none.
fn options<T: Clone>(values: &[T]) -> Vec<Option<T>> {
    match values {
        [] => vec![None],
        values => values.iter().cloned().map(Some).collect(),
    }
}
