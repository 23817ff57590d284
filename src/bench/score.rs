//! `bench score`: logits of prompts that are all sent at once.

use super::Kind;
use super::args::{LISTS, Measurement, SharedArgs, points, positive};
use super::ranges::{self, Lengths, List};
use crate::command::values::Positions;
use crate::runtime::Logits;
use clap::Args;

#[derive(Debug, Clone, Args)]
#[command(after_help = LISTS, next_help_heading = "Workload")]
pub struct ScoreArgs {
    /// How many prompts
    #[arg(long, short, value_name = "LIST", value_parser = positive, default_value = "1024")]
    batch: List,
    /// Tokens of each prompt. A plain range such as 100-2000 is one workload, of lengths drawn from it by the seed
    #[arg(long, short = 'p', value_name = "LIST", value_parser = ranges::lengths, default_value = "32")]
    prompt_len: Lengths,
    /// Positions to give logits of
    #[arg(long, value_name = "WHICH", default_value = "all")]
    logits: Positions,
    /// Compute the logits, but leave them in the GPU's memory
    #[arg(long)]
    logits_on_device: bool,
    #[command(flatten)]
    shared: SharedArgs,
}

pub use super::prefill::COLUMNS;

impl ScoreArgs {
    pub fn measurement(&self) -> Measurement<'_> {
        let lists = (&self.batch.0[..], &[0][..], &self.prompt_len);
        let points = points(Kind::Score, lists, &self.shared);
        Measurement {
            steps: vec![self.logits.step_kind()],
            wanted: match self.logits {
                Positions::All => Logits::All,
                Positions::Last => Logits::Last,
            },
            logits_on_device: Some(self.logits_on_device),
            ..Measurement::of(Kind::Score, &self.shared, points)
        }
    }
}
