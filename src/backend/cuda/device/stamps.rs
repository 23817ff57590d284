//! Steps that are timed kernel by kernel (kernels/common/stamps.cuh): the programs of a run whose kernels leave stamps, and
//! the host's end of the ring that the stamps come out of. The graphs are a run's own: the same kernels in the same
//! order over the same edges, and one more behind them that hands the stamps over.

use crate::backend::SharedRegion;
use crate::backend::cuda::driver::call::{KernelCall, parts as parts_of};
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::driver::module::Module;
use crate::backend::cuda::engine::program::{StepProgram, all_buckets};
use crate::backend::cuda::families::{Bucket, StepAt};
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::backend::timing::{Part, PartTime, StepClock, StepTimes, UNTIMED_EVERY, is_timed};
use crate::error::{Error, Result};
use crate::plan::BucketSizes;
use cudarc::driver::CudaContext;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// `Stamps` of kernels/common/stamps.cuh: eight words.
const STAMPS_BYTES: usize = 8 * 8;
/// Threads of a block, the same number that kernels/step/stamps.cu has.
const THREADS: u32 = 256;
const LOST_AT: usize = 8;
const READ_AT: usize = 128;
const HEAD_BYTES: usize = 256;
/// Steps that the ring holds. The host reads it whenever it looks for events.
const ENTRIES: usize = 1024;

/// `Entry` of kernels/step/stamps.cu.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct StampedStep {
    step: u64,
    end_ns: u64,
    kind: u32,
    bucket_rows: u32,
    rows: u32,
    stamped: u32,
    taken: u64,
    pad: u64,
}

// Kernels write entries of these sizes.
const _: () = assert!(size_of::<StampedStep>() == 48 && size_of::<PartTime>() == 16);

/// Bytes of one entry for up to `capacity` stamps.
fn entry_bytes(capacity: usize) -> usize {
    size_of::<StampedStep>() + capacity * size_of::<PartTime>()
}

/// What the kernels and the host share.
struct Memory {
    module: Arc<Module>,
    device: Buffer,
    ring: Arc<Pinned>,
    /// Stamps of a step, at most.
    capacity: usize,
}

impl Memory {
    fn new(context: &Arc<CudaContext>, module: &Arc<Module>, capacity: usize) -> Result<Self> {
        let stream = context
            .new_stream()
            .map_err(|error| failed("making a stream", error))?;
        let bytes = STAMPS_BYTES + capacity * size_of::<PartTime>();
        let device = Buffer::named(context, "the kernels' stamps", bytes)?;
        device.fill(&stream, 0)?;
        let (places, entries) = (capacity as u64, ENTRIES as u64);
        let first = if is_timed(0) { places } else { 0 };
        let head = [first, 0, 0, 0, places, entries, UNTIMED_EVERY, 0];
        device.write(&stream, 0, &head.map(u64::to_le_bytes).concat())?;
        let ring = Pinned::new(context, HEAD_BYTES + ENTRIES * entry_bytes(capacity))?;
        module.set_stamping(device.at(0))?;
        Ok(Self {
            module: module.clone(),
            device,
            ring,
            capacity,
        })
    }

    /// A word of the ring's head, which only ever is touched atomically.
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside the allocation, aligned, alive as long as `self`.
        unsafe { AtomicU64::from_ptr(self.ring.start().as_ptr().add(at).cast()) }
    }

    /// Entry `number` as it was written, which must be so and not read yet.
    fn entry(&self, number: u64) -> (StampedStep, Vec<PartTime>) {
        let at = HEAD_BYTES + number as usize % ENTRIES * entry_bytes(self.capacity);
        // SAFETY: inside the allocation and aligned for both structs of u64; the GPU has released the entry, and writes
        // it again only once it was read.
        unsafe {
            let start = self.ring.start().as_ptr().add(at);
            let step = start.cast::<StampedStep>().read();
            let stamps = start.add(size_of::<StampedStep>()).cast::<PartTime>();
            let count = (step.taken as usize).min(self.capacity);
            (step, std::slice::from_raw_parts(stamps, count).to_vec())
        }
    }
}

impl Drop for Memory {
    /// No kernel runs any more that would leave a stamp; the next ones leave none.
    fn drop(&mut self) {
        // A failure means that the context is lost, and no kernel runs there again.
        let _ = self.module.set_stamping(0);
    }
}

/// The last program of a step, and what hands the step's stamps over.
struct Closing {
    inner: Box<dyn StepProgram>,
    close: Kernel,
    pdl: bool,
    memory: Arc<Memory>,
}

impl StepProgram for Closing {
    fn lower(&self, bucket: Bucket, at: StepAt) -> Result<Vec<KernelCall>> {
        let mut calls = self.inner.lower(bucket, at)?;
        calls.push(KernelCall {
            kernel: self.close.clone(),
            launch: Launch {
                pdl: self.pdl,
                ..Launch::blocks(1, THREADS)
            },
            arguments: vec![
                Argument::Address(self.memory.device.at(0)),
                Argument::Address(self.memory.ring.device()),
                Argument::Address(at.step),
            ],
            weights: vec![],
            ops: vec![],
        });
        Ok(calls)
    }

    fn check(&self) -> Result<()> {
        self.inner.check()
    }
}

/// The host's end of the ring.
pub struct StampClock {
    memory: Arc<Memory>,
    /// By kind and rows of the bucket.
    parts: HashMap<(u32, u32), Arc<[Part]>>,
    read: u64,
}

/// `programs`, one after the other a step, as programs whose kernels leave stamps, and where these come out. `pdl`:
/// kernels are launched with programmatic dependent launch. One such run at a time, of all that use the module.
///
/// # Errors
/// [`Error::Memory`] where there is too little; what a program or its capture gives.
pub fn stamped(
    context: &Arc<CudaContext>,
    module: &Arc<Module>,
    pdl: bool,
    mut programs: Vec<Box<dyn StepProgram>>,
    bucket_sizes: &BucketSizes,
    slots: u32,
) -> Result<(Vec<Box<dyn StepProgram>>, StampClock)> {
    let mut parts = HashMap::new();
    for (_, bucket) in all_buckets(bucket_sizes, slots) {
        let nowhere = StepAt {
            state: 0,
            step: 0,
            h: None,
        };
        let mut all = vec![];
        for program in &programs {
            all.extend(parts_of(&program.lower(bucket, nowhere)?));
        }
        parts.insert((bucket.kind as u32, bucket.rows), Arc::from(all));
    }
    let capacity = parts.values().map(|parts: &Arc<[Part]>| parts.len()).max();
    let memory = Arc::new(Memory::new(context, module, capacity.unwrap_or(0))?);
    if let Some(inner) = programs.pop() {
        programs.push(Box::new(Closing {
            inner,
            close: module.kernel("tg_stamps_close")?,
            pdl,
            memory: memory.clone(),
        }));
    }
    let clock = StampClock {
        memory,
        parts,
        read: 0,
    };
    Ok((programs, clock))
}

impl StepClock for StampClock {
    fn next(&mut self) -> Result<Option<StepTimes>> {
        if self.memory.word(0).load(Ordering::Acquire) == self.read {
            return Ok(None);
        }
        let (step, mut at) = self.memory.entry(self.read);
        self.read += 1;
        let read = self.memory.word(READ_AT);
        read.store(self.read, Ordering::Release);
        let parts = self.parts.get(&(step.kind, step.bucket_rows));
        let whole = |parts: &&Arc<[Part]>| step.stamped == 0 || step.taken == parts.len() as u64;
        let parts = parts.filter(whole).ok_or_else(|| {
            Error::Runtime(format!(
                "found {step:?}, expected one of the bucket sizes and a stamp of each of its kernels: this is a bug in tailgraph"
            ))
        })?;
        if step.stamped == 0 {
            at.clear();
        }
        // They were taken in any order; each kernel was ready when all before it had ended.
        at.sort_unstable_by_key(|stamp| stamp.ready_ns);
        Ok(Some(StepTimes {
            stage: 0,
            step: step.step,
            parts: parts.clone(),
            at,
            end_ns: step.end_ns,
        }))
    }

    fn zero(&self) -> Option<Instant> {
        None
    }

    fn lost(&self) -> u64 {
        self.memory.word(LOST_AT).load(Ordering::Acquire)
    }
}
