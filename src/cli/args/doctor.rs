//! `doctor`.

use crate::command::args::{EngineArgs, RunArgs};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Clone, Args)]
pub struct DoctorCommand {
    /// How to print it
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// Short for --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
    /// The file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Also say whether this model fits: a checkpoint's directory, ORG/NAME[@REVISION] or random:PRESET[@SEED]
    #[arg(long, short, value_name = "MODEL")]
    pub model: Option<String>,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

impl DoctorCommand {
    pub fn format(&self) -> Format {
        if self.json { Format::Json } else { self.format }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}
