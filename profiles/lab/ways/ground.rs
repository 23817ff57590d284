//! What all ways stand on: the memory of their steps, the calls of a step, and how a run of them begins and ends.

use super::Steps;
use super::step::{BUCKETS, Foreseen, STAMPS, Shared, THREADS, WIDEST, blocks};
use crate::backend::Block;
use crate::backend::cuda::driver::call::KernelCall;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::driver::graph::Captured;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::driver::module::Module;
use crate::backend::cuda::engine::program::capture_calls;
use crate::backend::cuda::engine::waiter::is_done;
use crate::backend::cuda::listed::techniques::Technique;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::backend::cuda::tools::progress::Progress;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, CudaStream};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Memory and kernels of one way.
pub struct Ground {
    pub technique: Technique,
    pub context: Arc<CudaContext>,
    pub module: Arc<Module>,
    pub stream: Arc<CudaStream>,
    pub layers: u32,
    pub reference: Foreseen,
    layer: Kernel,
    decide: Kernel,
    shared: Shared,
    block: Buffer,
    values: [Buffer; 2],
    stamps: Buffer,
    told: Arc<Pinned>,
}

impl Ground {
    pub(super) fn new(
        gpu: &OpenGpu,
        technique: Technique,
        reference: &Foreseen,
        renew: u32,
    ) -> Result<Self> {
        Shared::check_layout()?;
        let layers = reference.layers();
        let (context, module) = (&gpu.context, &gpu.module);
        let stream = context
            .new_stream()
            .map_err(|error| failed("making a stream", error))?;
        let values = || Buffer::new(context, (4 * THREADS * WIDEST) as usize);
        let values = [values()?, values()?];
        let stamps = Buffer::new(context, 8 * STAMPS)?;
        let told = Pinned::new(context, size_of::<u64>())?;
        let shared = Shared {
            layers,
            renew,
            values: [values[0].at(0), values[1].at(0)],
            stamps: stamps.at(0),
            told: told.device(),
            ..Shared::default()
        };
        for buffer in &values {
            buffer.fill(&stream, 0)?;
        }
        Ok(Self {
            technique,
            context: context.clone(),
            module: module.clone(),
            layers,
            reference: reference.clone(),
            layer: module.kernel("tg_ways_layer")?,
            decide: module.kernel("tg_ways_decide")?,
            shared,
            block: Buffer::new(context, size_of::<Shared>())?,
            values,
            stamps,
            told,
            stream,
        })
    }

    /// As in `device-tail, bucket 2`.
    pub fn name(&self, what: &str) -> String {
        format!("{}, {what}", self.technique.name())
    }

    /// Where `tg_ways` lies.
    pub fn ways(&self) -> Argument {
        Argument::Address(self.block.at(0))
    }

    /// The calls of a step of this bucket. `decide` ends it in place of the plain kernel.
    pub fn calls(&self, bucket: usize, decide: Option<&Kernel>) -> Vec<KernelCall> {
        let call = |kernel: &Kernel, blocks, arguments| KernelCall {
            kernel: kernel.clone(),
            launch: Launch::blocks(blocks, THREADS),
            arguments,
            ops: vec![],
        };
        let values = |layer: u32| Argument::Address(self.values[layer as usize % 2].at(0));
        let layer = |layer| {
            let arguments = vec![
                values(layer + 1),
                values(layer),
                self.ways(),
                Argument::U32(layer),
            ];
            call(&self.layer, blocks(bucket), arguments)
        };
        let mut calls: Vec<_> = (0..self.layers).map(layer).collect();
        calls.push(call(decide.unwrap_or(&self.decide), 1, vec![self.ways()]));
        calls
    }

    /// A step of this bucket as a graph.
    pub fn capture(&self, bucket: usize, decide: Option<&Kernel>) -> Result<Captured> {
        let name = self.name(&format!("bucket {bucket}"));
        // SAFETY: the memory is this value's, which a run keeps until nothing runs any more.
        unsafe { capture_calls(&self.stream, name, &self.calls(bucket, decide)) }
    }

    /// One kernel of one thread as a graph.
    pub fn capture_head(&self, kernel: &str) -> Result<Captured> {
        let head = KernelCall {
            kernel: self.module.kernel(kernel)?,
            launch: Launch::blocks(1, 1),
            arguments: vec![self.ways()],
            ops: vec![],
        };
        // SAFETY: as in `capture`.
        unsafe { capture_calls(&self.stream, self.name("the head"), &[head]) }
    }

    pub fn place_graph(&mut self, copy: usize, bucket: usize, handle: u64) {
        self.shared.graphs[copy][bucket] = handle;
    }

    /// Steps done and the bucket of the next, as the last step has told.
    pub fn told(&self) -> (u64, usize) {
        // SAFETY: the word is alive, aligned, and only ever touched atomically.
        let told = unsafe { AtomicU64::from_ptr(self.told.start().as_ptr().cast()) };
        let told = told.load(Ordering::Acquire);
        (told / BUCKETS as u64, (told % BUCKETS as u64) as usize)
    }

    /// Nothing runs: steps may go on until `limit` are done.
    fn begin(&mut self, limit: u64) -> Result<()> {
        self.shared.limit = limit;
        self.shared.launched = 0;
        self.shared.arrived = 0;
        let bytes = bytemuck::bytes_of(&self.shared);
        self.block.write(&self.stream, 0, bytes)
    }

    /// Takes back what the steps left; when each of the last ended, by the GPU's clock.
    fn end(&mut self, from: u64, until: u64) -> Result<Vec<u64>> {
        let bytes = bytemuck::bytes_of_mut(&mut self.shared);
        self.block.read(&self.stream, 0, bytes)?;
        let way = self.technique.name();
        if let Some(failure) = self.shared.failure() {
            return Err(Error::Runtime(failure.message(way)));
        }
        if self.shared.step != until {
            return Err(self.ended_early(until));
        }
        let expected = self.reference.digest(until);
        if self.shared.digest != expected {
            return Err(Error::Runtime(format!(
                "{way}: after {until} steps of {} kernels the digest is {:016x}, expected {expected:016x}, as every way gives: \
                 a kernel did not run, or ran before the one ahead of it had ended",
                self.layers + 1,
                self.shared.digest
            )));
        }
        let mut stamps = vec![0u64; STAMPS];
        let bytes = bytemuck::cast_slice_mut(&mut stamps);
        self.stamps.read(&self.stream, 0, bytes)?;
        let stamp = |step: u64| stamps[step as usize % STAMPS];
        Ok((from..until).map(stamp).collect())
    }
}

impl Progress for Ground {
    /// Beside any number of other processes.
    const STEP_TIMEOUT: Duration = Duration::from_secs(10);

    fn is_done(&self) -> Result<bool> {
        is_done(&self.stream).map_err(|error| failed(&self.name("running on the GPU"), error))
    }

    fn steps_told(&self) -> u64 {
        self.told().0
    }

    fn late(&self, limit: Duration) -> Error {
        let (steps, bucket) = self.told();
        Error::Runtime(format!(
            "{}: step {steps}, bucket {bucket}, did not end within {} s, expected microseconds: another process may hold the GPU",
            self.technique.name(),
            limit.as_secs()
        ))
    }

    fn ended_early(&self, until: u64) -> Error {
        let (steps, bucket) = self.told();
        Error::Runtime(format!(
            "{}: all launches ended at step {steps}, bucket {bucket}, expected {until} steps: a launch was lost",
            self.technique.name()
        ))
    }
}

/// A way and its memory. Where it fails, both stay: the GPU may still be at it.
pub struct Run {
    ground: ManuallyDrop<Ground>,
    steps: ManuallyDrop<Box<dyn Steps>>,
    done: u64,
    failed: bool,
}

/// Steps in a row, and what they took.
#[derive(Debug, Clone, Default)]
pub struct Chunk {
    /// When each step ended, by the GPU's clock.
    pub ends_ns: Vec<u64>,
    /// By the host.
    pub launches: u64,
}

impl Run {
    pub(super) fn new(ground: Ground, steps: Box<dyn Steps>) -> Self {
        Self {
            ground: ManuallyDrop::new(ground),
            steps: ManuallyDrop::new(steps),
            done: 0,
            failed: false,
        }
    }

    /// Runs `count` steps more, at most [`STAMPS`], and compares what they computed with the reference.
    ///
    /// # Errors
    /// [`Error::Runtime`] that names the way, and the step, node and limit at which it failed. It runs no more then.
    pub fn run(&mut self, count: u64) -> Result<Chunk> {
        assert!(count <= STAMPS as u64, "{count} steps in a chunk");
        assert!(!self.failed, "a way that failed is not run again");
        self.failed = true;
        let (from, until) = (self.done, self.done + count);
        self.foresee(count);
        self.ground.begin(until)?;
        let launches = self.steps.run(&mut self.ground, until)?;
        self.ground.wait_for_all()?;
        let ends_ns = self.ground.end(from, until)?;
        self.done = until;
        self.failed = false;
        Ok(Chunk { ends_ns, launches })
    }

    /// Works out what the next `count` steps must give: for ways that know shapes beforehand before the clock runs.
    pub fn foresee(&self, count: u64) {
        self.ground.reference.digest(self.done + count);
    }

    /// Steps so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Of all steps so far.
    pub fn digest(&self) -> u64 {
        self.ground.shared.digest
    }

    /// Siblings that the GPU did not take in time, so that the head went on.
    pub fn not_taken(&self) -> u32 {
        self.ground.shared.not_taken
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.failed {
            // SAFETY: dropped here alone; nothing runs, and graphs go before the memory that they use.
            unsafe {
                ManuallyDrop::drop(&mut self.steps);
                ManuallyDrop::drop(&mut self.ground);
            }
        }
    }
}
