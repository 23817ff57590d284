//! What each GPU has for its stage.

use super::HostPipelineSpec;
use crate::backend::Overlap;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::engine::hosted::{HostLaunched, Places, StagePlace};
use crate::backend::cuda::engine::pipeline::StageProgram;
use crate::backend::cuda::engine::program::Residual;
use crate::backend::cuda::engine::step_copy::step_copy_bytes;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::error::Result;
use crate::plan::{EngineOptions, Ladders};
use cudarc::driver::{CudaEvent, CudaStream};
use std::sync::Arc;

/// One of them, on its GPU.
pub(super) struct Stage {
    pub gpu: OpenGpu,
    /// Has the graphs' stream.
    pub hosted: HostLaunched,
    /// By place: f32 `[R, H]`, what the stage before leaves, and what this one makes of it.
    pub rows: Vec<Address>,
    /// What steps are comes here while others run,
    pub up: Arc<CudaStream>,
    /// ... and what they leave goes from here.
    pub on: Arc<CudaStream>,
    /// What the newest step is has left the host.
    pub copied: CudaEvent,
    /// By place: what the step is has come,
    pub ready: Vec<CudaEvent>,
    /// ... its kernels are through,
    pub through: Vec<CudaEvent>,
    /// ... and all that it leaves is where it belongs.
    pub left: Vec<CudaEvent>,
    _rows: Buffer,
}

/// Steps that there are places for.
pub(super) fn places(options: &EngineOptions) -> usize {
    options.steps_in_flight.max(Overlap::Behind.steps()) as usize
}

fn row_bytes(ladders: &Ladders, hidden: usize) -> usize {
    (ladders.largest() as usize).saturating_mul(hidden * size_of::<f32>())
}

/// Bytes that a stage takes on its GPU beside its part of the model, and pinned on the host. `hidden`: f32 of a row's residual stream.
pub fn host_stage_bytes(
    ladders: &Ladders,
    options: &EngineOptions,
    hidden: usize,
) -> (usize, usize) {
    let tables = step_copy_bytes(options, places(options));
    let rows = row_bytes(ladders, hidden).saturating_mul(places(options) - 1);
    (tables.saturating_add(rows), tables)
}

impl Stage {
    /// # Errors
    /// [`crate::Error::Memory`] where there is not enough; what the program, the captures or the driver give.
    pub fn new(
        stage: StageProgram,
        at: StagePlace,
        residual: Residual,
        (ladders, options): (&Ladders, &EngineOptions),
        spec: HostPipelineSpec,
    ) -> Result<Self> {
        let StageProgram { gpu, program } = stage;
        let context = &gpu.context;
        let refused = |error| failed("making streams and events", error);
        let up = context.new_stream().map_err(refused)?;
        let (count, bytes) = (places(options), row_bytes(ladders, residual.hidden));
        // The program has the first place.
        let others = Buffer::named(context, "rows between stages", bytes * (count - 1))?;
        others.fill(&up, 0)?;
        up.synchronize()
            .map_err(|error| failed("filling GPU memory", error))?;
        let other = |place: usize| others.at((place - 1) * bytes);
        let rows: Vec<_> = (0..count)
            .map(|place| if place == 0 { residual.h } else { other(place) })
            .collect();
        let h: Vec<_> = rows.iter().copied().map(Some).collect();
        let places = Places {
            h: &h,
            of_every_kind: !spec.behind,
        };
        let launch = spec.launch;
        let hosted = HostLaunched::over(context, program, at, (ladders, options), launch, places)?;
        let event = || context.new_event(None).map_err(refused);
        let events = || (0..count).map(|_| event()).collect::<Result<Vec<_>>>();
        Ok(Self {
            on: context.new_stream().map_err(refused)?,
            copied: event()?,
            ready: events()?,
            through: events()?,
            left: events()?,
            up,
            hosted,
            rows,
            _rows: others,
            gpu,
        })
    }

    /// All of its.
    pub fn streams(&self) -> [&CudaStream; 3] {
        [&self.hosted.stream, &self.up, &self.on]
    }
}
