//! `bench decode`: steps in which every sequence generates a token.

use super::args::{LISTS, Points, SharedArgs, positive};
use super::kind::{Measurement, name_longest};
use super::output::Column;
use super::ranges::{self, Lengths, List};
use super::{Kind, Point};
use crate::error::{Error, Result};
use crate::plan::StepKind;
use crate::session::RunSpec;
use clap::Args;
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Args)]
#[command(after_help = LISTS, next_help_heading = "Workload")]
pub struct DecodeArgs {
    /// Sequences at once
    #[arg(long, short, value_name = "LIST", value_parser = positive, default_value = "1,8,32")]
    batch: List,
    /// Tokens of each prompt
    #[arg(long, short = 'p', value_name = "LIST", value_parser = equal, default_value = "32", conflicts_with = "context")]
    prompt_len: Lengths,
    /// Tokens to generate for each
    #[arg(long, short = 'n', value_name = "LIST", value_parser = positive, default_value = "128")]
    gen_len: List,
    /// Instead of --prompt-len: tokens of a sequence at its end, the generated ones included
    #[arg(long, value_name = "LIST", value_parser = positive)]
    context: Option<List>,
    /// Every sequence has a presence penalty, a frequency penalty and 8 biased tokens
    #[arg(long)]
    penalties: bool,
    /// Also write what each step took, a line of JSON for each result and repeat, into this file
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

impl Measurement for DecodeArgs {
    fn kind(&self) -> Kind {
        Kind::Decode
    }

    fn shared(&self) -> &SharedArgs {
        &self.shared
    }

    fn points(&self) -> Result<Vec<Point>> {
        let points = Points::of(Kind::Decode)
            .each(&self.batch.0, |point, &batch| point.batch = batch)
            .each(&self.gen_len.0, |point, &new| point.new_tokens = new)
            .each(&[self.penalties], |point, &on| point.penalties = on)
            .lengths(&self.prompt_len, self.context.as_ref())?;
        Ok(points.beside(&self.shared.measuring.cpu_load))
    }

    fn name_longest(&self, prompt: u32, new: u32) -> String {
        let with = format!("--gen-len {new}");
        name_longest(self.context.is_some(), prompt, new, &with)
    }

    fn check(&self, spec: &RunSpec) -> Result<()> {
        if spec.replicas().is_empty() {
            return Ok(());
        }
        Err(Error::Usage(
            "bench decode: measures the steps of one device, expected --device with one, or `bench serve` with several".into(),
        ))
    }

    fn steps(&self) -> Vec<StepKind> {
        vec![StepKind::Decode, StepKind::Mixed]
    }

    fn typical(&self, point: &Point) -> Option<(StepKind, Option<u32>)> {
        Some((StepKind::Decode, Some(point.batch)))
    }

    fn steps_file(&self) -> Option<&Path> {
        self.steps.as_deref()
    }
}
