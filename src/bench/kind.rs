//! What kinds that run a model differ in: what [`super::measure`] takes of each.

use super::args::SharedArgs;
use super::{Kind, Point};
use crate::plan::StepKind;
use crate::runtime::Logits;
use std::path::Path;

pub struct Measurement<'a> {
    pub kind: Kind,
    pub shared: &'a SharedArgs,
    /// All combinations of the lists that it takes.
    pub points: Vec<Point>,
    /// The kinds of steps that engines make ready.
    pub steps: Vec<StepKind>,
    /// The logits that requests ask for.
    pub wanted: Logits,
    /// Whether logits stay on the device; `None`: there are none.
    pub logits_on_device: Option<bool>,
    /// The file for what each step took.
    pub steps_file: Option<&'a Path>,
}

impl<'a> Measurement<'a> {
    /// Requests that generate: they ask for no logits.
    pub fn of(kind: Kind, shared: &'a SharedArgs, points: Vec<Point>) -> Self {
        Self {
            kind,
            shared,
            points,
            steps: vec![StepKind::Decode, StepKind::Mixed],
            wanted: Logits::None,
            logits_on_device: None,
            steps_file: None,
        }
    }
}
