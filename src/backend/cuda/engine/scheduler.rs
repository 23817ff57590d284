//! The GPU that schedules itself: every step captured with the dispatcher as its last node, all of them in a table in
//! device memory, and one launch by the host. How they follow each other stands in kernels/sched/dispatch.cuh.
//!
//! While it runs, other threads may launch and copy on streams of their own, but not allocate or free device memory:
//! the driver waits for all running work then, and the dispatcher never ends by itself.

use crate::backend::cuda::driver::call::KernelCall;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::driver::graph::Captured;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::driver::module::Module;
use crate::backend::cuda::engine::captures::Captures;
use crate::backend::cuda::engine::dispatcher_blocks::Blocks;
use crate::backend::cuda::engine::instantiate::instantiate;
use crate::backend::cuda::engine::program::{
    StepCapture, StepGraph, StepProgram, all_buckets, capture_step,
};
use crate::backend::cuda::engine::shared_block::{bytes_of, head_of, tell_to_stop};
use crate::backend::cuda::engine::shared_queue::{self, Seat};
use crate::backend::cuda::engine::waiter::is_done;
use crate::backend::cuda::families::Bucket;
use crate::backend::device::CoreBytes;
use crate::backend::{Claimer, DeviceScheduler, LaunchWay, QueueMemory, SharedRegion};
use crate::error::{Error, Result};
use crate::plan::BucketSizes;
use crate::sys::abi;
use crate::telemetry::phases::{Phase, phase};
use cudarc::driver::{CudaContext, CudaStream};
use std::mem::offset_of;
use std::sync::Arc;

/// All stages of a plan on one GPU, and the scheduler core beside them.
pub struct GpuScheduler {
    context: Arc<CudaContext>,
    stream: Arc<CudaStream>,
    module: Arc<Module>,
    dispatch: Kernel,
    /// Its dispatcher can claim requests from a queue.
    may_claim: bool,
    begin_step: Kernel,
    begin_stage: Kernel,
    programs: Vec<Box<dyn StepProgram>>,
    /// A step's graph is launched beside the one before, so it is another one.
    beside: bool,
    pdl: bool,
    prepared: Option<Prepared>,
    launched: bool,
}

/// What the running graphs use.
struct Prepared {
    idle: Exec,
    /// Executables whose handles are in the table.
    _steps: Vec<Vec<Exec>>,
    blocks: Blocks,
    /// Where its requests come from, if not over the rings.
    seat: Option<Seat>,
}

/// A stage's step of a bucket, which is captured as one graph.
struct Part {
    stage: usize,
    bucket: Bucket,
    /// The bucket's place among those of its kind.
    column: usize,
}

impl GpuScheduler {
    /// `programs`: one per stage, in order. `pdl`: kernels were launched with programmatic dependent launch, so the
    /// dispatcher is too. `way`: one of the device's.
    ///
    /// # Errors
    /// [`Error::Usage`] for no stage or too many, and for a way of the host's; [`Error::Runtime`] for what the driver refuses.
    pub fn new(
        context: &Arc<CudaContext>,
        module: &Arc<Module>,
        programs: Vec<Box<dyn StepProgram>>,
        pdl: bool,
        way: LaunchWay,
    ) -> Result<Self> {
        let dispatch = match (way, programs.len()) {
            (LaunchWay::DeviceGraph, 1) => "tg_dispatch",
            (LaunchWay::DeviceGraph | LaunchWay::DeviceGraphTail, _) => "tg_dispatch_tail",
            (way, _) => {
                return Err(Error::Usage(format!(
                    "`launch` {}: the host launches its steps, expected a way of the GPU's",
                    way.name()
                )));
            }
        };
        let most = abi::TG_MAX_STAGES as usize;
        if programs.is_empty() || programs.len() > most {
            return Err(Error::Usage(format!(
                "{} stages on one GPU: expected 1 to {most}",
                programs.len()
            )));
        }
        Ok(Self {
            context: context.clone(),
            stream: context
                .new_stream()
                .map_err(|error| failed("making a stream", error))?,
            module: module.clone(),
            dispatch: module.kernel(dispatch)?,
            may_claim: dispatch != "tg_dispatch",
            begin_step: module.kernel("tg_begin_step")?,
            begin_stage: module.kernel("tg_begin_stage")?,
            beside: way == LaunchWay::DeviceGraph && programs.len() == 1,
            programs,
            pdl,
            prepared: None,
            launched: false,
        })
    }

    fn launch_of(&self, threads: u32) -> Launch {
        Launch {
            pdl: self.pdl,
            ..Launch::blocks(1, threads)
        }
    }

    /// Executables that are made of each graph (`TG_COPIES`).
    fn copies(&self) -> usize {
        if self.beside {
            abi::TG_COPIES as usize
        } else {
            1
        }
    }

    /// Every stage's step of every bucket.
    fn parts(&self, bucket_sizes: &BucketSizes, slots: u32) -> Vec<Part> {
        let stage = |stage| {
            let part = move |(column, bucket)| Part {
                stage,
                bucket,
                column,
            };
            all_buckets(bucket_sizes, slots).map(part)
        };
        (0..self.programs.len()).flat_map(stage).collect()
    }

    /// Captures what begins a step, its kernels, and a dispatcher behind them where the stage is the last.
    ///
    /// # Errors
    /// What a program or the capture gives.
    ///
    /// # Safety
    /// The blocks are alive and nobody else's whenever the graph runs, and so is what the programs use.
    unsafe fn capture(&self, part: &Part, blocks: &Blocks) -> Result<StepGraph> {
        let step = StepCapture {
            program: self.programs[part.stage].as_ref(),
            stage: part.stage,
            bucket: part.bucket,
            at: blocks.step(),
        };
        let call = |kernel: &Kernel, threads, arguments| KernelCall {
            kernel: kernel.clone(),
            launch: self.launch_of(threads),
            arguments,
            weights: vec![],
            ops: vec![],
        };
        let first = match step.stage {
            0 => {
                let chain = Argument::Address(blocks.chain.at(0));
                call(&self.begin_step, 1, vec![chain])
            }
            stage => {
                let rings = Argument::Address(blocks.rings.device());
                let stage = Argument::U32(stage as u32);
                call(&self.begin_stage, 1, vec![rings, stage])
            }
        };
        let is_last = step.stage + 1 == self.programs.len();
        let last = is_last.then(|| {
            let arguments = blocks.dispatch(abi::TG_DISPATCH_BEHIND).to_vec();
            call(&self.dispatch, abi::TG_DISPATCH_THREADS, arguments)
        });
        let last = last.into_iter().collect();
        // SAFETY: the caller's promise.
        unsafe { capture_step(&self.stream, step, vec![first], last) }
    }

    /// The graph that begins chains of steps, and is launched by the host.
    ///
    /// # Errors
    /// What the driver refuses.
    ///
    /// # Safety
    /// The blocks are alive and nobody else's whenever it runs.
    unsafe fn idle(&self, blocks: &Blocks) -> Result<Exec> {
        let captured = {
            let _phase = phase(Phase::Capture);
            Captured::capture(&self.stream, "the idle dispatcher", |stream| {
                let launch = Launch::blocks(1, abi::TG_DISPATCH_THREADS);
                let arguments = blocks.dispatch(abi::TG_DISPATCH_IDLE);
                // SAFETY: the arguments are the kernel's; the rest is the caller's promise.
                unsafe { self.dispatch.launch(stream, launch, &arguments) }
            })?
        };
        Exec::new(&captured, LaunchedBy::Device)
    }
}

impl GpuScheduler {
    /// Captures and instantiates what a run would, over blocks of these sizes, for `captures` to look at. Nothing runs.
    ///
    /// # Errors
    /// Fails as the start of a run does.
    pub fn capture_all(
        &self,
        core: CoreBytes,
        bucket_sizes: &BucketSizes,
        slots: u32,
        captures: &mut Captures,
    ) -> Result<()> {
        let blocks = Blocks::new(&self.context, core.state, core.rings)?;
        for part in self.parts(bucket_sizes, slots) {
            // SAFETY: the graph is never launched.
            let graph = unsafe { self.capture(&part, &blocks) }?;
            let stages = part.stage..part.stage + 1;
            captures.add(&graph, stages, LaunchedBy::Device, self.copies())?;
        }
        Ok(())
    }
}

impl DeviceScheduler for GpuScheduler {
    fn name(&self) -> String {
        format!("cuda:{}", self.context.ordinal())
    }

    fn may_claim(&mut self) -> Result<()> {
        if !self.may_claim {
            self.dispatch = self.module.kernel("tg_dispatch_claims")?;
            self.may_claim = true;
        }
        Ok(())
    }

    fn prepare(
        &mut self,
        state: &[u8],
        ring_bytes: usize,
        bucket_sizes: &BucketSizes,
        slots: u32,
    ) -> Result<Box<dyn SharedRegion>> {
        let blocks = Blocks::new(&self.context, state.len(), ring_bytes)?;
        blocks.state.write(&self.stream, 0, state)?;
        let nothing_begun = [0; size_of::<abi::tg_chain>()];
        blocks.chain.write(&self.stream, 0, &nothing_begun)?;
        let making = phase(Phase::Graphs);
        let parts = self.parts(bucket_sizes, slots);
        let steps = parts.iter().map(|part| {
            // SAFETY: all blocks, and the programs, live as long as the graphs made here: in `self`, which ends what
            // runs before it goes.
            let step = unsafe { self.capture(part, &blocks) };
            step.map(|step| step.graph)
        });
        let steps = instantiate(&self.context, LaunchedBy::Device, self.copies(), steps)?;
        // SAFETY: as above.
        let idle = unsafe { self.idle(&blocks) }?;
        drop(making);
        let mut table = abi::tg_graphs {
            idle: idle.device_handle(),
            stages: self.programs.len() as u64,
            ..Default::default()
        };
        for (part, copies) in parts.iter().zip(&steps) {
            let kind = part.bucket.kind as usize;
            for (copy, exec) in copies.iter().enumerate() {
                table.step[copy][part.stage][kind][part.column] = exec.device_handle();
            }
        }
        blocks.table.write(&self.stream, 0, bytes_of(&table))?;
        let rings = blocks.rings.clone();
        self.prepared = Some(Prepared {
            idle,
            _steps: steps,
            blocks,
            seat: None,
        });
        Ok(Box::new(rings))
    }

    fn queue_memory(&self, bytes: usize) -> Result<Option<QueueMemory>> {
        shared_queue::on_gpu(&self.context, &self.stream, bytes).map(Some)
    }

    fn reaches(&self, queue: &QueueMemory) -> Result<bool> {
        shared_queue::reaches(&self.context, queue)
    }

    fn claim_from(&mut self, queue: &Arc<QueueMemory>, claimer: Claimer) -> Result<()> {
        if !self.may_claim {
            return Err(Error::Runtime(
                "a GPU that runs alone was to claim its requests: this is a bug in tailgraph"
                    .into(),
            ));
        }
        let prepared = self.prepared.as_mut().ok_or_else(|| {
            Error::Runtime("the GPU's scheduler was to claim before it was prepared".into())
        })?;
        let (seat, words) = shared_queue::seat(&self.context, queue, claimer)?;
        let at = offset_of!(abi::tg_state, claimer);
        let state = &prepared.blocks.state;
        state.write(&self.stream, at, bytes_of(&words))?;
        prepared.seat = Some(seat);
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        let prepared = self.prepared.as_ref().ok_or_else(|| {
            Error::Runtime("the GPU's scheduler was launched before it was prepared".into())
        })?;
        let Blocks { rings, head, .. } = &prepared.blocks;
        // SAFETY: nothing has been launched.
        head.write(&self.stream, 0, unsafe { head_of(rings) })?;
        self.launched = true;
        // SAFETY: what the graphs use is in `self`, which ends what runs before it goes.
        unsafe { prepared.idle.launch() }
    }

    fn running(&mut self) -> Result<bool> {
        self.programs
            .iter()
            .try_for_each(|program| program.check())?;
        let done = is_done(&self.stream);
        done.map(|done| !done)
            .map_err(|error| failed("running on the GPU", error))
    }
}

impl Drop for GpuScheduler {
    /// Ends what still runs: nothing of it may outlive the memory it uses.
    fn drop(&mut self) {
        let Some(prepared) = &self.prepared else {
            return;
        };
        if !self.launched {
            return;
        }
        tell_to_stop(&prepared.blocks.rings);
        for program in &self.programs {
            // Lets a step go on that a program holds up until its failure is known.
            let _ = program.check();
        }
        // A failure means that nothing runs any more; whoever asked has been told.
        let _ = self.stream.synchronize();
    }
}
