//! `bench gemm`.

use super::PrintArgs;
use crate::bench::ranges::List;
use crate::command::args::{ModelArg, TimedArgs};
use crate::model::DType;
use clap::Args;

#[derive(Debug, Clone, Args)]
pub struct GemmArgs {
    #[command(flatten)]
    pub print: PrintArgs,
    /// Rows of the steps: decode steps where their ladder has as many, else one prompt of so many tokens
    #[arg(long, value_name = "LIST", value_parser = super::positive, default_value = "1-8192*2")]
    pub rows: List,
    /// Runs of each row count, of some 20 steps that decode or 4 of one prompt
    #[arg(long, short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    #[command(flatten)]
    pub model: ModelArg,
    /// cpu, cuda, or cuda:N for a certain GPU [default: cuda where it can run, else cpu]
    #[arg(long, value_name = "DEVICE", help_heading = "Model and device")]
    pub device: Option<String>,
    /// Types of matrix inputs [default: f32 on the CPU, bf16 on GPUs]
    #[arg(
        long,
        value_name = "TYPES",
        value_delimiter = ',',
        help_heading = "Model and device"
    )]
    pub dtype: Vec<DType>,
    #[command(flatten)]
    pub timed: TimedArgs,
}
