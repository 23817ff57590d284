//! A model put on a GPU, in each of the ways to launch it. All stages run one after the other, so one step is in flight (two where
//! the host runs ahead), whatever the options say.

use super::GpuDevice;
use super::in_a_row::InARow;
use super::routing::RoutingReader;
use super::stamps::stamped;
use crate::backend::LaunchWay;
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::engine::ahead::HostAhead;
use crate::backend::cuda::engine::captures::Captures;
use crate::backend::cuda::engine::hosted::{HostLaunched, StagePlace};
use crate::backend::cuda::engine::model::{InOrder, ModelProgram, Placement, programs};
use crate::backend::cuda::engine::program::StepProgram;
use crate::backend::cuda::engine::scheduler::GpuScheduler;
use crate::backend::device::{Clocks, CoreSizes, EngineSpec, Runs, Started, Watch};
use crate::backend::timing::StepClock;
use crate::error::{Error, Result};
use crate::plan::{BucketSizes, EngineOptions};

/// All stages of a GPU.
const WHOLE: StagePlace = StagePlace { index: 0, count: 1 };

impl GpuDevice {
    /// A model's stages, one after the other, launched by the host: `way` is one of the host's. `stamped`: with kernels that leave
    /// stamps, and where these come out.
    ///
    /// # Errors
    /// Fails as [`crate::backend::Device::start`] does.
    pub fn hosted(
        &self,
        spec: &EngineSpec<'_>,
        way: LaunchWay,
        stamped: bool,
    ) -> Result<(HostLaunched, Option<Box<dyn StepClock>>)> {
        let bucket_sizes = &spec.plan.bucket_sizes.reachable(spec.options);
        let placement = self.placement(spec, bucket_sizes, spec.options, false);
        let (mut programs, mut clock) = (boxed(&self.gpu, spec, &placement)?, None);
        if stamped {
            let (timed, stamps) = timed_programs(&self.gpu, programs, bucket_sizes, spec.options)?;
            (programs, clock) = (timed, Some(stamps));
        }
        let (context, program) = (&self.gpu.context, Box::new(InOrder(programs)));
        let stage = HostLaunched::new(context, program, WHOLE, bucket_sizes, spec.options, way)?;
        Ok((stage, clock))
    }

    /// How a whole model lies on this GPU. `hold`: see [`Placement`].
    pub fn placement<'a>(
        &'a self,
        spec: &EngineSpec<'a>,
        bucket_sizes: &'a BucketSizes,
        options: &'a EngineOptions,
        hold: bool,
    ) -> Placement<'a> {
        Placement {
            plan: spec.plan,
            stages: &spec.plan.stages,
            bucket_sizes,
            options,
            spec: &self.spec,
            sink: spec.sink,
            hold,
        }
    }
}

pub(super) fn start(
    device: &GpuDevice,
    spec: &EngineSpec<'_>,
    watch: Watch<'_>,
) -> Result<Started> {
    let GpuDevice { gpu, spec: of_gpu } = device;
    let options = spec.options.one_step_in_flight();
    let bucket_sizes = spec.plan.bucket_sizes.reachable(&options);
    // Where steps wait at every router there is nothing for the GPU to schedule.
    let way = match watch {
        Watch::Routing(_) => LaunchWay::HostKernels,
        Watch::Nothing | Watch::Times { .. } | Watch::Stages => of_gpu.launch,
    };
    let hold = way.is_device();
    let placement = device.placement(spec, &bucket_sizes, &options, hold);
    let mut clocks = Clocks::default();
    let runs = match watch {
        Watch::Nothing | Watch::Stages => {
            let programs = boxed(gpu, spec, &placement)?;
            launched(gpu, programs, &bucket_sizes, &options, way)?
        }
        Watch::Times { in_a_row } => {
            let mut programs = boxed(gpu, spec, &placement)?;
            if let Some(operation) = in_a_row {
                let repeated =
                    |inner| Box::new(InARow { inner, operation }) as Box<dyn StepProgram>;
                programs = programs.into_iter().map(repeated).collect();
            }
            let (programs, stamps) = timed_programs(gpu, programs, &bucket_sizes, &options)?;
            clocks.parts = Some(stamps);
            launched(gpu, programs, &bucket_sizes, &options, way)?
        }
        Watch::Routing(routing) => {
            let programs = programs(gpu, spec.model, &placement)?;
            // Stages share their arrays.
            let chosen = programs[0].chosen_experts();
            let program = Box::new(RoutingReader {
                program: InOrder(programs.into_iter().map(boxed_program).collect()),
                chosen,
                routing: routing.clone(),
            });
            let stage =
                HostLaunched::new(&gpu.context, program, WHOLE, &bucket_sizes, &options, way)?;
            Runs::Stages(vec![Box::new(stage)])
        }
    };
    Ok(Started {
        runs,
        bucket_sizes,
        options,
        clocks,
        step_timeout: Some(of_gpu.step_timeout),
    })
}

/// What runs the steps of `programs`, which are all stages in order, in one of the ways to launch them.
///
/// # Errors
/// Fails as [`crate::backend::Device::start`] does.
pub fn launched(
    gpu: &OpenGpu,
    programs: Vec<Box<dyn StepProgram>>,
    bucket_sizes: &BucketSizes,
    options: &EngineOptions,
    way: LaunchWay,
) -> Result<Runs> {
    let context = &gpu.context;
    Ok(match way {
        LaunchWay::Bare
        | LaunchWay::HostKernels
        | LaunchWay::HostGraph
        | LaunchWay::HostGraphEvent
        | LaunchWay::HostGraphBlock => {
            let program = Box::new(InOrder(programs));
            let stage = HostLaunched::new(context, program, WHOLE, bucket_sizes, options, way)?;
            Runs::Stages(vec![Box::new(stage)])
        }
        LaunchWay::HostGraphAhead => {
            let program = Box::new(InOrder(programs));
            let stage = HostAhead::new(context, program, bucket_sizes, options)?;
            Runs::Stages(vec![Box::new(stage)])
        }
        LaunchWay::DeviceGraph | LaunchWay::DeviceGraphTail => {
            let pdl = gpu.overlaps_launches();
            let scheduler = GpuScheduler::new(context, &gpu.module, programs, pdl, way)?;
            Runs::Scheduler(Box::new(scheduler))
        }
    })
}

/// Puts the model on the GPU and captures what a run in the way of the device's spec would, for `captures` to look at.
///
/// # Errors
/// Fails as [`crate::backend::Device::start`] does; [`Error::Usage`] where that way captures nothing.
pub fn capture_all(
    device: &GpuDevice,
    spec: &EngineSpec<'_>,
    core: CoreSizes,
    captures: &mut Captures,
) -> Result<()> {
    let GpuDevice { gpu, spec: of_gpu } = device;
    let options = spec.options.one_step_in_flight();
    let bucket_sizes = spec.plan.bucket_sizes.reachable(&options);
    let hold = of_gpu.launch.is_device();
    let placement = device.placement(spec, &bucket_sizes, &options, hold);
    match of_gpu.launch {
        LaunchWay::HostKernels => Err(Error::Usage(
            "`launch` host-kernels captures no graphs: expected host-graph or device-graph".into(),
        )),
        LaunchWay::Bare
        | LaunchWay::HostGraph
        | LaunchWay::HostGraphEvent
        | LaunchWay::HostGraphBlock
        | LaunchWay::HostGraphAhead => {
            let program = InOrder(boxed(gpu, spec, &placement)?);
            let stages = 0..spec.plan.stages.len();
            captures.of_host(&gpu.context, &program, stages, &bucket_sizes, &options)
        }
        way @ (LaunchWay::DeviceGraph | LaunchWay::DeviceGraphTail) => {
            let programs = boxed(gpu, spec, &placement)?;
            let pdl = gpu.overlaps_launches();
            let scheduler = GpuScheduler::new(&gpu.context, &gpu.module, programs, pdl, way)?;
            let core = core(&bucket_sizes, &options, 1)?;
            scheduler.capture_all(core, &bucket_sizes, options.max_seqs, captures)
        }
    }
}

/// The stages of a GPU as one.
pub(super) fn all_of_gpu(
    gpu: &OpenGpu,
    spec: &EngineSpec<'_>,
    placement: &Placement<'_>,
) -> Result<InOrder> {
    boxed(gpu, spec, placement).map(InOrder)
}

type Programs = Vec<Box<dyn StepProgram>>;

/// `programs` whose kernels leave stamps, and where these come out.
fn timed_programs(
    gpu: &OpenGpu,
    programs: Programs,
    bucket_sizes: &BucketSizes,
    options: &EngineOptions,
) -> Result<(Programs, Box<dyn StepClock>)> {
    let (pdl, slots) = (gpu.overlaps_launches(), options.max_seqs);
    let (programs, clock) = stamped(
        &gpu.context,
        &gpu.module,
        pdl,
        programs,
        bucket_sizes,
        slots,
    )?;
    Ok((programs, Box::new(clock)))
}

fn boxed(
    gpu: &OpenGpu,
    spec: &EngineSpec<'_>,
    placement: &Placement<'_>,
) -> Result<Vec<Box<dyn StepProgram>>> {
    let programs = programs(gpu, spec.model, placement)?.into_iter();
    Ok(programs.map(boxed_program).collect())
}

fn boxed_program(program: ModelProgram) -> Box<dyn StepProgram> {
    Box::new(program)
}
