//! A pipeline over GPUs that hand steps to each other (kernels/sched/stages.cu): each has a stage, with its own graphs, tables
//! and dispatcher; the first has the scheduler's core too. The host launches each once.

mod blocks;
mod links;
mod times;

use self::blocks::Blocks;
pub use self::links::stage_bytes;
use self::links::{LinkShape, Links};
use self::times::{PipelineClock, Times};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::KernelCall;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::driver::graph::Captured;
use crate::backend::cuda::driver::image;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::engine::instantiate::instantiate;
use crate::backend::cuda::engine::program::{
    Residual, StepCapture, StepProgram, all_buckets, capture_calls, capture_step,
};
use crate::backend::cuda::engine::shared_block::{bytes_of, head_of, tell_to_stop};
use crate::backend::cuda::engine::waiter::is_done;
use crate::backend::cuda::families::{Bucket, StepAt};
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::backend::{DeviceScheduler, SharedRegion};
use crate::error::{Error, Result};
use crate::plan::BucketSizes;
use crate::sys::abi;
use crate::telemetry::nvtx::{Category, Name, Span, range};
use crate::telemetry::phases::{Phase, phase};
use cudarc::driver::CudaStream;
use std::mem::offset_of;
use std::sync::Arc;
use std::time::Duration;

/// Blocks of the kernels that copy the residual stream from and to a link, at most: enough for the link's speed.
const COPY_BLOCKS: u32 = 64;

/// One GPU's part of a pipeline: its stage's program, all of whose memory is there.
pub struct StageProgram {
    pub gpu: OpenGpu,
    pub program: Box<dyn StepProgram>,
}

/// What is chosen about a pipeline.
#[derive(Debug, Clone, Copy)]
pub struct PipelineSpec {
    /// A stage waits no longer for what another owes it; none: for ever.
    pub limit: Option<Duration>,
    /// GPUs store into each other's memory. Else links lie in pinned memory of the host.
    pub peers: bool,
    /// Stages say when they had each step ([`GpuPipeline::clock`]).
    pub timed: bool,
}

/// Stages that each have a GPU, at least two.
pub struct GpuPipeline {
    spec: PipelineSpec,
    stages: Vec<Stage>,
    prepared: Option<Prepared>,
    launched: bool,
    /// From the launch of each stage to the end of all.
    spans: Vec<Span>,
}

struct Stage {
    gpu: OpenGpu,
    stream: Arc<CudaStream>,
    program: Box<dyn StepProgram>,
    /// `tg_lead` or `tg_follow`.
    dispatch: Kernel,
    /// `tg_begin_lead` or `tg_take`.
    begin: Kernel,
    hand_on: Kernel,
    /// Threads of the kernels that copy.
    copy_threads: u32,
    times: Option<Times>,
}

/// What the running graphs use.
struct Prepared {
    stages: Vec<Running>,
    rings: Arc<Pinned>,
    _links: Links,
}

struct Running {
    idle: Exec,
    /// Executables whose handles are in the table.
    _steps: Vec<Vec<Exec>>,
    blocks: Blocks,
}

impl GpuPipeline {
    /// `stages`: in order, at least two, each on a GPU of its own.
    ///
    /// # Errors
    /// [`Error::Usage`] for too few or too many; [`Error::Runtime`] for what the driver refuses.
    pub fn new(stages: Vec<StageProgram>, spec: PipelineSpec) -> Result<Self> {
        let (count, most) = (stages.len(), abi::TG_MAX_STAGES as usize);
        if !(2..=most).contains(&count) {
            return Err(Error::Usage(format!(
                "a pipeline of {count} stages: expected 2 to {most}"
            )));
        }
        let stage = |(index, stage): (usize, StageProgram)| {
            let StageProgram { gpu, program } = stage;
            let (dispatcher, begin) = match index {
                0 => ("tg_lead", "tg_begin_lead"),
                _ => ("tg_follow", "tg_take"),
            };
            let [copy_threads]: [u32; 1] = image::constants("tg_stages_tile")?;
            let stream = gpu.context.new_stream();
            let stream = stream.map_err(|error| failed("making a stream", error))?;
            let times = spec.timed.then(|| Times::new(&gpu.context, &stream));
            Ok(Stage {
                times: times.transpose()?,
                stream,
                dispatch: gpu.module.kernel(dispatcher)?,
                begin: gpu.module.kernel(begin)?,
                hand_on: gpu.module.kernel("tg_hand_on")?,
                copy_threads,
                gpu,
                program,
            })
        };
        let stages = stages.into_iter().enumerate().map(stage);
        Ok(Self {
            spec,
            stages: stages.collect::<Result<_>>()?,
            prepared: None,
            launched: false,
            spans: vec![],
        })
    }

    /// Where the times of its stages come out, if they are timed.
    pub fn clock(&self) -> Option<PipelineClock> {
        let times = self.stages.iter().map(|stage| stage.times.as_ref());
        times.collect::<Option<Vec<_>>>().map(PipelineClock::new)
    }

    fn is_last(&self, index: usize) -> bool {
        index + 1 == self.stages.len()
    }

    /// The dispatcher of a stage; `place` is a `TG_DISPATCH_*`.
    fn dispatcher(&self, index: usize, rings: Address, blocks: &Blocks, place: u32) -> KernelCall {
        let at = |buffer: &Buffer| Argument::Address(buffer.at(0));
        let (state, table, stage) = (at(&blocks.state), at(&blocks.table), at(&blocks.stage));
        let (place, times) = (Argument::U32(place), self.times(index));
        let (threads, arguments) = match index {
            0 => {
                let rings = Argument::Address(rings);
                let head = at(&blocks.head);
                let arguments = vec![state, rings, head, table, stage, place, times];
                (abi::TG_DISPATCH_THREADS, arguments)
            }
            _ => {
                let last = Argument::U32(self.is_last(index).into());
                let arguments = vec![state, table, stage, place, last, times];
                (abi::TG_MAX_LANES, arguments)
            }
        };
        let launch = Launch::blocks(1, threads);
        self.call(index, &self.stages[index].dispatch, launch, arguments)
    }

    /// Where the stage's kernels note when it had a step; 0: nowhere.
    fn times(&self, index: usize) -> Argument {
        let times = self.stages[index].times.as_ref();
        Argument::Address(times.map_or(0, Times::address))
    }

    fn call(
        &self,
        index: usize,
        kernel: &Kernel,
        launch: Launch,
        arguments: Vec<Argument>,
    ) -> KernelCall {
        KernelCall {
            kernel: kernel.clone(),
            launch: Launch {
                pdl: self.stages[index].gpu.overlaps_launches(),
                ..launch
            },
            arguments,
            weights: vec![],
            ops: vec![],
        }
    }

    /// What begins a step of a bucket in a stage, and what ends it in one before another.
    fn ends(&self, index: usize, bucket: Bucket, blocks: &Blocks) -> Result<[Vec<KernelCall>; 2]> {
        let stage = &self.stages[index];
        let Residual { h, hidden } = stage.program.residual().ok_or_else(|| {
            Error::Runtime(
                "a stage that leaves nothing to hand on: this is a bug in tailgraph".into(),
            )
        })?;
        let at = |buffer: &Buffer| Argument::Address(buffer.at(0));
        let (h, hidden) = (Argument::Address(h), Argument::U32(hidden as u32));
        let copies = Launch::blocks(bucket.rows.min(COPY_BLOCKS) + 1, stage.copy_threads);
        let (launch, arguments) = match index {
            0 => (Launch::blocks(1, 1), vec![at(&blocks.stage)]),
            _ => {
                let arguments = vec![
                    h.clone(),
                    at(&blocks.state),
                    at(&blocks.stage),
                    hidden.clone(),
                    Argument::U32(self.is_last(index).into()),
                    self.times(index),
                ];
                (copies, arguments)
            }
        };
        let mut last = vec![];
        if !self.is_last(index) {
            let (state, links) = (at(&blocks.state), at(&blocks.stage));
            let arguments = vec![state, links, h, hidden, self.times(index)];
            last.push(self.call(index, &stage.hand_on, copies, arguments));
        }
        let first = self.call(index, &stage.begin, launch, arguments);
        Ok([vec![first], last])
    }

    /// Captures a stage's steps of every bucket and its idle graph.
    fn capture(
        &self,
        index: usize,
        rings: Address,
        blocks: Blocks,
        (bucket_sizes, slots): (&BucketSizes, u32),
    ) -> Result<Running> {
        let Stage {
            gpu,
            stream,
            program,
            ..
        } = &self.stages[index];
        let capturing = format!("capture {}", self.stage_name(index as u32));
        let _range = range(Name::of(Category::Start, &capturing));
        let at = StepAt {
            state: blocks.state.at(0),
            step: blocks.stage.at(offset_of!(abi::tg_stage, step)),
            h: None,
        };
        let steps = all_buckets(bucket_sizes, slots).map(|(_, bucket)| {
            let [first, mut last] = self.ends(index, bucket, &blocks)?;
            last.push(self.dispatcher(index, rings, &blocks, abi::TG_DISPATCH_BEHIND));
            let step = StepCapture {
                program: program.as_ref(),
                stage: index,
                bucket,
                at,
            };
            // SAFETY: all blocks, links and programs live as long as the graphs made here: in `self`, which ends what
            // runs before it goes.
            unsafe { capture_step(stream, step, first, last) }.map(|step| step.graph)
        });
        let making = phase(Phase::Graphs);
        let copies = abi::TG_COPIES as usize;
        let steps = instantiate(&gpu.context, LaunchedBy::Device, copies, steps)?;
        let idle = self.dispatcher(index, rings, &blocks, abi::TG_DISPATCH_IDLE);
        // SAFETY: as above.
        let idle: Captured = unsafe { capture_calls(stream, "the idle dispatcher", &[idle]) }?;
        let idle = Exec::new(&idle, LaunchedBy::Device)?;
        drop(making);
        let mut table = abi::tg_graphs {
            idle: idle.device_handle(),
            stages: 1,
            ..Default::default()
        };
        for ((column, bucket), copies) in all_buckets(bucket_sizes, slots).zip(&steps) {
            for (copy, exec) in copies.iter().enumerate() {
                table.step[copy][0][bucket.kind as usize][column] = exec.device_handle();
            }
        }
        blocks.table.write(stream, 0, bytes_of(&table))?;
        Ok(Running {
            idle,
            _steps: steps,
            blocks,
        })
    }
}

impl DeviceScheduler for GpuPipeline {
    fn name(&self) -> String {
        let ordinals = self.stages.iter().map(|stage| stage.gpu.info.ordinal);
        let names: Vec<_> = ordinals.map(|ordinal| format!("cuda:{ordinal}")).collect();
        names.join(", ")
    }

    fn stages(&self) -> u32 {
        self.stages.len() as u32
    }

    fn stage_name(&self, stage: u32) -> String {
        let ordinal = self.stages[stage as usize].gpu.info.ordinal;
        format!("stage {stage} on cuda:{ordinal}")
    }

    fn prepare(
        &mut self,
        state: &[u8],
        ring_bytes: usize,
        bucket_sizes: &BucketSizes,
        slots: u32,
    ) -> Result<Box<dyn SharedRegion>> {
        let hidden = self.stages[0].program.residual().map_or(0, |r| r.hidden);
        let rings = Pinned::unset(&self.stages[0].gpu.context, ring_bytes)?;
        let gpus: Vec<_> = self.stages.iter().map(|stage| &stage.gpu.context).collect();
        let links = Links::new(&gpus, &LinkShape::new(state, hidden)?, self.spec.peers)?;
        let stop = rings.device() + offset_of!(abi::tg_rings, flags) as u64;
        let mut running = vec![];
        for index in 0..self.stages.len() {
            let Stage { gpu, stream, .. } = &self.stages[index];
            let blocks = Blocks::new(&gpu.context, stream, state)?;
            let ends = links.of(index, stop, self.spec.limit);
            let at = offset_of!(abi::tg_stage, links);
            blocks.stage.write(stream, at, bytes_of(&ends))?;
            running.push(self.capture(index, rings.device(), blocks, (bucket_sizes, slots))?);
        }
        self.prepared = Some(Prepared {
            stages: running,
            rings: rings.clone(),
            _links: links,
        });
        Ok(Box::new(rings))
    }

    fn launch(&mut self) -> Result<()> {
        let prepared = self.prepared.as_ref().ok_or_else(|| {
            Error::Runtime("a pipeline was launched before it was prepared".into())
        })?;
        // SAFETY: nothing has been launched.
        let head = unsafe { head_of(&prepared.rings) };
        let first = &prepared.stages[0].blocks;
        first.head.write(&self.stages[0].stream, 0, head)?;
        self.launched = true;
        // The scheduler last, so that the others wait for it and not it for them.
        for (index, stage) in prepared.stages.iter().enumerate().rev() {
            let name = self.stage_name(index as u32);
            let _range = range(Name::of(Category::Run, &format!("launch {name}")));
            // SAFETY: what the graphs use is in `self`, which ends what runs before it goes.
            unsafe { stage.idle.launch() }?;
            self.spans.push(Span::new(Name::of(Category::Run, &name)));
        }
        Ok(())
    }

    fn running(&mut self) -> Result<bool> {
        let mut running = false;
        for (index, stage) in self.stages.iter().enumerate() {
            stage.program.check()?;
            let refused =
                |error| failed(&format!("running {}", self.stage_name(index as u32)), error);
            running |= !is_done(&stage.stream).map_err(refused)?;
        }
        Ok(running)
    }
}

impl Drop for GpuPipeline {
    /// Ends what still runs: nothing of it may outlive the memory it uses.
    fn drop(&mut self) {
        let Some(prepared) = self.prepared.as_ref().filter(|_| self.launched) else {
            return;
        };
        tell_to_stop(&prepared.rings);
        for stage in &self.stages {
            // Lets a step go on that a program holds up until its failure is known.
            let _ = stage.program.check();
        }
        for stage in &self.stages {
            // A failure means that nothing runs there any more; whoever asked has been told.
            let _ = stage.stream.synchronize();
        }
    }
}
