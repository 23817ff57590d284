//! `bench prefill`: prompts up to their first token.

use super::Kind;
use super::args::{LISTS, Measurement, SharedArgs, points, positive};
use super::output::Column;
use super::ranges::{self, Lengths, List};
use crate::plan::StepKind;
use clap::Args;

#[derive(Debug, Clone, Args)]
#[command(after_help = LISTS, next_help_heading = "Workload")]
pub struct PrefillArgs {
    /// Prompts at once
    #[arg(long, short, value_name = "LIST", value_parser = positive, default_value = "1")]
    batch: List,
    /// Tokens of each prompt. A plain range such as 100-2000 is one workload, of lengths drawn from it by the seed
    #[arg(long, short = 'p', value_name = "LIST", value_parser = ranges::lengths, default_value = "512")]
    prompt_len: Lengths,
    #[command(flatten)]
    shared: SharedArgs,
}

/// The columns of prompts alone: `score` has them too.
pub const COLUMNS: &[Column] = &[
    Column::pair("t/s (mean ± sd)", ["avg_ts", " ± ", "stddev_ts"]).marked(),
    Column::field("TTFT ms p50", "median_ttft_ms"),
    Column::field("p99", "p99_ttft_ms"),
    Column::field("E2E ms p50", "median_e2el_ms").rank(4),
    Column::share("of floor", "floor_fraction"),
    Column::field("floor ms", "floor_ms").rank(1),
    Column::interval("TTFT 95% of p50", "median_ttft_ms_ci95"),
    Column::interval("of p99", "p99_ttft_ms_ci95"),
];

impl PrefillArgs {
    pub fn measurement(&self) -> Measurement<'_> {
        let lists = (&self.batch.0[..], &[1][..], &self.prompt_len);
        let points = points(Kind::Prefill, lists, &self.shared);
        Measurement {
            steps: vec![StepKind::Mixed],
            ..Measurement::of(Kind::Prefill, &self.shared, points)
        }
    }
}
