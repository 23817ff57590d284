//! An engine for a model on one GPU, in each of the ways to launch it.

use super::engine::Engine;
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
    /// [`crate::backend::cuda::hosted`]).
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
        let way = match launch {
            Launch::HostKernels => HostLaunch::Kernels,
            Launch::HostGraph => HostLaunch::Graph,
            Launch::HostGraphAhead => HostLaunch::GraphAhead,
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
                return Self::on_device(Box::new(device), &ladders, &options, capacities);
            }
        };
        let stage = host_stage(gpu, model, plan, &options, dtype, way, sink)?;
        Self::on_host(vec![stage], &ladders, &options, capacities)
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
    let ladders = plan.ladders.reachable(options);
    let placement = Placement {
        plan,
        ladders: &ladders,
        options,
        dtype,
        sink,
        hold: false,
    };
    let program = Box::new(InOrder(boxed(gpu, model, &placement)?));
    let place = StagePlace { index: 0, count: 1 };
    let stage = HostLaunched::new(&gpu.context, program, place, &ladders, options, way)?;
    Ok(Box::new(stage))
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
