//! Backends run the operations of one stage for one step. They know the plan and the model, and read step
//! descriptors through [`StepView`]; they know nothing of requests, queues or text.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
pub mod step;

pub use step::StepView;

use crate::error::Result;
use std::sync::Arc;

/// Runs one stage. Steps come in order; rows at or past the step's `rows` do not exist here.
pub trait StageBackend: Send {
    /// Runs every operation of the stage for `step`. The stage before has left its residual stream in the
    /// hand-over buffer of the step's place; this one leaves its own there for the next.
    fn run(&mut self, step: &StepView<'_>) -> Result<()>;
}

/// Takes the logits that requests asked for. Called from the last stage's thread; may block (back-pressure).
pub trait LogitsSink: Send + Sync {
    /// `logits` is `[n, V]`: positions `first_position ..` of the request's prompt, in order.
    fn rows(&self, request: u64, first_position: u32, logits: &[f32]) -> Result<()>;
}

/// A shared sink, or none where no request may ask for logits.
pub type SharedSink = Option<Arc<dyn LogitsSink>>;
