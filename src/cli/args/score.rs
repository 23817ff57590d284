//! `score`.

use super::EXIT_CODES;
use super::prompts::ClockArg;
use crate::command::args::{EngineArgs, ModelArg, RecordArg, RunArgs, TextArgs};
use crate::command::values::Positions;
use crate::io::shard::Shard;
use clap::Args;
use std::path::PathBuf;

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
    /// Write the logits to this .safetensors file, as logits.{i}, f32 [T,V]; with --logprobs write JSON lines, compressed where
    /// FILE is named .gz or .zst [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// With --logprobs, write rows in error to this file instead of --output; it is empty where there are none. With --shard, give
    /// --errors to `merge` instead
    #[arg(
        long,
        value_name = "FILE",
        requires = "logprobs",
        conflicts_with = "shard"
    )]
    pub errors: Option<PathBuf>,
    /// Replace FILE, and that of --errors, where they are not empty
    #[arg(long)]
    pub overwrite: bool,
    /// Positions whose logits are wanted; with `last`, logits.{i} is [V]
    #[arg(long, value_name = "WHICH", default_value = "all")]
    pub logits: Positions,
    /// Per-token logprobs and perplexity as JSON lines instead of logits
    #[arg(long)]
    pub logprobs: bool,
    /// Compare with logits.{i} of this .safetensors file; exit code 4 if they disagree
    #[arg(long, value_name = "FILE")]
    pub expect: Option<PathBuf>,
    /// The relative error that --expect allows [default: 1e-4 for f32, 5e-2 for bf16 and f16]
    #[arg(long, value_name = "X", requires = "expect")]
    pub tolerance: Option<f64>,
    /// Score every N-th sample, from sample I (counted from 0) on. FILE.shard.json says so, and `merge` joins the shards
    #[arg(long, value_name = "I/N", requires = "output", value_parser = Shard::parse)]
    pub shard: Option<Shard>,
    /// Check all rows, and print the tokens, memory and time that a run would take. Nothing is written. For the time, the model is
    /// loaded and a few steps are run
    #[arg(long, conflicts_with_all = ["shard", "record", "expect"])]
    pub dry_run: bool,
    #[command(flatten)]
    pub clock: ClockArg,
    /// No progress and no rates on standard error
    #[arg(long, short)]
    pub quiet: bool,
    #[command(flatten)]
    pub record: RecordArg,
    #[command(flatten)]
    pub text: TextArgs,
    #[command(flatten)]
    pub model: ModelArg,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}
