//! An engine for a model on one GPU, in each of the three ways to launch it.

use super::engine::Engine;
use crate::backend::SharedSink;
use crate::backend::cuda::gpu::OpenGpu;
use crate::backend::cuda::hosted::{HostLaunch, HostLaunched, StagePlace};
use crate::backend::cuda::model::{InOrder, Placement, programs};
use crate::backend::cuda::program::StepProgram;
use crate::backend::cuda::scheduler::GpuScheduler;
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
    /// The GPU itself, which also schedules.
    DeviceGraph,
}

impl Engine {
    /// Copies the model to the GPU and captures what `launch` needs; the engine is not launched yet. All stages run
    /// one after the other, so one step is in flight, whatever the options say.
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
        let placement = Placement {
            plan,
            ladders: &ladders,
            options: &options,
            dtype,
            sink,
            hold: launch == Launch::DeviceGraph,
        };
        let programs: Vec<Box<dyn StepProgram>> = programs(gpu, model, &placement)?
            .into_iter()
            .map(|program| Box::new(program) as Box<dyn StepProgram>)
            .collect();
        let capacities = RingCapacities::new(&options);
        let by_host = |programs, way| {
            let place = StagePlace { index: 0, count: 1 };
            let program = Box::new(InOrder(programs));
            let stage = HostLaunched::new(&gpu.context, program, place, &ladders, &options, way)?;
            Self::on_host(vec![Box::new(stage)], &ladders, &options, capacities)
        };
        match launch {
            Launch::HostKernels => by_host(programs, HostLaunch::Kernels),
            Launch::HostGraph => by_host(programs, HostLaunch::Graph),
            Launch::DeviceGraph => {
                let early = gpu.overlaps_launches();
                let device = GpuScheduler::new(&gpu.context, &gpu.module, programs, early)?;
                Self::on_device(Box::new(device), &ladders, &options, capacities)
            }
        }
    }
}
