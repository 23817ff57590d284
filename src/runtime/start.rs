//! An engine of whatever runs a model's steps.

use super::engine::Engine;
use super::held_up::HeldUp;
use crate::backend::Device;
use crate::backend::device::{EngineSpec, Runs, Started, Watch};
use crate::backend::timing::{StageClock, StepClock};
use crate::error::{Error, Result};
use crate::plan::{OpKind, RingCapacities};

/// Where the times of an engine's steps come out, if they are timed.
#[derive(Default)]
pub struct Clocks {
    /// Of [`Watch::Times`].
    pub parts: Option<Box<dyn StepClock>>,
    /// Of [`Watch::Stages`].
    pub stages: Option<Box<dyn StageClock>>,
}

impl Engine {
    /// Loads a model on `device`; the engine is not launched yet.
    ///
    /// # Errors
    /// [`Device::start`]'s; [`Error::Usage`] where the options break one of the core's rules.
    pub fn on(device: &dyn Device, spec: &EngineSpec<'_>) -> Result<Self> {
        let (engine, _) = Self::on_watched(device, spec, Watch::Nothing, Ok)?;
        Ok(engine)
    }

    /// [`Engine::on`] with steps timed part by part, and where the times come out.
    ///
    /// # Errors
    /// As [`Engine::on`].
    pub fn on_timed(
        device: &dyn Device,
        spec: &EngineSpec<'_>,
        in_a_row: Option<OpKind>,
    ) -> Result<(Self, Box<dyn StepClock>)> {
        let watch = Watch::Times { in_a_row };
        let (engine, clocks) = Self::on_watched(device, spec, watch, Ok)?;
        let clock = clocks.parts.ok_or_else(|| {
            Error::Runtime("an engine is timed and has no clock: this is a bug in tailgraph".into())
        })?;
        Ok((engine, clock))
    }

    /// [`Engine::on`] with what `watch` looks at, and the clocks that `watch` asks for. `wrap` gets what runs the steps
    /// before the engine has it.
    ///
    /// # Errors
    /// As [`Engine::on`]; those of `wrap`.
    pub fn on_watched(
        device: &dyn Device,
        spec: &EngineSpec<'_>,
        watch: Watch<'_>,
        wrap: impl FnOnce(Runs) -> Result<Runs>,
    ) -> Result<(Self, Clocks)> {
        let (held_up, sink) = HeldUp::told_by(spec.sink);
        let spec = EngineSpec {
            sink: &sink,
            ..*spec
        };
        let Started {
            runs,
            ladders,
            options,
            clock,
            stage_clock,
            step_timeout,
        } = device.start(&spec, watch)?;
        let mut engine = Self::of(
            wrap(runs)?,
            &ladders,
            &options,
            RingCapacities::new(&options),
        )?;
        engine.held_up = Some(held_up);
        if let Some(limit) = step_timeout {
            engine.watch(limit);
        }
        let clocks = Clocks {
            parts: clock,
            stages: stage_clock,
        };
        Ok((engine, clocks))
    }
}
