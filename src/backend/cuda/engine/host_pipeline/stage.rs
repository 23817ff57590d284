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
use crate::plan::{BucketSizes, EngineOptions};
use cudarc::driver::{CudaEvent, CudaStream};
use std::sync::Arc;

/// A stage on its GPU.
pub(super) struct Stage {
    pub gpu: OpenGpu,
    /// Has the graphs' stream.
    pub hosted: HostLaunched,
    /// By place: f32 `[R, H]`, what the stage before leaves, and what this one makes of it.
    pub rows: Vec<Address>,
    /// For copies of tables to the GPU while other steps run.
    pub up: Arc<CudaStream>,
    /// For copies of rows and samples from the GPU while other steps run.
    pub on: Arc<CudaStream>,
    /// The newest step's tables have been copied, so the host may write the next one's.
    pub copied: CudaEvent,
    /// By place: the step's tables have come.
    pub ready: Vec<CudaEvent>,
    /// By place: the step's kernels have run.
    pub through: Vec<CudaEvent>,
    /// By place: all that the step leaves is where it belongs.
    pub left: Vec<CudaEvent>,
    _rows: Buffer,
}

/// Steps that there are places for: as many as may be in flight over so many stages.
pub(super) fn places(options: &EngineOptions, stages: usize) -> usize {
    let steps = options.steps_in_flight.max(Overlap::Behind.steps());
    stages.max(steps as usize)
}

/// Bytes of the rows of the largest step that is composed, on their way from stage to stage.
pub(super) fn step_bytes(options: &EngineOptions, hidden: usize) -> usize {
    options.step_tokens as usize * hidden * size_of::<f32>()
}

/// Bytes of the rows of the largest bucket, all of which kernels may write.
fn row_bytes(bucket_sizes: &BucketSizes, hidden: usize) -> usize {
    (bucket_sizes.largest() as usize).saturating_mul(hidden * size_of::<f32>())
}

/// Bytes that each of so many stages takes on its GPU beside its part of the model, and pinned on the host, where rows go through it
/// (`--handover host`). `hidden`: f32 of a row's residual stream.
pub fn host_stage_bytes(
    bucket_sizes: &BucketSizes,
    options: &EngineOptions,
    hidden: usize,
    stages: usize,
) -> (usize, usize) {
    let places = places(options, stages);
    let tables = step_copy_bytes(options, places);
    let rows = row_bytes(bucket_sizes, hidden).saturating_mul(places - 1);
    let staged = step_bytes(options, hidden).saturating_mul(places);
    (tables.saturating_add(rows), tables.saturating_add(staged))
}

impl Stage {
    /// # Errors
    /// [`crate::Error::Memory`] where there is not enough; what the program, the captures or the driver give.
    pub fn new(
        stage: StageProgram,
        at: StagePlace,
        residual: Residual,
        (bucket_sizes, options): (&BucketSizes, &EngineOptions),
        spec: HostPipelineSpec,
    ) -> Result<Self> {
        let StageProgram { gpu, program } = stage;
        let context = &gpu.context;
        let refused = |error| failed("making streams and events", error);
        let up = context.new_stream().map_err(refused)?;
        let (count, bytes) = (
            places(options, at.count),
            row_bytes(bucket_sizes, residual.hidden),
        );
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
        let hosted = HostLaunched::over(
            context,
            program,
            at,
            (bucket_sizes, options),
            launch,
            places,
        )?;
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

    /// All its streams.
    pub fn streams(&self) -> [&CudaStream; 3] {
        [&self.hosted.stream, &self.up, &self.on]
    }
}
