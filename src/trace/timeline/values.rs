//! What slices and counters of the scheduler say.

use serde::Serialize;

/// What a step's slice says.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct StepArgs {
    pub step: u64,
    pub bucket: u32,
    pub rows: u32,
    /// rows / bucket
    pub fill: f64,
    pub sequences: u32,
    pub sampled: u32,
    /// Of the rows: those of prompts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_rows: Option<u32>,
    /// The run was broken off before it came back.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unfinished: bool,
}

impl StepArgs {
    pub fn new(step: u64, bucket: u32, rows: u32, sequences: u32, sampled: u32) -> Self {
        Self {
            step,
            bucket,
            rows,
            // Three digits are what anyone reads.
            fill: (f64::from(rows) / f64::from(bucket.max(1)) * 1e3).round() / 1e3,
            sequences,
            sampled,
            prompt_rows: None,
            unfinished: false,
        }
    }
}

#[derive(Serialize)]
pub(super) struct TurnArgs {
    pub(super) turn: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) collected: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) composed: Option<u64>,
    pub(super) steps_in_flight: u32,
}

/// The counters' last values; a counter is written where it changes.
#[derive(Clone, Copy)]
pub(super) struct Counters {
    pub(super) queue_depth: u64,
    pub(super) running: u64,
    pub(super) free_pages: u64,
    pub(super) padding_rows: u64,
}

impl Counters {
    /// Name, unit and value of each.
    pub(super) fn named(self) -> [(&'static str, &'static str, u64); 4] {
        [
            ("queue depth", "requests", self.queue_depth),
            ("running", "sequences", self.running),
            ("free pages", "pages", self.free_pages),
            ("padding rows", "rows", self.padding_rows),
        ]
    }
}
