//! The command line as clap sees it: what may be written, not yet what it means ([`super::settings`] checks).

use super::bench::args::BenchCommand;
use super::doctor::DoctorArgs;
use super::inspect::InspectArgs;
use super::profile::ProfileArgs;
use super::tune::TuneArgs;
use crate::error::{Error, Result};
use crate::io::fields::{
    MAX_STOP_BYTES, MAX_STOP_STRINGS, MIN_P, REPETITION_PENALTY, TEMPERATURE, TOP_P, parse_seed,
    parse_top_k,
};
use crate::io::row::{MAX_LOGPROBS, MAX_NEW_TOKENS, MAX_TIMEOUT_MS, Options};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

const EXIT_CODES: &str = "Exit codes: 0 all served, 1 fatal error, 2 wrong usage, 3 some rows failed, 4 --expect or a replay disagreed, 129, 130 and 143 ended by SIGHUP, SIGINT and SIGTERM. A reader of standard output that goes away ends it by SIGPIPE.";

/// Batches through LFM2-MoE language models.
#[derive(Debug, Parser)]
#[command(name = "tailgraph", version, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text for prompts or rows of JSON lines
    Generate(Box<GenerateArgs>),
    /// Compute the logits of token arrays, or compare them with expected ones
    Score(Box<ScoreArgs>),
    /// Measure throughput and latency over launch ways, batches, lengths and types, or compare two measurements
    Bench(Box<BenchCommand>),
    /// Show the plan of a model: operations, shapes, bytes, roofline times; and, with --device cuda, its captured graphs
    Inspect(Box<InspectCommand>),
    /// Measure which kernels serve each decode bucket best, and write a file that --kernel-file takes (GPUs only)
    Tune(Box<TuneArgs>),
    /// Run a command under Nsight Systems or Nsight Compute, or print how to
    Profile(ProfileArgs),
    /// Write a random preset to disk as a checkpoint
    Synth(SynthArgs),
    /// Run a recorded schedule again and compare the tokens
    Replay(ReplayArgs),
    /// Run a job, or take a recording of one, and write a timeline that ui.perfetto.dev opens
    Trace(Box<TraceArgs>),
    /// Make one HTML page of measurements and timelines, or a picture and a table of launch ways
    Report(ReportArgs),
    /// Say what this machine and this build can do, and what to do about each problem
    Doctor(Box<DoctorCommand>),
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the manual page, of the whole program or of one command
    Man {
        #[arg(value_name = "COMMAND")]
        page: Option<String>,
    },
}

/// Which model.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model and device")]
pub struct ModelArg {
    /// A checkpoint's directory, or random:PRESET[@SEED] where PRESET is tiny, lfm2-8b-a1b or a path to a
    /// config.json
    #[arg(long, value_name = "DIR|random:PRESET[@SEED]")]
    pub model: String,
}

/// What runs a model, and how.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model and device")]
pub struct RunArgs {
    /// cpu, cuda, or cuda:0,1 for certain GPUs [default: cuda where it can run, else cpu]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
    #[command(flatten)]
    pub precision: PrecisionArgs,
    /// Who launches the kernels (GPUs only)
    #[arg(long, value_name = "WAY")]
    pub launch: Option<Launch>,
    /// With --launch host-graph: launch the next decode step before the last is through, where no sequence can end in between
    #[arg(long)]
    pub ahead: bool,
    /// Give up where one step takes longer than this (GPUs only) [default: 60000]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=MAX_TIMEOUT_MS))]
    pub step_timeout_ms: Option<u64>,
    #[command(flatten)]
    pub buckets: BucketArgs,
}

/// The element type of a run.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model and device")]
pub struct PrecisionArgs {
    /// Type of matrix inputs, key-value pages and convolution state [default: f32 on the CPU, bf16 on GPUs]
    #[arg(long, value_name = "TYPE")]
    pub dtype: Option<Dtype>,
    /// Short for --dtype f16
    #[arg(long, conflicts_with = "dtype")]
    pub fp16: bool,
}

/// The plan files.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Model and device")]
pub struct BucketArgs {
    /// Bucket ladders and stages from this TOML file
    #[arg(long, value_name = "FILE")]
    pub bucket_file: Option<PathBuf>,
    /// Which kernels serve which bucket, from this TOML file, as `tune` writes it (GPUs only)
    #[arg(long, value_name = "FILE")]
    pub kernel_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Dtype {
    F32,
    Bf16,
    F16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Launch {
    HostKernels,
    HostGraph,
    DeviceGraph,
}

/// Where to keep the schedule of a run.
#[derive(Debug, Clone, Default, Args)]
pub struct RecordArg {
    /// Keep every request, turn of the scheduler and token in FILE, for `replay`; the scheduler waits for the writing
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
}

/// Sizes of the engine; `doctor` shows their arithmetic.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Sizes")]
pub struct EngineArgs {
    /// Sequences running at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_seqs: Option<u32>,
    /// Prompt and new tokens of one sequence together
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub max_context: Option<u32>,
    /// Tokens of one key-value page
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub page_tokens: Option<u32>,
    /// Rows of one step: running sequences and prompt chunks together
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub step_tokens: Option<u32>,
    /// Prompt chunks end on multiples of this
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub chunk_align: Option<u32>,
    /// Memory to use at most, such as 22GiB or 512MB
    #[arg(long, value_name = "SIZE")]
    pub memory_limit: Option<String>,
    /// Layer ranges that run as a pipeline
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub stages: Option<u32>,
}

/// Defaults for rows that do not say; generation_config.json's come after these.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Defaults for rows")]
pub struct SamplingArgs {
    /// Tokens to generate, at most [default: 128; in OpenAI rows what the format says: 16 for completions, what the
    /// context leaves for chat]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MAX_NEW_TOKENS as i64))]
    pub max_new_tokens: Option<u32>,
    /// 0 is greedy, and so is anything below 1e-5
    #[arg(long, value_name = "T", value_parser = |s: &str| TEMPERATURE.parse(s))]
    pub temperature: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all, and so does -1
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = parse_top_k)]
    pub top_k: Option<u32>,
    /// Keep the most likely tokens up to this probability; 1 keeps all, 0 the most likely one alone
    #[arg(long, value_name = "P", value_parser = |s: &str| TOP_P.parse(s))]
    pub top_p: Option<f32>,
    /// Drop tokens less likely than this share of the most likely; 0 keeps all
    #[arg(long, value_name = "P", value_parser = |s: &str| MIN_P.parse(s))]
    pub min_p: Option<f32>,
    /// Above 1: tokens already there become less likely
    #[arg(long, value_name = "X", value_parser = |s: &str| REPETITION_PENALTY.parse(s))]
    pub repetition_penalty: Option<f32>,
    /// Seed of the run: with a row's place in the input it keys the row's sampling, unless the row has a seed
    #[arg(long, value_name = "N", allow_negative_numbers = true, default_value_t = 0, value_parser = parse_seed)]
    pub seed: u64,
    /// End the text before this string; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = parse_stop)]
    pub stop: Vec<String>,
    /// End at these token ids
    #[arg(long, value_name = "ID", value_delimiter = ',')]
    pub stop_ids: Vec<u32>,
    /// Go on after end-of-sequence tokens [default: false; true for random: models]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub ignore_eos: Option<bool>,
    /// Give each token's logprob and this many alternatives (0 to 20)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=MAX_LOGPROBS as i64))]
    pub logprobs: Option<u32>,
    /// End a row after this time; one that still waits for a place ends once those before it have theirs
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=MAX_TIMEOUT_MS))]
    pub timeout_ms: Option<u64>,
}

/// A stop string as rows may have it.
fn parse_stop(text: &str) -> std::result::Result<String, String> {
    match text.len() {
        0 => Err("found an empty string, expected at least one character".to_owned()),
        1..=MAX_STOP_BYTES => Ok(text.to_owned()),
        bytes => Err(format!(
            "found a string of {bytes} bytes, expected at most {MAX_STOP_BYTES}"
        )),
    }
}

impl SamplingArgs {
    /// As options that rows fall back to. The run's seed is not among them: it does not replace a row's.
    ///
    /// # Errors
    /// More stop strings than a row may have.
    pub fn options(&self) -> Result<Options> {
        if self.stop.len() > MAX_STOP_STRINGS {
            return Err(Error::Usage(format!(
                "--stop: found {} strings, expected at most {MAX_STOP_STRINGS}",
                self.stop.len()
            )));
        }
        Ok(Options {
            max_new_tokens: self.max_new_tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            seed: None,
            stop: (!self.stop.is_empty()).then(|| self.stop.clone()),
            stop_ids: (!self.stop_ids.is_empty()).then(|| self.stop_ids.clone()),
            ignore_eos: self.ignore_eos,
            logprobs: self.logprobs,
            timeout_ms: self.timeout_ms,
        })
    }
}

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct GenerateArgs {
    /// Prompts; their texts are printed in blocks, an empty line between two
    #[arg(value_name = "PROMPT", conflicts_with = "input")]
    pub prompts: Vec<String>,
    /// Rows as JSON lines: {"id","prompt"}, {"id","input_ids"}, {"id","messages"} with options of the flags'
    /// names, or OpenAI batch rows [default: standard input]
    #[arg(long, short, value_name = "FILE|-")]
    pub input: Option<PathBuf>,
    /// Answers as JSON lines in input order; finished rows are in FILE.partial meanwhile [default: standard
    /// output]
    #[arg(long, short, value_name = "FILE|-")]
    pub output: Option<PathBuf>,
    /// Go on from FILE.partial, or from FILE: rows done are kept, rows that may succeed are tried again. Rows of a
    /// complete FILE are recognised by id alone
    #[arg(long, requires = "output")]
    pub resume: bool,
    /// Write over FILE.partial where it holds rows of an unfinished run
    #[arg(long, requires = "output", conflicts_with = "resume")]
    pub overwrite: bool,
    /// No progress and no summary on standard error
    #[arg(long, short)]
    pub quiet: bool,
    #[command(flatten)]
    pub record: RecordArg,
    #[command(flatten)]
    pub model: ModelArg,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ScoreArgs {
    /// Token arrays: .safetensors (prompt.{i} int32 [T], or input_ids [N,T]), .npy int32 [N,T], .bin raw int32
    /// with --shape, or JSON lines (any other name; - is standard input)
    #[arg(long, short, value_name = "FILE|-")]
    pub input: PathBuf,
    /// N,T of a .bin input
    #[arg(long, value_name = "N,T")]
    pub shape: Option<String>,
    /// A .safetensors file for logits.{i}, f32 [T,V]; with --logprobs JSON lines [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Positions to give logits of; `last` makes logits.{i} [V]
    #[arg(long, value_name = "WHICH", default_value = "all")]
    pub logits: Positions,
    /// Per-token logprobs and perplexity as JSON lines instead of logits
    #[arg(long)]
    pub logprobs: bool,
    /// Compare with logits.{i} of this .safetensors file; exit code 4 if they disagree
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// Relative error --expect allows [default: 1e-4 for f32, 5e-2 for bf16 and f16]
    #[arg(long, value_name = "X", requires = "expect")]
    pub tolerance: Option<f64>,
    /// No progress and no rates on standard error
    #[arg(long, short)]
    pub quiet: bool,
    #[command(flatten)]
    pub record: RecordArg,
    #[command(flatten)]
    pub model: ModelArg,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Positions {
    All,
    Last,
}

#[derive(Debug, Clone, Args)]
pub struct SynthArgs {
    /// random:PRESET[@SEED] where PRESET is tiny, lfm2-8b-a1b or a path to a config.json
    #[arg(long, value_name = "random:PRESET[@SEED]")]
    pub model: String,
    /// The directory to write; it must not exist yet, or be empty, or be an unfinished one of the same kind
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Size of one file of weights
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    pub shard_size: String,
    /// No progress on standard error
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ReplayArgs {
    /// What `generate --record` or `score --record` wrote
    #[arg(long, value_name = "FILE")]
    pub record: PathBuf,
    #[command(flatten)]
    pub model: ModelArg,
    /// cpu, cuda, or cuda:N for a certain GPU [default: cuda where it can run, else cpu]
    #[arg(long, value_name = "DEVICE", help_heading = "Model and device")]
    pub device: Option<String>,
    #[command(flatten)]
    pub precision: PrecisionArgs,
    /// host-kernels or host-graph (GPUs only) [default: host-kernels]
    #[arg(long, value_name = "WAY", help_heading = "Model and device")]
    pub launch: Option<Launch>,
    /// The file of kernel variants that the recorded run had
    #[arg(long, value_name = "FILE", help_heading = "Model and device")]
    pub kernel_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct TraceArgs {
    /// Prompts; their texts are printed as `generate` does
    #[arg(value_name = "PROMPT", conflicts_with_all = ["input", "from"])]
    pub prompts: Vec<String>,
    /// The trace, as JSON of Chrome's trace event format
    #[arg(long, short, value_name = "FILE")]
    pub output: PathBuf,
    /// Run nothing: make the trace of a run that `generate --record` or `score --record` kept
    #[arg(long, value_name = "RECORD", conflicts_with_all = ["model", "input", "answers", "record"])]
    pub from: Option<PathBuf>,
    /// Each step's kernels too (on the CPU its operations), timed where they run; ends with a table of what each operation
    /// took against its floor
    #[arg(long, conflicts_with = "from")]
    pub kernels: bool,
    /// Rows as JSON lines, as `generate` takes them [default: standard input]
    #[arg(long, short, value_name = "FILE|-")]
    pub input: Option<PathBuf>,
    /// Where the answers go, as of `generate --output` [default: standard output]
    #[arg(long, value_name = "FILE|-")]
    pub answers: Option<PathBuf>,
    /// Write over the answers of an unfinished run, in FILE.partial beside --answers
    #[arg(long, requires = "answers")]
    pub overwrite: bool,
    /// No progress and no summary on standard error
    #[arg(long, short)]
    pub quiet: bool,
    #[command(flatten)]
    pub record: RecordArg,
    /// A checkpoint's directory, or random:PRESET[@SEED] where PRESET is tiny, lfm2-8b-a1b or a path to a
    /// config.json
    #[arg(
        long,
        value_name = "DIR|random:PRESET[@SEED]",
        help_heading = "Model and device",
        required_unless_present = "from"
    )]
    pub model: Option<String>,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("made").required(true).multiple(true).args(["output", "svg", "table"])))]
pub struct ReportArgs {
    /// JSON of `bench` or of `trace`
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The page: all that is in the files
    #[arg(long, short, value_name = "FILE.html")]
    pub output: Option<PathBuf>,
    /// For a README: a picture of the launch ways side by side, of the steps that `bench decode` or `bench launch` timed
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,
    /// The same as a Markdown table; - is standard output
    #[arg(long, value_name = "FILE.md|-")]
    pub table: Option<PathBuf>,
    /// The page's title
    #[arg(
        long,
        value_name = "TEXT",
        requires = "output",
        default_value = "tailgraph: what was measured"
    )]
    pub title: String,
}

#[derive(Debug, Clone, Args)]
pub struct InspectCommand {
    #[command(flatten)]
    pub inspect: InspectArgs,
    #[command(flatten)]
    pub model: ModelArg,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Clone, Args)]
pub struct DoctorCommand {
    #[command(flatten)]
    pub doctor: DoctorArgs,
    /// Also say whether this model fits: a checkpoint's directory, or random:PRESET[@SEED]
    #[arg(long, value_name = "DIR|random:PRESET[@SEED]")]
    pub model: Option<String>,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}
