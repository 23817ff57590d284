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
use crate::backend::device::EngineSpec;
use crate::backend::timing::StepClock;
use crate::backend::{StageBackend, StepView};
use crate::error::{Error, Result};
use crate::plan::RingCapacities;
use crate::runtime::Engine;
use crate::sys::abi;
use parking_lot::Mutex;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Launches of one step's graph in a row: as many as take this long, within these limits.
pub(super) struct InARow {
    pub long: Duration,
    pub launches: RangeInclusive<u32>,
}

impl InARow {
    /// How many, where one takes `each`.
    pub(super) fn launches(&self, each: Duration) -> u32 {
        let launches = self.long.div_duration_f64(each) as u32;
        launches.clamp(*self.launches.start(), *self.launches.end())
    }
}

const IN_A_ROW: InARow = InARow {
    long: Duration::from_millis(25),
    launches: 5..=20,
};
/// One of so many whole steps is timed bare, the fourth first: steps differ in the experts that they read, and a run's
/// contexts grow.
const STEPS_PER_BARE: u32 = 2;
const FIRST_BARE: u32 = 4;

/// What is timed, from [`Timing::begin`] on.
#[derive(Debug, Default)]
pub struct Timing(Mutex<Option<Counted>>);

#[derive(Debug)]
struct Counted {
    batch: u32,
    /// Whole steps so far.
    steps: u32,
    figures: Figures,
}

impl Timing {
    /// Times decode steps of `batch` rows.
    pub fn begin(&self, batch: u32) {
        *self.0.lock() = Some(Counted {
            batch,
            steps: 0,
            figures: Figures::default(),
        });
    }

    /// What came of it; nothing is timed any more.
    pub fn end(&self) -> Figures {
        self.0
            .lock()
            .take()
            .map_or_else(Figures::default, |c| c.figures)
    }

    /// The figures of the run of `point` that has ended.
    ///
    /// # Errors
    /// [`Error::Usage`] where it was too short.
    pub fn figures(&self, point: &Point) -> Result<Figures> {
        let figures = self.end();
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

impl Counted {
    /// Counts the step that comes; where its time goes if it is one to time.
    fn count(&mut self, view: &StepView<'_>) -> Option<&mut Figures> {
        let header = view.header();
        if (header.kind, header.rows) != (abi::TG_KIND_DECODE, self.batch) {
            return None;
        }
        self.steps += 1;
        let since_first = self.steps.checked_sub(FIRST_BARE)?;
        since_first
            .is_multiple_of(STEPS_PER_BARE)
            .then_some(&mut self.figures)
    }
}

impl StageBackend for BareStage {
    fn run(&mut self, view: &StepView<'_>) -> Result<()> {
        let mut timing = self.timing.0.lock();
        let Some(figures) = timing.as_mut().and_then(|counted| counted.count(view)) else {
            return self.inner.run(view);
        };
        let inner = &mut self.inner;
        inner.keep(&mut self.carried)?;
        inner.run(view)?;
        let start = Instant::now();
        inner.repeat(view, &self.carried, 0)?;
        let launches = IN_A_ROW.launches(start.elapsed());
        let repeat = || inner.repeat(view, &self.carried, launches);
        figures.time_bare(view.header().rows, launches, repeat)?;
        inner.redo(view, &self.carried)
    }
}

/// An engine that is not launched yet, and what it times.
///
/// # Errors
/// As [`Engine::on`].
pub fn engine(device: &GpuDevice, spec: &EngineSpec<'_>) -> Result<(Engine, Arc<Timing>)> {
    let spec = EngineSpec {
        options: &spec.options.one_step_in_flight(),
        ..*spec
    };
    timed(device, &spec, device.hosted(&spec, LaunchWay::HostGraph)?)
}

/// [`engine`] with kernels that leave stamps, and where these come out.
///
/// # Errors
/// As [`Engine::on`].
pub fn engine_timed(
    device: &GpuDevice,
    spec: &EngineSpec<'_>,
) -> Result<(Engine, Arc<Timing>, Box<dyn StepClock>)> {
    let spec = EngineSpec {
        options: &spec.options.one_step_in_flight(),
        ..*spec
    };
    let (inner, clock) = device.hosted_timed(&spec)?;
    let (engine, timing) = timed(device, &spec, inner)?;
    Ok((engine, timing, clock))
}

fn timed(
    device: &GpuDevice,
    spec: &EngineSpec<'_>,
    inner: HostLaunched,
) -> Result<(Engine, Arc<Timing>)> {
    let timing = Arc::new(Timing::default());
    let stage = BareStage {
        carried: inner.room_for_carried()?,
        inner,
        timing: timing.clone(),
    };
    let ladders = spec.plan.ladders.reachable(spec.options);
    let capacities = RingCapacities::new(spec.options);
    let mut engine = Engine::on_host(vec![Box::new(stage)], &ladders, spec.options, capacities)?;
    engine.watch(device.spec.step_timeout);
    Ok((engine, timing))
}
