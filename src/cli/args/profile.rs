//! `profile`.

use crate::plan::StepKind;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Clone, Args)]
pub struct ProfileArgs {
    /// The profiler
    #[arg(long, value_name = "TOOL", default_value = "systems")]
    pub tool: Tool,
    /// The report, with or without its ending [default: tailgraph-systems or tailgraph-compute]
    #[arg(long, short, value_name = "PATH")]
    pub output: Option<PathBuf>,
    /// Replace the report where it exists
    #[arg(long)]
    pub overwrite: bool,
    /// Print the command line instead of running it
    #[arg(long)]
    pub print: bool,
    #[command(flatten)]
    pub systems: SystemsArgs,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// What to run: a command of this program with its options, or another program
    #[arg(value_name = "COMMAND", last = true, required = true)]
    pub command: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Tool {
    /// Nsight Systems: a timeline of host and GPU
    Systems,
    /// Nsight Compute: counters of single kernels of one step
    Compute,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "With --tool systems")]
pub struct SystemsArgs {
    /// What is recorded
    #[arg(long, value_name = "RANGE", default_value = "run")]
    pub range: Range,
    /// Sample and show all processes, not this one alone (needs root, or perf_event_paranoid of 0 or less)
    #[arg(long)]
    pub system_wide: bool,
    /// Record each kernel of a graph by itself: slower, and only for graphs that the host launches
    #[arg(long)]
    pub nodes: bool,
    /// More options of nsys profile, quoted as in a shell. Each replaces this command's own option of that name
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub nsys: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Range {
    /// From loading the weights to the end
    Run,
    /// While requests are served
    Serve,
    /// The whole process
    All,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "With --tool compute")]
pub struct ComputeArgs {
    /// The stage whose step is profiled
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub stage: u32,
    /// The step's kind
    #[arg(long, value_name = "KIND", default_value = "decode", value_parser = kind_parser())]
    pub kind: StepKind,
    /// The bucket of the step, in tokens
    #[arg(long, value_name = "TOKENS", default_value_t = 1)]
    pub bucket: u32,
    /// Only kernels whose names match this regular expression, such as 'tg_linear.*'
    #[arg(long, value_name = "REGEX")]
    pub kernel: Option<String>,
    /// How many kernel launches to profile, counted over all steps of the bucket
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub launches: u32,
    /// How many of these launches to skip first
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub skip: u32,
    /// The counters: basic, detailed or full
    #[arg(long, value_name = "SET", default_value = "full")]
    pub set: String,
    /// More options of ncu, quoted as in a shell. Each replaces this command's own option of that name
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub ncu: Vec<String>,
}

pub(super) fn kind_parser() -> impl TypedValueParser<Value = StepKind> {
    PossibleValuesParser::new(StepKind::ALL.map(StepKind::name)).try_map(|name| {
        StepKind::ALL
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("unknown kind '{name}'"))
    })
}
