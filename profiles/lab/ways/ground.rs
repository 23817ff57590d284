//! What all ways stand on: the memory of their steps, the calls of a step, and how a run of them begins and ends.

use super::super::measure::{Chunk, Progress, Steps};
use super::super::reference::Reference;
use super::step::{BUCKETS, STAMPS, Shared, THREADS, WIDEST, blocks};
use super::{Launching, Way};
use cudarc::driver::{CudaContext, CudaStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tailgraph::backend::Block;
use tailgraph::backend::cuda::driver::call::{KernelCall, ReadyCall};
use tailgraph::backend::cuda::driver::errors::failed;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::driver::graph::Captured;
use tailgraph::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use tailgraph::backend::cuda::driver::module::Module;
use tailgraph::backend::cuda::engine::program::capture_calls;
use tailgraph::backend::cuda::engine::waiter::is_done;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::memory::pinned::Pinned;
use tailgraph::error::{Error, Result};

/// Memory and kernels of one way.
pub struct Ground {
    pub way: &'static str,
    pub context: Arc<CudaContext>,
    pub module: Arc<Module>,
    pub stream: Arc<CudaStream>,
    pub layers: u32,
    pub reference: Rc<Reference>,
    pub shared: Shared,
    layer: Kernel,
    decide: Kernel,
    block: Buffer,
    values: [Buffer; 2],
    stamps: Buffer,
    told: Arc<Pinned>,
}

impl Ground {
    fn new(gpu: &OpenGpu, way: &'static str, kernels: u32, reference: &Rc<Reference>, renew: u32) -> Result<Self> {
        Shared::check_layout()?;
        let (context, module, layers) = (&gpu.context, &gpu.module, kernels - 1);
        let stream = context.new_stream().map_err(|error| failed("making a stream", error))?;
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
            way,
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

    /// A part of the way as messages name it: `device-tail, bucket 2`.
    pub fn name(&self, what: &str) -> String {
        format!("{}, {what}", self.way)
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
            let arguments = vec![values(layer + 1), values(layer), self.ways(), Argument::U32(layer)];
            call(&self.layer, blocks(bucket), arguments)
        };
        let mut calls: Vec<_> = (0..self.layers).map(layer).collect();
        calls.push(call(decide.unwrap_or(&self.decide), 1, vec![self.ways()]));
        calls
    }

    /// The calls of each bucket's step, checked.
    pub fn ready_calls(&self) -> Result<Vec<Vec<ReadyCall>>> {
        let ready = |bucket| self.calls(bucket, None).iter().map(ReadyCall::new).collect();
        (0..BUCKETS).map(ready).collect()
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
        // SAFETY: the memory is this value's, as in `capture`.
        unsafe { capture_calls(&self.stream, self.name("the head"), &[head]) }
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
        (self.shared.limit, self.shared.launched, self.shared.arrived) = (limit, 0, 0);
        self.block.write(&self.stream, 0, bytemuck::bytes_of(&self.shared))
    }

    /// Takes back what the steps left; when each of the last ended, by the GPU's clock.
    fn end(&mut self, from: u64, until: u64) -> Result<Vec<u64>> {
        self.block.read(&self.stream, 0, bytemuck::bytes_of_mut(&mut self.shared))?;
        if let Some(failure) = self.shared.failure(self.way) {
            return Err(failure);
        }
        if self.shared.step != until {
            return Err(self.ended_early(until));
        }
        let expected = self.reference.value(until);
        if self.shared.digest != expected {
            return Err(Error::Runtime(format!(
                "{}: after {until} steps of {} kernels the digest is {:016x}, expected {expected:016x}, as every way gives: \
                 a kernel did not run, or ran before the one ahead of it had ended",
                self.way,
                self.layers + 1,
                self.shared.digest
            )));
        }
        let mut stamps = vec![0u64; STAMPS];
        self.stamps.read(&self.stream, 0, bytemuck::cast_slice_mut(&mut stamps))?;
        Ok((from..until).map(|step| stamps[step as usize % STAMPS]).collect())
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
            self.way,
            limit.as_secs()
        ))
    }

    fn ended_early(&self, until: u64) -> Error {
        let (steps, bucket) = self.told();
        Error::Runtime(format!(
            "{}: all launches ended at step {steps}, bucket {bucket}, expected {until} steps: a launch was lost",
            self.way
        ))
    }
}

/// A way and its memory. Graphs go before the memory that they use.
pub struct Run {
    launching: Box<dyn Launching>,
    ground: Ground,
}

impl Run {
    /// Makes `way` ready for steps of so many kernels, whose digests are `reference`'s. `renew`: launches in a chain of siblings.
    ///
    /// # Errors
    /// What the driver refuses: a node, a launch, memory.
    pub fn new(gpu: &OpenGpu, way: &Way, kernels: u32, reference: &Rc<Reference>, renew: u32) -> Result<Self> {
        let mut ground = Ground::new(gpu, way.name, kernels, reference, renew)?;
        Ok(Self { launching: (way.open)(&mut ground)?, ground })
    }
}

impl Steps for Run {
    fn run(&mut self, count: u64) -> Result<Chunk> {
        assert!(count <= STAMPS as u64, "{count} steps in a chunk");
        let ground = &mut self.ground;
        let (from, until) = (ground.shared.step, ground.shared.step + count);
        ground.reference.value(until);
        ground.begin(until)?;
        let launches = self.launching.run(ground, until)?;
        ground.wait_for_all()?;
        Ok(Chunk { ends_ns: ground.end(from, until)?, launches })
    }

    fn digest(&self) -> u64 {
        self.ground.shared.digest
    }

    fn not_taken(&self) -> Option<u32> {
        Some(self.ground.shared.not_taken)
    }
}
