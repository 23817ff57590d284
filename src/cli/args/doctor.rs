//! `doctor`.

use crate::command::args::{EngineArgs, RunArgs};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Clone, Args)]
pub struct DoctorCommand {
    #[command(flatten)]
    pub doctor: DoctorArgs,
    /// The file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also say whether this model fits: a checkpoint's directory, or random:PRESET[@SEED]
    #[arg(long, short, value_name = "MODEL")]
    pub model: Option<String>,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// The flags of `doctor` alone; model and sizes are shared ones.
#[derive(Debug, Clone, Args)]
pub struct DoctorArgs {
    /// How to print it
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// Short for --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}
