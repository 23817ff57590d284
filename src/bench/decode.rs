//! `bench decode`: steps in which every sequence generates a token.

use super::Kind;
use super::args::{LISTS, Measurement, SharedArgs, points, positive};
use super::output::Column;
use super::ranges::{self, Lengths, List};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Clone, Args)]
#[command(after_help = LISTS, next_help_heading = "Workload")]
pub struct DecodeArgs {
    /// Sequences at once
    #[arg(long, short, value_name = "LIST", value_parser = positive, default_value = "1,8,32")]
    batch: List,
    /// Tokens of each prompt
    #[arg(long, short = 'p', value_name = "LIST", value_parser = equal, default_value = "32")]
    prompt_len: Lengths,
    /// Tokens to generate for each
    #[arg(long, short = 'n', value_name = "LIST", value_parser = positive, default_value = "128")]
    gen_len: List,
    /// Also write each step's time to this file, a line of JSON for each result and repeat
    #[arg(long, value_name = "FILE")]
    steps: Option<PathBuf>,
    #[command(flatten)]
    shared: SharedArgs,
}

fn equal(text: &str) -> std::result::Result<Lengths, String> {
    let lengths = ranges::lengths(text)?;
    if lengths.0.iter().any(|one| one.shortest < one.longest) {
        return Err(
            "found a range of lengths, expected steps of equal sequences (100-2000+100 is a list)"
                .to_owned(),
        );
    }
    Ok(lengths)
}

pub const COLUMNS: &[Column] = &[
    Column::pair("t/s (mean ± sd)", ["avg_ts", " ± ", "stddev_ts"]).marked(),
    Column::field("step ms p50", "median_step_ms"),
    Column::field("p99", "p99_step_ms"),
    Column::field("p99.9", "p99.9_step_ms").rank(6),
    Column::share("of floor", "floor_fraction"),
    Column::field("floor ms", "floor_ms").rank(1),
    Column::latency("TTFT ms", "median_ttft_ms", "p99_ttft_ms").rank(5),
    Column::latency("ITL ms", "median_itl_ms", "p99_itl_ms").rank(6),
    Column::field("turn us", "median_turn_us").rank(5),
    Column::interval("step 95% of p50", "median_step_ms_ci95"),
    Column::interval("of p99", "p99_step_ms_ci95"),
];

impl DecodeArgs {
    pub fn measurement(&self) -> Measurement<'_> {
        let lists = (&self.batch.0[..], &self.gen_len.0[..], &self.prompt_len);
        let points = points(Kind::Decode, lists, &self.shared);
        Measurement {
            steps_file: self.steps.as_deref(),
            ..Measurement::of(Kind::Decode, &self.shared, points)
        }
    }
}
