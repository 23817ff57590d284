//! The command line as clap sees it: what may be written, which `spec` and the commands then check. Completions and
//! manual pages are made of it.
//!
//! - here: the program and its commands
//! - [`crate::command::args`] has the flags that several commands share
//! - [`rows`]: `generate` and `trace`, [`prompts`] of them; [`files`]: `merge`, `replay`, `report` and `synth`; the others have a file of their name
#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "comments here are help texts, and their brackets are no links"
)]

pub mod doctor;
pub mod files;
pub mod inspect;
pub mod profile;
pub mod prompts;
pub mod rows;
pub mod score;
#[cfg(feature = "server")]
pub mod serve;
pub mod tune;

pub use crate::bench::BenchCommand;
pub use crate::command::args::{
    BucketArgs, EngineArgs, ModelArg, PrecisionArgs, RecordArg, RunArgs, TextArgs, TimedArgs,
};
pub use doctor::DoctorCommand;
pub use files::{MergeArgs, ReplayArgs, ReportArgs, SynthArgs};
pub use inspect::InspectArgs;
pub use profile::ProfileArgs;
pub use prompts::{ClockArg, PromptArgs};
pub use rows::{GenerateArgs, SamplingArgs, TraceArgs};
pub use score::ScoreArgs;
#[cfg(feature = "server")]
pub use serve::ServeArgs;
pub use tune::TuneArgs;

use clap::{Parser, Subcommand};

pub(super) const EXIT_CODES: &str = "Exit codes: 0 all served, 1 fatal error, 2 wrong usage, 3 some rows failed, 4 --expect or a replay disagreed, 129, 130 and 143 ended by SIGHUP, SIGINT and SIGTERM. Where the reader of standard output goes away, the run ends by SIGPIPE.";

/// Batches through LFM2-MoE language models.
#[derive(Debug, Parser)]
#[command(name = "tailgraph", version = env!("TAILGRAPH_VERSION"), disable_version_flag = true, after_help = EXIT_CODES, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
    /// Print version
    #[arg(long, short = 'V', short_alias = 'v', action = clap::ArgAction::Version)]
    pub version: Option<bool>,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text for prompts or rows of JSON lines
    Generate(Box<GenerateArgs>),
    /// Compute the logits of token arrays, or compare them with expected ones
    Score(Box<ScoreArgs>),
    /// Answer requests over HTTP, as the OpenAI interface has them
    #[cfg(feature = "server")]
    Serve(Box<ServeArgs>),
    /// Join the outputs of --shard runs into the file that one run writes
    Merge(MergeArgs),
    /// Measure throughput and latency over launch ways, batches, lengths and types, or compare two measurements
    Bench(Box<BenchCommand>),
    /// Show the plan of a model: operations, shapes, bytes, roofline times; and, with --device cuda, its captured graphs
    Inspect(Box<InspectArgs>),
    /// Measure which kernels serve each decode bucket best, and write a file that --kernel-file takes (GPUs only)
    Tune(Box<TuneArgs>),
    /// Run a command under Nsight Systems or Nsight Compute, or print how to
    Profile(ProfileArgs),
    /// Write a random preset to disk as a checkpoint
    Synth(SynthArgs),
    /// Run a recorded schedule again and compare the tokens
    Replay(ReplayArgs),
    /// Write a timeline of a run, or of a recorded one, for ui.perfetto.dev
    Trace(Box<TraceArgs>),
    /// Make one HTML page of measurements and timelines, or a picture of launch ways
    Report(ReportArgs),
    /// Check this machine and this build, measure links between GPUs, and say what to do about each problem
    Doctor(Box<DoctorCommand>),
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the manual page, of the whole program or of one command
    Man {
        #[arg(value_name = "COMMAND")]
        page: Option<String>,
    },
}
