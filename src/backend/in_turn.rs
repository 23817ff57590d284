//! Stages that one thread runs, one after the other.

use super::{StageBackend, StepView};
use crate::error::Result;
use std::ptr::NonNull;

/// What they leave for each other: `[step_tokens, H]` that a stage reads, and as much that it leaves.
pub struct InTurn([Vec<f32>; 2]);

impl InTurn {
    /// For these stages, and steps of at most so many rows.
    pub fn new(stages: &[Box<dyn StageBackend>], step_tokens: u32) -> Self {
        let row_floats = match stages {
            [] | [_] => 0,
            _ => stages
                .iter()
                .map(|stage| stage.row_floats())
                .max()
                .unwrap_or(0),
        };
        let rows = || vec![0.0; step_tokens as usize * row_floats];
        Self([rows(), rows()])
    }

    /// Runs a step through all of them.
    ///
    /// # Errors
    /// [`StageBackend::run`]'s.
    pub fn run(&mut self, stages: &mut [Box<dyn StageBackend>], step: StepView<'_>) -> Result<()> {
        let last = stages.len().saturating_sub(1);
        for (index, stage) in stages.iter_mut().enumerate() {
            let [input, output] = self.0.each_mut().map(|rows| NonNull::from(&mut rows[..]));
            let (input, output) = (
                (index != 0).then_some(input),
                (index != last).then_some(output),
            );
            // SAFETY: both are borrowed alone until the stage is through, and the view ends with that.
            stage.run(&unsafe { step.with_activations(input, output) })?;
            self.0.swap(0, 1);
        }
        Ok(())
    }
}
