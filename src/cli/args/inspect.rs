//! `inspect`.

use super::profile::kind_parser;
use crate::backend::cuda::tuning::gpu::{GPUS, Gpu};
use crate::command::args::{EngineArgs, ModelArg, RunArgs};
use crate::plan::StepKind;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

#[derive(Debug, Clone, Args)]
pub struct InspectArgs {
    /// The file to write [default: standard output]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// The GPU whose roofline times are shown [default: that of --device where it is known, else h200]
    #[arg(long, value_name = "NAME", value_parser = gpu_parser())]
    pub gpu: Option<&'static Gpu>,
    /// The kind of step
    #[arg(long, value_name = "KIND", default_value = "decode", value_parser = kind_parser())]
    pub kind: StepKind,
    /// Tokens of the steps, such as 1,8,32 [default: 1,8,32,128,256 for decode, else the buckets]
    #[arg(long = "tokens", alias = "rows", value_name = "LIST", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: Vec<u32>,
    /// Tokens of each sequence after the step
    #[arg(long, value_name = "TOKENS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    pub context: u32,
    /// List the kernel calls of each step on a GPU like --gpu; no GPU is needed
    #[arg(long)]
    pub calls: bool,
    /// How to print it
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub format: Format,
    /// Short for --format json
    #[arg(long, conflicts_with = "format")]
    pub json: bool,
    #[command(flatten)]
    pub model: ModelArg,
    #[command(flatten)]
    pub run: RunArgs,
    #[command(flatten)]
    pub engine: EngineArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A table for people
    Text,
    /// For programs
    Json,
    /// The plan for Graphviz
    Dot,
}

fn gpu_parser() -> impl TypedValueParser<Value = &'static Gpu> {
    PossibleValuesParser::new(GPUS.map(|gpu| gpu.name)).try_map(|name| Gpu::by_name(&name))
}
