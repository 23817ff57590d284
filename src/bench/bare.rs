//! Steps of a model without a scheduler: an engine that launches each step as a graph from the host, and now and then
//! launches the same graph again and again with nothing in between. What the other ways take beyond that is what
//! launching and scheduling cost them.
//!
//! Tokens are those of the other ways, and a row's first launch goes to the experts that the step goes to there: what a step
//! carries on is put back before its launches are timed, and afterwards. Within a row each launch finds the convolutions'
//! state as the one before it left it.

use super::Point;
use super::metrics::Figures;
use crate::backend::LaunchWay;
use crate::backend::cuda::device::GpuDevice;
use crate::backend::cuda::engine::hosted::{Carried, HostLaunched};
use crate::backend::device::{EngineSpec, Runs};
use crate::backend::timing::StepClock;
use crate::backend::{StageBackend, StepView};
use crate::error::{Error, Result};
use crate::plan::RingCapacities;
use crate::runtime::SingleEngine;
use crate::sys::abi;
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Launches of one step's graph in a row: as many as take this long, within these limits.
const IN_A_ROW: Duration = Duration::from_millis(25);
const LAUNCHES: RangeInclusive<u32> = 5..=20;
/// One of so many whole steps is timed bare, the fourth first: steps differ in the experts that they read, and a run's
/// contexts grow.
const STEPS_PER_BARE: u32 = 2;
const FIRST_BARE: u32 = 4;

/// How many launches take `long`, where one takes `each`, within these limits.
pub(super) fn launches(long: Duration, each: Duration, limits: RangeInclusive<u32>) -> u32 {
    (long.div_duration_f64(each) as u32).clamp(*limits.start(), *limits.end())
}

/// What is timed, from [`Timing::begin`] on.
#[derive(Debug, Default)]
pub struct Timing(Mutex<Counted>);

#[derive(Debug, Default)]
struct Counted {
    /// Rows of the decode steps that count.
    batch: u32,
    /// Whole steps so far.
    steps: u32,
    figures: Figures,
}

impl Timing {
    /// Times decode steps of `batch` rows.
    pub fn begin(&self, batch: u32) {
        *self.0.lock() = Counted {
            batch,
            ..Counted::default()
        };
    }

    /// The figures of the run of `point` that has ended; nothing is timed any more.
    ///
    /// # Errors
    /// [`Error::Usage`] where it was too short.
    pub fn figures(&self, point: &Point) -> Result<Figures> {
        let Counted { figures, .. } = std::mem::take(&mut *self.0.lock());
        if figures.step_ms.is_empty() {
            return Err(Error::Usage(format!(
                "--launch bare: all {} sequences were together in fewer than {FIRST_BARE} decode steps, expected at least as many: prompts of several \
                 steps come in one after the other, so give more than {} new tokens (--gen-len) or larger steps (--step-tokens)",
                point.batch, point.new_tokens
            )));
        }
        Ok(figures)
    }
}

/// A stage whose steps are timed bare.
struct BareStage {
    inner: HostLaunched,
    carried: Carried,
    timing: Arc<Timing>,
}

impl StageBackend for BareStage {
    fn run(&mut self, view: &StepView<'_>) -> Result<()> {
        let (inner, header) = (&mut self.inner, view.header());
        let mut counted = self.timing.0.lock();
        if (header.kind, header.rows) != (abi::TG_KIND_DECODE, counted.batch) {
            return inner.run(view);
        }
        counted.steps += 1;
        let since_first = counted.steps.checked_sub(FIRST_BARE);
        if !since_first.is_some_and(|steps| steps.is_multiple_of(STEPS_PER_BARE)) {
            return inner.run(view);
        }
        inner.keep(&mut self.carried)?;
        inner.run(view)?;
        let start = Instant::now();
        inner.repeat(view, &self.carried, 0)?;
        let launches = launches(IN_A_ROW, start.elapsed(), LAUNCHES);
        let repeat = || inner.repeat(view, &self.carried, launches);
        counted.figures.time_bare(header.rows, launches, repeat)?;
        inner.redo(view, &self.carried)
    }
}

/// An engine that is not launched yet, of one stage.
pub(super) fn of_stage(
    stage: impl StageBackend + 'static,
    spec: &EngineSpec<'_>,
) -> Result<SingleEngine> {
    let (runs, options) = (Runs::Stages(vec![Box::new(stage)]), spec.options);
    let bucket_sizes = spec.plan.bucket_sizes.reachable(options);
    SingleEngine::of(runs, &bucket_sizes, options, RingCapacities::new(options))
}

/// An engine that is not launched yet, what it times, and where the stamps of its kernels come out, if they leave any.
pub type BareEngine = (SingleEngine, Arc<Timing>, Option<Box<dyn StepClock>>);

/// `stamped`: kernels leave stamps.
///
/// # Errors
/// Fails as [`SingleEngine::on`] does.
pub fn engine(device: &GpuDevice, spec: &EngineSpec<'_>, stamped: bool) -> Result<BareEngine> {
    let spec = EngineSpec {
        options: &spec.options.one_step_in_flight(),
        ..*spec
    };
    let (inner, clock) = device.hosted(&spec, LaunchWay::HostGraph, stamped)?;
    let timing = Arc::new(Timing::default());
    let stage = BareStage {
        carried: inner.room_for_carried()?,
        inner,
        timing: timing.clone(),
    };
    let mut engine = of_stage(stage, &spec)?;
    engine.watch(device.spec.step_timeout);
    Ok((engine, timing, clock))
}
