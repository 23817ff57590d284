//! `bench limits`, `bench queue`, `bench handover`, and what `--gpu-load` starts.

use super::{PrintArgs, above_zero, pause, positive};
use crate::backend::cuda::listed::handover::HandoverWay;
use crate::bench::ranges::{self, List};
use clap::Args;
use std::time::Duration;

const DEFAULT_STEPS: u64 = 1000;

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

fn handover_way(name: &str) -> Result<Vec<HandoverWay>, String> {
    let all = HandoverWay::ALL;
    if name == "all" {
        return Ok(all.to_vec());
    }
    let found = all.into_iter().find(|way| way.name() == name);
    found.map(|way| vec![way]).ok_or_else(|| {
        let names = all.map(HandoverWay::name).join(", ");
        format!("expected all, or some of {names}")
    })
}

#[derive(Debug, Clone, Args)]
#[command(after_help = handover_help())]
pub struct HandoverArgs {
    #[command(flatten)]
    pub print: PrintArgs,
    /// No progress on standard error
    #[arg(long, short)]
    pub quiet: bool,
    /// Two GPUs: the first hands rows to the second
    #[arg(long, value_name = "DEVICES", default_value = "cuda:0,1")]
    pub device: String,
    /// Ways to hand rows on, or to add them up; all leaves out those that the machine lacks something for, and says what
    #[arg(long, value_name = "WAYS", value_delimiter = ',', value_parser = handover_way, default_value = "all")]
    pub ways: Vec<Vec<HandoverWay>>,
    /// Rows of a step, of 2048 bf16 each
    #[arg(long, value_name = "LIST", value_parser = positive, default_value = "1,8,64,512")]
    pub rows: List,
    /// Threads that spin meanwhile, up to 4096
    #[arg(long, value_name = "LIST", value_parser = ranges::threads, default_value = "0")]
    pub cpu_load: List,
    /// Processes that keep each of the GPUs busy meanwhile
    #[arg(long, value_name = "LIST", value_parser = ranges::parse, default_value = "0")]
    pub gpu_load: List,
    /// Steps of each repeat
    #[arg(long, value_name = "N", default_value_t = DEFAULT_STEPS, value_parser = clap::value_parser!(u64).range(2..=1 << 20))]
    pub steps: u64,
    /// A repeat of a way ends sooner where it has taken so long
    #[arg(long, value_name = "SECONDS", value_parser = above_zero, default_value = "5")]
    pub most_seconds: f64,
    /// Runs of each combination; each makes every way ready anew
    #[arg(long, short, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub repeats: u32,
    /// Idle time before each run: a GPU that comes to its power limit slows down, and so the next run
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = pause)]
    pub pause: Duration,
}

fn handover_help() -> String {
    let ways = HandoverWay::ALL.map(|way| format!("  {:<21} {}\n", way.name(), way.about().does));
    format!("Ways:\n{}", ways.concat())
}

impl HandoverArgs {
    /// Each once, and whether all were asked for.
    pub fn ways(&self) -> (Vec<HandoverWay>, bool) {
        let asked = |way: &HandoverWay| self.ways.iter().flatten().any(|other| other == way);
        let ways: Vec<_> = HandoverWay::ALL.into_iter().filter(asked).collect();
        let all = self.ways.iter().any(|ways| ways.len() > 1);
        (ways, all)
    }
}

#[derive(Debug, Clone, Args)]
pub struct KeepBusyArgs {
    /// cuda or cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "cuda")]
    pub device: String,
}
