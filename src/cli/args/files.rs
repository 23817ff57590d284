//! Commands over files that runs leave, and the one that makes a model's.

use super::EXIT_CODES;
use crate::backend::LaunchWay;
use crate::command::args::{ModelArg, PrecisionArgs};
use crate::command::values::of_a_replay;
use crate::model::WeightsAs;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub struct ReplayArgs {
    /// What `generate --record` or `score --record` wrote. Of several devices: the same FILE, and each device's is replayed
    #[arg(long, value_name = "FILE")]
    pub record: PathBuf,
    #[command(flatten)]
    pub model: ModelArg,
    /// cpu, cuda, or cuda:N for a certain GPU [default: cuda where it can run, else cpu]
    #[arg(long, value_name = "DEVICE", help_heading = "Model and device")]
    pub device: Option<String>,
    #[command(flatten)]
    pub precision: PrecisionArgs,
    /// How the host launches each step (GPUs only) [default: host-kernels]
    #[arg(long, value_name = "WAY", value_parser = of_a_replay(), help_heading = "Model and device")]
    pub launch: Option<LaunchWay>,
    /// The file of kernel variants that the recorded run had
    #[arg(long, value_name = "FILE", help_heading = "Model and device")]
    pub kernel_file: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(group(clap::ArgGroup::new("made").required(true).multiple(true).args(["output", "svg"])))]
pub struct ReportArgs {
    /// JSON of `bench` or of `trace`
    #[arg(value_name = "FILE", required = true)]
    pub inputs: Vec<PathBuf>,
    /// The page to write; - is standard output
    #[arg(long, short, value_name = "FILE.html|-")]
    pub output: Option<PathBuf>,
    /// A picture of the launch ways side by side, from results of `bench decode`; - is standard output
    #[arg(long, value_name = "FILE.svg|-")]
    pub svg: Option<PathBuf>,
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
#[command(after_help = EXIT_CODES)]
pub struct MergeArgs {
    /// The files of all runs with --shard, in any order; each has its SHARD.shard.json beside it
    #[arg(value_name = "SHARD", required = true)]
    pub shards: Vec<PathBuf>,
    /// Write the joined rows to FILE, as one run of all rows would have. A FILE named .gz or .zst is compressed; SHARDs may be too
    #[arg(long, short, value_name = "FILE|-")]
    pub output: PathBuf,
    /// Write rows in error to this file instead of --output; it is empty where there are none
    #[arg(long, value_name = "FILE")]
    pub errors: Option<PathBuf>,
    /// Replace FILE, and that of --errors, where they are not empty
    #[arg(long)]
    pub overwrite: bool,
    /// No summary on standard error
    #[arg(long, short)]
    pub quiet: bool,
}

#[derive(Debug, Clone, Args)]
pub struct SynthArgs {
    /// random:PRESET[@SEED] where PRESET is tiny, lfm2-8b-a1b, lfm2.5-8b-a1b, lfm2-24b-a2b, lfm2.5-24b-a2b or a path to a
    /// config.json
    #[arg(long, short, value_name = "MODEL")]
    pub model: String,
    /// The directory to write: new or empty, not the current one, not a mount point. Until it is whole it is DIR.partial
    #[arg(long, short, value_name = "DIR")]
    pub output: PathBuf,
    /// Format of the weights to write: fp8 has projections in e4m3 with a scale for each output channel, in compressed-tensors'
    /// layout [default: as-is, which is bf16]
    #[arg(long, value_name = "FORMAT")]
    pub weights: Option<WeightsAs>,
    /// Size of one file of weights
    #[arg(long, value_name = "SIZE", default_value = "5GB")]
    pub shard_size: String,
    /// No progress on standard error
    #[arg(long, short)]
    pub quiet: bool,
}
