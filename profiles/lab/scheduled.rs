//! Steps without a model (see [`crate::backend::cuda::tools::probe`]): what launching them costs in each way, and the bare
//! graph beside, which the host launches again and again with nobody scheduling.

use super::metrics::{Bare, Figures};
use crate::backend::LaunchWay;
use crate::backend::cuda::device::launched;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::engine::program::{StepProgram, buckets, capture_calls};
use crate::backend::cuda::engine::step_copy::{PLACES, StepCopy};
use crate::backend::cuda::tools::probe::{ProbeOptions, ProbeStep};
use crate::error::{Error, Result};
use crate::plan::{EngineOptions, Ladders, RingCapacities, StepKind};
use crate::runtime::Engine;
use cudarc::driver::result::DriverError;
use std::time::Instant;

/// Kernels of a step beside those that `--kernels` adds: tokens in, tokens read, tokens out.
pub const LEAST_KERNELS: u32 = 3 + 1;
/// What the tokens of a probe are taken from.
pub const VOCABULARY: u32 = 997;
const PAGE_TOKENS: u32 = 64;
/// Bare graphs between two looks at the clock, and how many such rounds.
const BARE_LAUNCHES: u32 = 50;
const BARE_ROUNDS: u32 = 40;

/// A step of `kernels` small kernels for `batch` sequences.
pub struct Probe<'a> {
    gpu: &'a OpenGpu,
    options: EngineOptions,
    ladders: Ladders,
    capacities: RingCapacities,
    probe: ProbeOptions,
}

impl<'a> Probe<'a> {
    /// For sequences of up to `context` tokens; `kernels` is at least [`LEAST_KERNELS`].
    pub fn new(gpu: &'a OpenGpu, batch: u32, kernels: u32, context: u32) -> Self {
        let chunk_align = 64;
        let step_tokens = batch + chunk_align;
        let options = EngineOptions {
            max_seqs: batch,
            max_context: context,
            page_tokens: PAGE_TOKENS,
            pages: batch * context.div_ceil(PAGE_TOKENS),
            step_tokens,
            chunk_tokens: step_tokens,
            chunk_share: 0,
            chunk_align,
            steps_in_flight: 1,
            record: false,
        };
        Self {
            gpu,
            options,
            ladders: Ladders {
                decode: vec![batch],
                mixed: vec![step_tokens],
                score: vec![step_tokens],
            },
            capacities: RingCapacities::new(&options),
            probe: ProbeOptions {
                layers: kernels + 1 - LEAST_KERNELS,
                vocabulary: VOCABULARY,
                early: gpu.overlaps_launches(),
                log_entries: 0,
            },
        }
    }

    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    fn program(&self) -> Result<Box<dyn StepProgram>> {
        let (context, module) = (&self.gpu.context, &self.gpu.module);
        let (stages, _) = ProbeStep::stages(context, module, 1, &self.options, self.probe, None)?;
        let stage = stages.into_iter().next();
        let program = stage.ok_or_else(|| Error::Runtime("a probe has one stage".into()))?;
        Ok(Box::new(program))
    }

    /// An engine that is not launched yet.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn engine(&self, way: LaunchWay) -> Result<Engine> {
        let (options, ladders) = (&self.options, &self.ladders);
        let runs = launched(self.gpu, vec![self.program()?], ladders, options, way)?;
        Engine::of(runs, ladders, options, self.capacities)
    }

    /// The decode graph alone, launched back to back by the host: each step time is the mean of 50 in a row, the turns
    /// are none.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn bare(&self) -> Result<Figures> {
        let refused = |error: DriverError| {
            Error::Runtime(format!(
                "timing the bare graph: the driver answered {:?}",
                error.0
            ))
        };
        let stream = self.gpu.context.new_stream().map_err(refused)?;
        let program = self.program()?;
        let copy = StepCopy::new(&self.gpu.context, &stream, &self.options, PLACES)?;
        let bucket = buckets(&self.ladders, StepKind::Decode, self.options.max_seqs)
            .last()
            .ok_or_else(|| Error::Runtime("a probe has a decode bucket".into()))?;
        let calls = program.lower(bucket, copy.at())?;
        // SAFETY: copy and program outlive the launches below, all of which are waited for; the copy holds a step
        // without rows.
        let graph = unsafe { capture_calls(&stream, "the bare step", &calls) }?;
        let exec = Exec::new(&graph, LaunchedBy::Host)?;
        let launch = || {
            let start = Instant::now();
            for _ in 0..BARE_LAUNCHES {
                // SAFETY: as above.
                unsafe { exec.launch() }?;
            }
            stream.synchronize().map_err(refused)?;
            Ok(start.elapsed())
        };
        // The first ones warm up.
        launch()?;
        let mut bare = Bare::default();
        for _ in 0..BARE_ROUNDS {
            bare.time(BARE_LAUNCHES, launch)?;
        }
        Ok(Figures::of_bare(&bare, self.options.max_seqs))
    }
}
