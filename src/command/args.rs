//! Flags that several commands share: which model, on what it runs, how large.

use super::values::{of_a_run, parse_seconds, parse_tokens};
use crate::backend::{Handover, LaunchWay, Parallel};
use crate::io::row::MAX_TIMEOUT_MS;
use crate::model::{DType, WeightsAs};
use crate::plan::Activations;
use crate::text::threads;
use clap::Args;
use std::path::PathBuf;
use std::time::Duration;

/// Which model.
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "its help has brackets that are no links"
)]
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model and device")]
pub struct ModelArg {
    /// A checkpoint's directory; or a name on the Hugging Face hub, ORG/NAME[@REVISION] (HF_HOME, HF_ENDPOINT, HF_TOKEN and
    /// HF_HUB_OFFLINE apply); or random weights, random:PRESET[@SEED], where PRESET is tiny, lfm2-8b-a1b, lfm2.5-8b-a1b,
    /// lfm2-24b-a2b, lfm2.5-24b-a2b or the path of a config.json
    #[arg(long, short, value_name = "MODEL", display_order = 0)]
    pub model: String,
}

/// What runs a model, and how.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model and device")]
pub struct RunArgs {
    /// cpu, cuda, or a list: cuda:0,1 are two GPUs, cpu:0,1 two engines on the CPU [default: cuda where it can run, else cpu]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    /// How several devices share the work: as replicas each has the whole model and takes rows from one queue; as stages each has
    /// some of the layers [default: replicas]
    #[arg(long, value_name = "HOW")]
    pub parallel: Option<Parallel>,
    /// How stages on GPUs hand steps on: straight to the next GPU (peer), or through the host's memory [default: peer where the
    /// GPUs reach each other's memory, else host]
    #[arg(long, value_name = "WAY")]
    pub handover: Option<Handover>,
    #[command(flatten)]
    pub precision: PrecisionArgs,
    /// Who launches the kernels (GPUs only) [default: device-graph]
    #[arg(long, value_name = "WAY", value_parser = of_a_run())]
    pub launch: Option<LaunchWay>,
    /// End the run if one step takes longer than this (GPUs only) [default: 60000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=MAX_TIMEOUT_MS))]
    pub step_timeout_ms: Option<u64>,
    #[command(flatten)]
    pub buckets: BucketArgs,
}

/// The types of a run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model and device")]
pub struct PrecisionArgs {
    /// Type of activations, keys and values, and convolution state [default: f32 on the CPU, bf16 on GPUs]
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<DType>,
    /// Short for --dtype f16
    #[arg(long, conflicts_with = "dtype")]
    pub fp16: bool,
    /// Format of the weights: as-is is the checkpoint's; bf16 expands those in 8 bits (GPUs need it where scales are for blocks);
    /// fp8 makes projections e4m3, which is 8 bits, with a scale for each output channel (not with f16 on GPUs) [default: as-is]
    #[arg(long, value_name = "FORMAT")]
    pub weights: Option<WeightsAs>,
    /// Format of the activations that steps with more than 1,024 tokens of prompts multiply with weights in 8 bits: fp8 is e4m3, with a scale
    /// for each 128 (GPUs of compute capability 9.0, with --dtype bf16); as-is is that of --dtype [default: as-is]
    #[arg(long, value_name = "FORMAT")]
    pub activations: Option<Activations>,
}

/// The plan files.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model and device")]
pub struct BucketArgs {
    /// Bucket sizes and stages from this TOML file
    #[arg(long, value_name = "FILE")]
    pub bucket_file: Option<PathBuf>,
    /// Which kernels serve which bucket: a TOML file that `tune` wrote (GPUs only)
    #[arg(long, value_name = "FILE")]
    pub kernel_file: Option<PathBuf>,
}

/// Where to keep the schedule of a run.
#[derive(Debug, Clone, Default, Args)]
pub struct RecordArg {
    /// Record every request, scheduler turn and token in FILE, for `replay` and `trace`. Of several devices each has a file:
    /// run.0.jsonl of run.jsonl. A slow disk slows the run
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// How long text work may take.
#[derive(Debug, Clone, Default, Args)]
pub struct TextArgs {
    /// Time that a row's template and tokenizer may take; past it the row fails [default: 5]
    #[arg(long, value_name = "SECONDS", value_parser = |s: &str| parse_seconds(s, 0.001..=86400.0))]
    pub text_timeout: Option<Duration>,
}

impl TextArgs {
    pub fn timeout(&self) -> Duration {
        self.text_timeout.unwrap_or(threads::DEFAULT_LIMIT)
    }
}

/// Sizes of the engine; `doctor` shows their arithmetic.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sizes")]
pub struct EngineArgs {
    /// Sequences running at once [default: 16 on a CPU; on a GPU as many as fit its memory with a full context each, up to
    /// 1024, and no more than the job has]
    #[arg(long, visible_alias = "max-num-seqs", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_seqs: Option<u32>,
    /// The most tokens of one sequence, prompt and answer together [default: as many as the model allows and the memory holds, up
    /// to 4096; `score`: its longest prompt]
    #[arg(long, visible_alias = "max-model-len", value_name = "TOKENS", value_parser = |s: &str| parse_tokens(s, u32::MAX))]
    pub max_context: Option<u32>,
    /// Tokens of one key-value page, 16 to 256 [default: 64]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub page_tokens: Option<u32>,
    /// The most tokens in one step, decode and prefill together [default: 512 on a CPU; on a GPU 8192, halved until
    /// their activations take a 16th of its memory at most]
    #[arg(long, value_name = "TOKENS", value_parser = |s: &str| parse_tokens(s, u32::MAX))]
    pub step_tokens: Option<u32>,
    /// The most prefill tokens in a mixed step, so that running sequences do not wait for long prompts [default: the larger of 512
    /// and an eighth of the prompt tokens that are yet to be read; `generate` and `trace`: as many as fit]
    #[arg(long, value_name = "TOKENS", value_parser = |s: &str| parse_tokens(s, u32::MAX))]
    pub chunk_tokens: Option<u32>,
    /// Chunks of a prompt end at multiples of this [default: 64]
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk_align: Option<u32>,
    /// Compute every prompt by itself, also where prompts begin alike
    #[arg(long)]
    pub no_prefix_sharing: bool,
    /// The most memory to use, such as 22GiB or 512MB [default: 90% of what is free on a GPU, 80% of what is available to a CPU]
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,
    /// Ranges of layers that the model is cut into, which run as a pipeline [default: one for each device]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub stages: Option<u32>,
}

/// What commands share that time the steps of one model in each of several types: `bench kernel` and `tune`.
#[derive(Debug, Clone, Args)]
pub struct TimedArgs {
    #[command(flatten)]
    pub model: ModelArg,
    /// cpu, cuda, or cuda:N for a certain GPU [default: cuda where it can run, else cpu]
    #[arg(long, value_name = "DEVICE", help_heading = "Model and device")]
    pub device: Option<String>,
    /// The seed of the prompts
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// No progress on standard error
    #[arg(long, short)]
    pub quiet: bool,
    #[command(flatten)]
    pub buckets: BucketArgs,
    /// Format of the weights (see `generate --help`) [default: as-is]
    #[arg(long, value_name = "FORMAT", help_heading = "Model and device")]
    pub weights: Option<WeightsAs>,
    /// Memory to use at most, such as 22GiB or 512MB
    #[arg(long, value_name = "SIZE", help_heading = "Sizes")]
    pub memory_limit: Option<String>,
}
