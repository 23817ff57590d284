//! What the steps of every way have on a GPU: a stream, the struct that their kernels share, and how far they have come.

use super::cuda::{Address, Buffer, OpenGpu, Pinned, SharedRegion, failed, image, is_done};
use bytemuck::Pod;
use cudarc::driver::CudaStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tailgraph::error::{Error, Result};

/// Steps whose ends are kept, the newest: TG_WAYS_STAMPS and TG_PAIR_STAMPS.
pub const STAMPS: u64 = 1024;
/// Between two looks of a host that only waits for a run's end.
const LOOK: Duration = Duration::from_micros(200);
/// No step takes so long: beside other processes, or where a kernel on each of two GPUs has waited.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(12);
/// No run of so many steps takes so long.
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

pub struct Memory<S> {
    pub gpu: OpenGpu,
    pub stream: Arc<CudaStream>,
    /// The kernels' struct as the host has it: what it was before they run, or after.
    pub shared: S,
    block: Buffer,
    stamps: Buffer,
    told: Arc<Pinned>,
}

impl<S: Pod> Memory<S> {
    /// `shared` is given where the steps' times lie and where their word is; `layout` is the name of the kernels' numbers of
    /// that struct, and what they must be.
    pub fn new(
        gpu: &OpenGpu,
        (name, layout): (&str, [usize; 4]),
        shared: impl FnOnce(Address, Address) -> S,
    ) -> Result<Self> {
        let found: [u32; 4] = image::constants(name)?;
        let expected = layout.map(|bytes| bytes as u32);
        if found != expected {
            return Err(Error::Runtime(format!(
                "{name}: the kernels' struct has size and offsets {found:?}, expected {expected:?}: build again"
            )));
        }
        let stream = gpu.context.new_stream();
        let stream = stream.map_err(|error| failed("making a stream", error))?;
        let stamps = Buffer::new(&gpu.context, 8 * STAMPS as usize)?;
        let told = Pinned::new(&gpu.context, size_of::<u64>())?;
        Ok(Self {
            gpu: gpu.clone(),
            shared: shared(stamps.at(0), told.device()),
            block: Buffer::new(&gpu.context, size_of::<S>())?,
            stamps,
            told,
            stream,
        })
    }

    /// More memory there, of zeros.
    pub fn zeros(&self, bytes: usize) -> Result<Buffer> {
        let buffer = Buffer::new(&self.gpu.context, bytes)?;
        buffer.fill(&self.stream, 0)?;
        Ok(buffer)
    }

    /// Where a field of the struct lies.
    pub fn at(&self, offset: usize) -> Address {
        self.block.at(offset)
    }

    /// The word that the last step has told the host.
    pub fn told(&self) -> u64 {
        // SAFETY: the word is alive, aligned, and only ever touched atomically.
        unsafe { AtomicU64::from_ptr(self.told.start().as_ptr().cast()) }.load(Ordering::Acquire)
    }

    /// Gives the kernels the struct, while nothing runs.
    pub fn write(&self) -> Result<()> {
        let bytes = bytemuck::bytes_of(&self.shared);
        self.block.write(&self.stream, 0, bytes)?;
        let written = self.stream.synchronize();
        written.map_err(|error| failed("copying to the GPU", error))
    }

    /// Takes back what they left in it.
    pub fn read(&mut self) -> Result<()> {
        let bytes = bytemuck::bytes_of_mut(&mut self.shared);
        self.block.read(&self.stream, 0, bytes)
    }

    /// When each of these steps ended, by the GPU's clock.
    pub fn ends_ns(&self, from: u64, until: u64) -> Result<Vec<u64>> {
        let mut stamps = vec![0u64; STAMPS as usize];
        let bytes = bytemuck::cast_slice_mut(&mut stamps);
        self.stamps.read(&self.stream, 0, bytes)?;
        Ok((from..until)
            .map(|step| stamps[(step % STAMPS) as usize])
            .collect())
    }

    /// Whether all that was queued has run.
    pub fn is_done(&self) -> Result<bool> {
        let what = || format!("running steps on cuda:{}", self.gpu.info.ordinal);
        is_done(&self.stream).map_err(|error| failed(&what(), error))
    }
}

/// Steps that run, as the host follows them.
pub trait Progress {
    fn way(&self) -> &'static str;

    /// Whether all that was queued has run.
    fn is_done(&self) -> Result<bool>;

    /// Steps that have told the host of their end.
    fn steps_told(&self) -> u64;

    /// How far all have come, in words.
    fn place(&self) -> String;

    /// The steps did not end within `limit`.
    fn late(&self, limit: Duration) -> Error {
        let (way, place, limit_s) = (self.way(), self.place(), limit.as_secs());
        Error::Runtime(format!(
            "{way}: found {place} after {limit_s} s, expected microseconds a step: another process may hold a GPU, or one failed"
        ))
    }

    /// Nothing runs any more, and `until` steps are not done.
    fn ended_early(&self, until: u64) -> Error {
        let (way, place) = (self.way(), self.place());
        Error::Runtime(format!(
            "{way}: all launches ended with {place}, expected {until} steps: a launch was lost"
        ))
    }

    /// Compares what `until` steps left on a GPU with the reference. `steps`: how many it has done; `of`: the size of a step, and what
    /// has the value that was found.
    fn compare(
        &self,
        until: u64,
        steps: u64,
        of: &str,
        found: u64,
        reference: &[u64],
    ) -> Result<()> {
        if steps != until {
            return Err(self.ended_early(until));
        }
        let (way, expected) = (self.way(), reference[until as usize]);
        if found == expected {
            return Ok(());
        }
        Err(Error::Runtime(format!(
            "{way}: after {until} steps of {of} {found:016x}, expected {expected:016x}, as every way gives: something did not run, \
             or before what it needs was there"
        )))
    }

    /// Sleeps until all that was queued has run.
    fn wait_for_all(&self) -> Result<()> {
        let start = Instant::now();
        while !self.is_done()? {
            if start.elapsed() > RUN_TIMEOUT {
                return Err(self.late(RUN_TIMEOUT));
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Spins until `steps` steps have told.
    fn spin_for(&self, steps: u64) -> Result<()> {
        let start = Instant::now();
        let mut spins = 0u32;
        while self.steps_told() < steps {
            spins = spins.wrapping_add(1);
            // A kernel that failed tells nothing.
            if spins.is_multiple_of(1 << 16) {
                if start.elapsed() > STEP_TIMEOUT {
                    return Err(self.late(STEP_TIMEOUT));
                }
                if self.is_done()? && self.steps_told() < steps {
                    return Err(self.ended_early(steps));
                }
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}
