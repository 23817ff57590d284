//! Engines of `bench`, with or without a scheduler.

use super::work::{Running, Unit};
#[cfg(feature = "cuda")]
use crate::backend::device::EngineSpec;
use crate::backend::{LaunchWay, SharedSink};
use crate::bench::Point;
use crate::bench::metrics::Figures;
use crate::error::Result;
use crate::model::Model;
#[cfg(feature = "cuda")]
use crate::session::Target;
use std::sync::Arc;

/// What is timed of the steps of an engine without a scheduler.
#[cfg(feature = "cuda")]
pub struct Timed(Arc<crate::bench::bare::Timing>);

/// Nothing here launches graphs, so there is none.
#[cfg(not(feature = "cuda"))]
pub enum Timed {}

/// Starts the unit's engine, or its replicas; where nobody is to schedule, also what times its steps. `record`: no turn may be lost.
pub fn start(
    unit: &Unit,
    model: &Arc<Model>,
    sink: &SharedSink,
    record: bool,
) -> Result<(Running, Option<Timed>)> {
    #[cfg(feature = "cuda")]
    if let (Some(LaunchWay::Bare), Target::Gpu(device)) = (unit.way, &unit.opened.target) {
        let spec = EngineSpec {
            model,
            plan: &unit.opened.plan,
            options: &unit.opened.options,
            sink: &None,
        };
        let (mut engine, timing) = crate::bench::bare::engine(device, &spec)?;
        engine.watch(device.spec.step_timeout);
        engine.launch()?;
        return Ok((Running::One(Box::new(engine)), Some(Timed(timing))));
    }
    debug_assert_ne!(unit.way, Some(LaunchWay::Bare), "no GPU, no graphs");
    let opened = &unit.opened;
    let running = match opened.replicas.is_empty() {
        true => Running::One(Box::new(opened.engine_of(model, sink, record)?)),
        false => Running::Several(Box::new(opened.replicas_of(model, sink, record)?)),
    };
    Ok((running, None))
}

#[cfg(feature = "cuda")]
impl Timed {
    /// Times the next run's steps of `batch` sequences.
    pub fn begin(&self, batch: u32) {
        self.0.begin(batch);
    }

    /// Of the run that has ended.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] where it was too short.
    pub fn figures(&self, point: &Point) -> Result<Figures> {
        let bare = self.0.end();
        if bare.step_ms.is_empty() {
            return Err(crate::Error::Usage(format!(
                "--launch bare: all {} sequences were together in fewer than {} decode steps, expected at least as many: prompts of several \
                 steps come in one after the other, so give more than {} new tokens (--gen-len) or larger steps (--step-tokens)",
                point.batch,
                crate::bench::bare::LEAST_STEPS,
                point.new_tokens
            )));
        }
        Ok(Figures::of_bare(&bare, point.batch))
    }
}

#[cfg(not(feature = "cuda"))]
impl Timed {
    pub fn begin(&self, _batch: u32) {
        match *self {}
    }

    pub fn figures(&self, _point: &Point) -> Result<Figures> {
        match *self {}
    }
}
