//! What all ways stand on: the memory of their steps, the calls of a step, and how a run of them begins and ends.

use super::super::cuda::{
    Argument, Buffer, Captured, Exec, Kernel, KernelCall, Launch, OpenGpu, ReadyCall, capture_calls,
};
use super::super::measure::{Chunk, Steps};
use super::super::memory::{Memory, Progress};
use super::step::{BUCKETS, LAYOUT, Shared, THREADS, WIDEST, blocks};
use super::{Launching, open};
use std::rc::Rc;
use tailgraph::error::Result;

/// Memory and kernels of one way.
pub struct Ground {
    pub way: &'static str,
    pub memory: Memory<Shared>,
    /// The digest behind each number of steps.
    pub reference: Rc<Vec<u64>>,
    layer: Kernel,
    decide: Kernel,
    values: [Buffer; 2],
}

impl Ground {
    /// A part of the way as messages name it: `device-tail, bucket 2`.
    pub fn name(&self, what: &str) -> String {
        format!("{}, {what}", self.way)
    }

    /// Where `tg_ways` lies.
    pub fn ways(&self) -> Argument {
        Argument::Address(self.memory.at(0))
    }

    /// The calls of a step of this bucket. `decide` ends it in place of the plain kernel.
    pub fn calls(&self, bucket: usize, decide: Option<&Kernel>) -> Vec<KernelCall> {
        let call = |kernel: &Kernel, blocks, arguments| KernelCall {
            kernel: kernel.clone(),
            launch: Launch::blocks(blocks, THREADS),
            arguments,
            weights: vec![],
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
        let mut calls: Vec<_> = (0..self.memory.shared.layers).map(layer).collect();
        calls.push(call(decide.unwrap_or(&self.decide), 1, vec![self.ways()]));
        calls
    }

    /// The calls of each bucket's step, checked.
    pub fn ready_calls(&self) -> Result<Vec<Vec<ReadyCall>>> {
        let ready = |bucket| {
            self.calls(bucket, None)
                .iter()
                .map(ReadyCall::new)
                .collect()
        };
        (0..BUCKETS).map(ready).collect()
    }

    /// A step of this bucket as a graph.
    pub fn capture(&self, bucket: usize, decide: Option<&Kernel>) -> Result<Captured> {
        let name = self.name(&format!("bucket {bucket}"));
        // SAFETY: the memory is this value's, which a run keeps until nothing runs any more.
        unsafe { capture_calls(&self.memory.stream, name, &self.calls(bucket, decide)) }
    }

    /// Queues a kernel of one thread, which takes `tg_ways` and `rest`.
    pub fn queue_one(&self, kernel: &Kernel, rest: &[Argument]) -> Result<()> {
        let arguments = [&[self.ways()], rest].concat();
        // SAFETY: the arguments are the kernel's; the memory is this value's, as in `capture`.
        unsafe { kernel.launch(&self.memory.stream, Launch::blocks(1, 1), &arguments) }
    }

    /// Launches a graph of this way.
    pub fn launch(&self, graph: &Exec) -> Result<()> {
        // SAFETY: the memory is this value's, as in `capture`.
        unsafe { graph.launch() }
    }

    /// Steps done and the bucket of the next, as the last step has told.
    pub fn told(&self) -> (u64, usize) {
        let told = self.memory.told();
        (told / BUCKETS as u64, (told % BUCKETS as u64) as usize)
    }

    /// What the steps left is what is right.
    fn check(&self, until: u64) -> Result<()> {
        let shared = &self.memory.shared;
        if let Some(failure) = shared.failure(self.way) {
            return Err(failure);
        }
        let of = format!("{} kernels the digest is", shared.layers + 1);
        self.compare(until, shared.step, &of, shared.digest, &self.reference)
    }
}

impl Progress for Ground {
    fn way(&self) -> &'static str {
        self.way
    }

    fn is_done(&self) -> Result<bool> {
        self.memory.is_done()
    }

    fn steps_told(&self) -> u64 {
        self.told().0
    }

    fn place(&self) -> String {
        let (steps, bucket) = self.told();
        format!("step {steps}, bucket {bucket}")
    }
}

/// A way and its memory. Graphs go before the memory that they use.
pub struct Run {
    launching: Launching,
    ground: Ground,
}

impl Run {
    /// Makes `way` ready for steps of so many kernels, whose digests are `reference`'s. `renew`: launches in a chain of siblings.
    pub fn new(
        gpu: &OpenGpu,
        way: &'static str,
        kernels: u32,
        reference: &Rc<Vec<u64>>,
        renew: u32,
    ) -> Result<Self> {
        let mut memory = Memory::new(gpu, LAYOUT, |stamps, told| Shared {
            layers: kernels - 1,
            renew,
            stamps,
            told,
            ..Shared::default()
        })?;
        let values = || memory.zeros((4 * THREADS * WIDEST) as usize);
        let values = [values()?, values()?];
        memory.shared.values = values.each_ref().map(|buffer| buffer.at(0));
        let mut ground = Ground {
            way,
            memory,
            reference: reference.clone(),
            layer: gpu.module.kernel("tg_ways_layer")?,
            decide: gpu.module.kernel("tg_ways_decide")?,
            values,
        };
        let launching = open(way, &mut ground)?;
        Ok(Self { launching, ground })
    }
}

impl Steps for Run {
    fn run(&mut self, count: u64) -> Result<Chunk> {
        let ground = &mut self.ground;
        let shared = &mut ground.memory.shared;
        let (from, until) = (shared.step, shared.step + count);
        (shared.limit, shared.launched, shared.arrived) = (until, 0, 0);
        ground.memory.write()?;
        let launches = (self.launching)(ground, until)?;
        ground.wait_for_all()?;
        ground.memory.read()?;
        ground.check(until)?;
        let ends_ns = ground.memory.ends_ns(from, until)?;
        Ok(Chunk { ends_ns, launches })
    }

    fn digest(&self) -> u64 {
        self.ground.memory.shared.digest
    }

    fn not_taken(&self) -> Option<u32> {
        Some(self.ground.memory.shared.not_taken)
    }
}
