//! `bench limits`, `bench queue`, and what `--gpu-load` starts.

use super::PrintArgs;
use crate::bench::ranges::{self, List};
use clap::Args;

#[derive(Debug, Clone, Args)]
pub struct LimitsArgs {
    #[command(flatten)]
    pub print: PrintArgs,
    /// cuda, or cuda:N for a certain GPU
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    pub device: String,
}

#[derive(Debug, Clone, Args)]
pub struct QueueArgs {
    #[command(flatten)]
    pub print: PrintArgs,
    /// cuda, or cuda:N for a certain GPU
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    pub device: String,
    /// Items that are claimed
    #[arg(long, value_name = "N", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1..=1 << 28))]
    pub items: u32,
    /// Dependent steps of arithmetic of an item, in the mean; 0 is nothing but claiming
    #[arg(long, value_name = "LIST", value_parser = ranges::parse, default_value = "0,64,512")]
    pub rounds: List,
    /// Runs of each combination, after one that does not count; the median is shown
    #[arg(long, short, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
}

#[derive(Debug, Clone, Args)]
pub struct KeepBusyArgs {
    /// cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    pub device: String,
}
