//! A step as timelines and sums have it.

use crate::plan::StepShape;
use serde::Serialize;

/// What a step's slice says.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct StepArgs {
    pub step: u64,
    pub bucket: u32,
    pub rows: u32,
    /// rows / bucket
    pub fill: f64,
    pub sequences: u32,
    pub sampled: u32,
    /// Rows of prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_rows: Option<u32>,
    /// Tokens of prompts that it does not compute: shared prefixes have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_tokens: Option<u32>,
    /// The run was broken off before it came back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
}

/// A step that was composed and has not come back.
#[derive(Clone, Copy)]
pub struct Flying {
    /// Its sequences as if all were as long as they are on average.
    pub shape: StepShape,
    /// The end of the turn that composed it.
    pub composed_ns: u64,
    pub args: StepArgs,
}

impl Flying {
    /// The title of its slice.
    pub fn name(&self) -> String {
        format!("{} {}", self.shape.kind.name(), self.args.bucket)
    }
}

/// Three digits after the point are what anyone reads.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}
