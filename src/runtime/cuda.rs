//! An engine for a model on one GPU, in each of the ways to launch it.

use super::engine::{Engine, device_shape};
pub use super::options::Launch;
use super::sizes::Sizes;
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::engine::ahead::HostAhead;
use crate::backend::cuda::engine::captures::Captures;
use crate::backend::cuda::engine::delivery::pinned_bytes;
use crate::backend::cuda::engine::hosted::{HostLaunch, HostLaunched, StagePlace};
use crate::backend::cuda::engine::model::{InOrder, ModelProgram, Placement, programs};
use crate::backend::cuda::engine::program::StepProgram;
use crate::backend::cuda::engine::scheduler::{GpuScheduler, table_bytes};
use crate::backend::cuda::engine::step_copy::step_copy_bytes;
use crate::backend::cuda::tools::routing::RoutingReader;
use crate::backend::cuda::tools::stamps::stamped;
use crate::backend::timing::StepClock;
use crate::backend::{LogitsSink, RoutingSink, SharedSink, StageBackend};
use crate::error::{Error, Result};
use crate::model::{DType, Model};
use crate::plan::arena::logits_rows;
use crate::plan::device::Overheads;
use crate::plan::{EngineOptions, Ladders, Plan, RingCapacities};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

impl Engine {
    /// Copies the model to the GPU and captures what `launch` needs; the engine is not launched yet. All stages run
    /// one after the other, so one step is in flight (two where the host runs ahead), whatever the options say.
    ///
    /// # Errors
    /// [`Error::Usage`] for what the GPU path does not take; [`Error::Memory`] where there is too little;
    /// [`Error::Runtime`] for what the driver refuses.
    pub fn on_gpu(
        gpu: &OpenGpu,
        model: &Model,
        plan: &Plan,
        options: &EngineOptions,
        dtype: DType,
        launch: Launch,
        sink: &SharedSink,
    ) -> Result<Self> {
        let same = |programs, _: &Ladders| Ok(programs);
        Self::on_gpu_with(gpu, model, plan, options, dtype, launch, sink, same)
    }

    /// [`Engine::on_gpu`] with steps timed kernel by kernel, and where the times come out.
    ///
    /// # Errors
    /// As [`Engine::on_gpu`].
    pub fn on_gpu_timed(
        gpu: &OpenGpu,
        model: &Model,
        plan: &Plan,
        options: &EngineOptions,
        dtype: DType,
        launch: Launch,
        sink: &SharedSink,
    ) -> Result<(Self, Box<dyn StepClock>)> {
        let mut clock = None;
        let early = gpu.overlaps_launches();
        let timed = |programs, ladders: &Ladders| {
            let slots = options.max_seqs;
            let timed = stamped(&gpu.context, &gpu.module, early, programs, ladders, slots)?;
            let (programs, stamps) = timed;
            clock = Some(stamps);
            Ok(programs)
        };
        let engine = Self::on_gpu_with(gpu, model, plan, options, dtype, launch, sink, timed)?;
        let clock = clock.ok_or_else(|| {
            Error::Runtime("an engine was made without its programs: this is a bug".into())
        })?;
        Ok((engine, Box::new(clock)))
    }

    /// `wrap` gets the programs of all stages before anything is made of them.
    #[expect(clippy::too_many_arguments)]
    fn on_gpu_with(
        gpu: &OpenGpu,
        model: &Model,
        plan: &Plan,
        options: &EngineOptions,
        dtype: DType,
        launch: Launch,
        sink: &SharedSink,
        wrap: impl FnOnce(Vec<Box<dyn StepProgram>>, &Ladders) -> Result<Vec<Box<dyn StepProgram>>>,
    ) -> Result<Self> {
        let options = options.one_step_in_flight();
        let held_up = Arc::new(AtomicBool::new(false));
        let sink: &SharedSink = &sink.clone().map(|sink| {
            let held_up = held_up.clone();
            Arc::new(TellingSink { sink, held_up }) as Arc<dyn LogitsSink>
        });
        let ladders = plan.ladders.reachable(&options);
        let capacities = RingCapacities::new(&options);
        let placement = Placement {
            plan,
            ladders: &ladders,
            options: &options,
            dtype,
            sink,
            hold: launch == Launch::DeviceGraph,
        };
        let programs = wrap(boxed(gpu, model, &placement)?, &ladders)?;
        let by_host = |stage| Self::on_host(vec![stage], &ladders, &options, capacities);
        let launched = |programs, way| -> Result<Box<dyn StageBackend>> {
            Ok(Box::new(whole(gpu, programs, &ladders, &options, way)?))
        };
        let mut engine = match launch {
            Launch::HostKernels => by_host(launched(programs, HostLaunch::Kernels)?),
            Launch::HostGraph => by_host(launched(programs, HostLaunch::Graph)?),
            Launch::HostGraphAhead => {
                let program = Box::new(InOrder(programs));
                let stage = HostAhead::new(&gpu.context, program, &ladders, &options)?;
                by_host(Box::new(stage))
            }
            Launch::DeviceGraph => {
                let early = gpu.overlaps_launches();
                let device = GpuScheduler::new(&gpu.context, &gpu.module, programs, early)?;
                Self::on_device(Box::new(device), &ladders, &options, capacities)
            }
        }?;
        engine.held_up = Some(held_up);
        Ok(engine)
    }
}

/// An engine that tells `routing` where the rows of every step go, launched kernel by kernel and not yet running. It
/// waits at every router, so there is nothing to time.
///
/// # Errors
/// As [`Engine::on_gpu`].
pub fn with_routing(
    gpu: &OpenGpu,
    model: &Model,
    plan: &Plan,
    options: &EngineOptions,
    dtype: DType,
    sink: &SharedSink,
    routing: &Arc<dyn RoutingSink>,
) -> Result<Engine> {
    let options = options.one_step_in_flight();
    let ladders = plan.ladders.reachable(&options);
    let placement = Placement {
        plan,
        ladders: &ladders,
        options: &options,
        dtype,
        sink,
        hold: false,
    };
    let programs = programs(gpu, model, &placement)?;
    // Stages share their arrays.
    let chosen = programs[0].chosen_experts();
    let program = Box::new(RoutingReader {
        program: InOrder(programs.into_iter().map(boxed_program).collect()),
        chosen,
        routing: routing.clone(),
    });
    let (place, way) = (StagePlace { index: 0, count: 1 }, HostLaunch::Kernels);
    let stage = HostLaunched::new(&gpu.context, program, place, &ladders, &options, way)?;
    let capacities = RingCapacities::new(&options);
    Engine::on_host(vec![Box::new(stage)], &ladders, &options, capacities)
}

/// What `launch` takes beside the model for a run with these sizes, in the words of `doctor`. `delivers`: there is a
/// sink, so that requests may ask for logits.
///
/// # Errors
/// [`Error::Usage`] for sizes that break one of the core's rules.
pub fn overheads(
    launch: Launch,
    plan: &Plan,
    options: &EngineOptions,
    delivers: bool,
) -> Result<Overheads> {
    let ladders = plan.ladders.reachable(options);
    let (scheduler, pinned, pinned_arithmetic) = match launch {
        // The copy has room for two steps whether the host runs ahead or not.
        Launch::HostKernels | Launch::HostGraph | Launch::HostGraphAhead => {
            let bytes = step_copy_bytes(options);
            (
                bytes,
                bytes,
                "what a step's tables are copied from".to_owned(),
            )
        }
        Launch::DeviceGraph => {
            let rings = RingCapacities::new(options);
            let shape = device_shape(&ladders, options, rings);
            let sizes = Sizes::of(&shape, options.record)?;
            let arithmetic = format!(
                "{} requests, {} tokens, {} events, {} trace records",
                rings.requests, rings.tokens, rings.events, rings.trace
            );
            (table_bytes(sizes.state_bytes), sizes.ring_bytes, arithmetic)
        }
    };
    let (rows, vocabulary) = (ladders.largest() as usize, plan.config.vocab_size);
    let lines = logits_rows(rows, options.max_seqs as usize);
    Ok(Overheads {
        scheduler_bytes: scheduler as u64,
        pinned_bytes: pinned as u64,
        pinned_arithmetic,
        logits_bytes: match delivers {
            true => pinned_bytes(lines, vocabulary) as u64,
            false => 0,
        },
        logits_arithmetic: format!("two tiles of {lines} rows of {vocabulary}, for `score` alone"),
    })
}

/// Puts the model on the GPU and captures what a run in the way of `launch` would, for `survey` to look at.
///
/// # Errors
/// As [`Engine::on_gpu`]; [`Error::Usage`] where `launch` captures nothing.
pub fn capture_all(
    gpu: &OpenGpu,
    model: &Model,
    plan: &Plan,
    options: &EngineOptions,
    dtype: DType,
    launch: Launch,
    captures: &mut Captures<'_>,
) -> Result<()> {
    let options = options.one_step_in_flight();
    let ladders = plan.ladders.reachable(&options);
    let slots = options.max_seqs;
    let placement = Placement {
        plan,
        ladders: &ladders,
        options: &options,
        dtype,
        sink: &None,
        hold: launch == Launch::DeviceGraph,
    };
    match launch {
        Launch::HostKernels => Err(Error::Usage(
            "--launch host-kernels captures no graphs: expected host-graph or device-graph".into(),
        )),
        Launch::HostGraph | Launch::HostGraphAhead => {
            let program = InOrder(boxed(gpu, model, &placement)?);
            let stages = 0..plan.stages.len();
            captures.of_host(&gpu.context, &program, stages, &ladders, &options)
        }
        Launch::DeviceGraph => {
            let programs = boxed(gpu, model, &placement)?;
            let early = gpu.overlaps_launches();
            let device = GpuScheduler::new(&gpu.context, &gpu.module, programs, early)?;
            let rings = RingCapacities::new(&options);
            let sizes = Sizes::new(&options, &ladders, 1, rings, options.record)?;
            device.capture_all(
                sizes.state_bytes,
                sizes.ring_bytes,
                &ladders,
                slots,
                captures,
            )
        }
    }
}

/// Says when the sink has rows in hand: steps wait until it is done with them, however slow its disk is.
struct TellingSink {
    sink: Arc<dyn LogitsSink>,
    held_up: Arc<AtomicBool>,
}

impl LogitsSink for TellingSink {
    fn rows(&self, request: u64, position: u32, logits: &[f32]) -> Result<()> {
        let _held_up = HeldUp::new(&self.held_up);
        self.sink.rows(request, position, logits)
    }
}

/// Set until it is dropped, also by a panic: then the watchdog looks at steps again.
struct HeldUp<'a>(&'a AtomicBool);

impl<'a> HeldUp<'a> {
    fn new(flag: &'a AtomicBool) -> Self {
        flag.store(true, Ordering::Release);
        Self(flag)
    }
}

impl Drop for HeldUp<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
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
) -> Result<HostLaunched> {
    let placement = Placement {
        plan,
        ladders: &plan.ladders.reachable(options),
        options,
        dtype,
        sink,
        hold: false,
    };
    let programs = boxed(gpu, model, &placement)?;
    whole(gpu, programs, placement.ladders, options, way)
}

/// All stages, one after the other, launched by the host.
fn whole(
    gpu: &OpenGpu,
    programs: Vec<Box<dyn StepProgram>>,
    ladders: &Ladders,
    options: &EngineOptions,
    way: HostLaunch,
) -> Result<HostLaunched> {
    let program = Box::new(InOrder(programs));
    let place = StagePlace { index: 0, count: 1 };
    HostLaunched::new(&gpu.context, program, place, ladders, options, way)
}

fn boxed(
    gpu: &OpenGpu,
    model: &Model,
    placement: &Placement<'_>,
) -> Result<Vec<Box<dyn StepProgram>>> {
    let programs = programs(gpu, model, placement)?.into_iter();
    Ok(programs.map(boxed_program).collect())
}

fn boxed_program(program: ModelProgram) -> Box<dyn StepProgram> {
    Box::new(program)
}
