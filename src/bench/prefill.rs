//! `bench prefill`: prompts up to their first token.

use super::args::{LISTS, Points, SharedArgs, positive};
use super::kind::{Measurement, name_longest};
use super::output::Column;
use super::ranges::{self, Lengths, List};
use super::{Kind, Point};
use crate::error::Result;
use crate::plan::StepKind;
use clap::Args;

#[derive(Debug, Clone, Args)]
#[command(after_help = LISTS, next_help_heading = "Workload")]
pub struct PrefillArgs {
    /// Prompts at once
    #[arg(long, short, value_name = "LIST", value_parser = positive, default_value = "1")]
    batch: List,
    /// Tokens of each prompt; a plain range such as 100-2000 is one workload, whose lengths are drawn from it by the seed
    #[arg(long, short = 'p', value_name = "LIST", value_parser = ranges::lengths, default_value = "512", conflicts_with = "context")]
    prompt_len: Lengths,
    /// Instead of --prompt-len: tokens of a sequence at its end, the first token included
    #[arg(long, value_name = "LIST", value_parser = positive)]
    context: Option<List>,
    #[command(flatten)]
    shared: SharedArgs,
}

/// The columns of prompts alone: `score` has them too.
pub const COLUMNS: &[Column] = &[
    Column::pair("t/s (mean ± sd)", ["avg_ts", " ± ", "stddev_ts"]).marked(),
    Column::text("valid", |row| {
        let valid = row["valid"].as_bool()?;
        Some(if valid { "VALID" } else { "INVALID" }.to_owned())
    }),
    Column::pair("top-1", ["top1_agreeing", "/", "top1_total"]),
    Column::field("TTFT ms p50", "median_ttft_ms"),
    Column::field("p99", "p99_ttft_ms"),
    Column::field("E2E ms p50", "median_e2el_ms").rank(4),
    Column::share("of floor", "floor_fraction"),
    Column::field("floor ms", "floor_ms").rank(1),
    Column::interval("TTFT 95% of p50", "median_ttft_ms_ci95"),
    Column::interval("of p99", "p99_ttft_ms_ci95"),
];

impl Measurement for PrefillArgs {
    fn kind(&self) -> Kind {
        Kind::Prefill
    }

    fn shared(&self) -> &SharedArgs {
        &self.shared
    }

    fn points(&self) -> Result<Vec<Point>> {
        let points = Points::of(Kind::Prefill)
            .each(&self.batch.0, |point, &batch| point.batch = batch)
            .each(&[1], |point, &new| point.new_tokens = new)
            .lengths(&self.prompt_len, self.context.as_ref())?;
        Ok(points.beside(&self.shared.measuring.cpu_load))
    }

    fn name_longest(&self, prompt: u32, new: u32) -> String {
        name_longest(self.context.is_some(), prompt, new, "its first token")
    }

    fn steps(&self) -> Vec<StepKind> {
        vec![StepKind::Mixed]
    }

    fn typical(&self, _point: &Point) -> Option<(StepKind, Option<u32>)> {
        Some((StepKind::Mixed, None))
    }
}
