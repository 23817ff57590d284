//! An engine for a model on one GPU, in each of the ways to launch it.

use super::engine::Engine;
use crate::backend::cuda::ahead::HostAhead;
use crate::backend::cuda::gpu::OpenGpu;
use crate::backend::cuda::hosted::{HostLaunch, HostLaunched, StagePlace};
use crate::backend::cuda::model::{InOrder, Placement, programs};
use crate::backend::cuda::program::StepProgram;
use crate::backend::cuda::scheduler::GpuScheduler;
use crate::backend::{SharedSink, StageBackend};
use crate::error::Result;
use crate::model::{DType, Model};
use crate::plan::{EngineOptions, Plan, RingCapacities};

/// Who launches the kernels of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launch {
    /// The host, one by one.
    HostKernels,
    /// The host, a captured graph a step.
    HostGraph,
    /// Likewise, the next decode step before the last is through, where that can end no sequence and let none in (see
    /// [`crate::backend::cuda::ahead`]).
    HostGraphAhead,
    /// The GPU itself, which also schedules.
    DeviceGraph,
}

impl Engine {
    /// Copies the model to the GPU and captures what `launch` needs; the engine is not launched yet. All stages run
    /// one after the other, so one step is in flight (two where the host runs ahead), whatever the options say.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] for what the GPU path does not take; [`crate::Error::Memory`] where there is too little;
    /// [`crate::Error::Runtime`] for what the driver refuses.
    pub fn on_gpu(
        gpu: &OpenGpu,
        model: &Model,
        plan: &Plan,
        options: &EngineOptions,
        dtype: DType,
        launch: Launch,
        sink: &SharedSink,
    ) -> Result<Self> {
        let options = EngineOptions {
            steps_in_flight: 1,
            ..*options
        };
        let ladders = plan.ladders.reachable(&options);
        let capacities = RingCapacities::new(&options);
        let by_host = |stage| Self::on_host(vec![stage], &ladders, &options, capacities);
        let stage = |way| host_stage(gpu, model, plan, &options, dtype, way, sink);
        match launch {
            Launch::HostKernels => by_host(stage(HostLaunch::Kernels)?),
            Launch::HostGraph => by_host(stage(HostLaunch::Graph)?),
            Launch::HostGraphAhead => {
                let program = in_order(gpu, model, plan, &options, dtype, sink)?;
                let stage = HostAhead::new(&gpu.context, program, &ladders, &options)?;
                by_host(Box::new(stage))
            }
            Launch::DeviceGraph => {
                let placement = Placement {
                    plan,
                    ladders: &ladders,
                    options: &options,
                    dtype,
                    sink,
                    hold: true,
                };
                let programs = boxed(gpu, model, &placement)?;
                let early = gpu.overlaps_launches();
                let device = GpuScheduler::new(&gpu.context, &gpu.module, programs, early)?;
                Self::on_device(Box::new(device), &ladders, &options, capacities)
            }
        }
    }
}

/// Copies the model to the GPU: all its stages, one after the other, for a scheduler on the host.
///
/// # Errors
/// As [`Engine::on_gpu`].
pub fn host_stage(
    gpu: &OpenGpu,
    model: &Model,
    plan: &Plan,
    options: &EngineOptions,
    dtype: DType,
    way: HostLaunch,
    sink: &SharedSink,
) -> Result<Box<dyn StageBackend>> {
    let program = in_order(gpu, model, plan, options, dtype, sink)?;
    let place = StagePlace { index: 0, count: 1 };
    let ladders = plan.ladders.reachable(options);
    let stage = HostLaunched::new(&gpu.context, program, place, &ladders, options, way)?;
    Ok(Box::new(stage))
}

/// All stages as one, for a host that waits for its steps.
fn in_order(
    gpu: &OpenGpu,
    model: &Model,
    plan: &Plan,
    options: &EngineOptions,
    dtype: DType,
    sink: &SharedSink,
) -> Result<Box<dyn StepProgram>> {
    let placement = Placement {
        plan,
        ladders: &plan.ladders.reachable(options),
        options,
        dtype,
        sink,
        hold: false,
    };
    Ok(Box::new(InOrder(boxed(gpu, model, &placement)?)))
}

fn boxed(
    gpu: &OpenGpu,
    model: &Model,
    placement: &Placement<'_>,
) -> Result<Vec<Box<dyn StepProgram>>> {
    let programs = programs(gpu, model, placement)?.into_iter();
    Ok(programs
        .map(|program| Box::new(program) as Box<dyn StepProgram>)
        .collect())
}
