//! What each of the two GPUs has: its stream, its memory, its kernels.

use super::step::{BLOCKS, FLAG_BYTES, ROW_BYTES, STAMPS, Shared, THREADS, TOKEN_AT};
use cudarc::driver::{CudaEvent, CudaStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tailgraph::backend::Block;
use tailgraph::backend::cuda::driver::Address;
use tailgraph::backend::cuda::driver::errors::failed;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::driver::launch::{Argument, Launch};
use tailgraph::backend::cuda::engine::waiter::is_done;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::memory::pinned::Pinned;
use tailgraph::error::{Error, Result};

pub struct End {
    pub gpu: OpenGpu,
    pub stream: Arc<CudaStream>,
    pub shared: Shared,
    /// What this GPU has queued has run as far as the other one waits for.
    pub sent: CudaEvent,
    block: Buffer,
    rows: Buffer,
    /// Rows of the other GPU, at two places by turns.
    came: Buffer,
    /// What the other GPU releases: a flag for rows or a token, or one for each block.
    flags: Buffer,
    stamps: Buffer,
    told: Arc<Pinned>,
}

impl End {
    /// # Errors
    /// [`Error::Memory`] where there is not enough; the driver refuses.
    pub fn new(gpu: &OpenGpu, index: u32, rows: u32, limit_ns: u64) -> Result<Self> {
        let context = &gpu.context;
        let refused = |error| failed("making a stream and an event", error);
        let stream = context.new_stream().map_err(refused)?;
        let named = |what: &str, bytes| {
            let buffer = Buffer::named(context, &format!("{what} on cuda:{}", gpu.info.ordinal), bytes)?;
            buffer.fill(&stream, 0)?;
            Ok::<_, Error>(buffer)
        };
        let row_bytes = rows as usize * ROW_BYTES;
        let stamps = named("times of steps", STAMPS * size_of::<u64>())?;
        let told = Pinned::new(context, size_of::<u64>())?;
        let (stamps_at, told_at) = (stamps.at(0), told.device());
        let end = Self {
            shared: Shared { stamps: stamps_at, told: told_at, limit_ns, gpu: index, rows, ..Shared::default() },
            sent: context.new_event(None).map_err(refused)?,
            block: named("what steps share", size_of::<Shared>())?,
            rows: named("rows", row_bytes)?,
            came: named("rows of another GPU", 2 * row_bytes)?,
            flags: named("flags", BLOCKS as usize * FLAG_BYTES)?,
            gpu: gpu.clone(),
            stamps,
            told,
            stream,
        };
        // The other GPU is not to write before.
        end.stream.synchronize().map_err(|error| failed("filling GPU memory", error))?;
        Ok(end)
    }

    pub fn ordinal(&self) -> u32 {
        self.gpu.info.ordinal
    }

    pub fn row_bytes(&self) -> usize {
        self.shared.rows as usize * ROW_BYTES
    }

    pub fn rows(&self) -> Address {
        self.rows.at(0)
    }

    pub fn came(&self) -> Address {
        self.came.at(0)
    }

    pub fn flags(&self) -> Address {
        self.flags.at(0)
    }

    /// Where `tg_pair` lies.
    pub fn pair(&self) -> Address {
        self.block.at(0)
    }

    pub fn token(&self) -> Address {
        self.block.at(TOKEN_AT)
    }

    /// Queues a kernel of pair.cu or pair_again.cu, whose first argument is `tg_pair`. `wide`: over the rows; else one thread.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// The other arguments are the kernel's, and what they point to lives until it has run.
    pub unsafe fn launch(&self, kernel: &str, wide: bool, rest: &[Address]) -> Result<()> {
        let rows = Launch::blocks(self.shared.rows.min(BLOCKS), THREADS);
        let launch = if wide { rows } else { Launch::blocks(1, 1) };
        let arguments = std::iter::once(self.pair()).chain(rest.iter().copied());
        let arguments: Vec<_> = arguments.map(Argument::Address).collect();
        // SAFETY: the caller's promise.
        unsafe { self.gpu.module.kernel(kernel)?.launch(&self.stream, launch, &arguments) }
    }

    /// Steps that the GPU has told the host of.
    pub fn told(&self) -> u64 {
        // SAFETY: the word is alive, aligned, and only ever touched atomically.
        unsafe { AtomicU64::from_ptr(self.told.start().as_ptr().cast()) }.load(Ordering::Acquire)
    }

    /// Makes the GPU the one that calls go to.
    ///
    /// # Errors
    /// It is lost.
    pub fn bind(&self) -> Result<()> {
        let bound = self.gpu.context.bind_to_thread();
        bound.map_err(|error| failed(&format!("turning to cuda:{}", self.ordinal()), error))
    }

    /// Whether all that was queued has run.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn is_done(&self) -> Result<bool> {
        is_done(&self.stream).map_err(|error| failed(&format!("running steps on cuda:{}", self.ordinal()), error))
    }

    /// Nothing runs: steps may go on until `limit` are done.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn begin(&mut self, limit: u64) -> Result<()> {
        self.shared.limit = limit;
        self.block.write(&self.stream, 0, bytemuck::bytes_of(&self.shared))?;
        self.stream.synchronize().map_err(|error| failed("copying to the GPU", error))
    }

    /// Takes back what the steps left.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn end(&mut self) -> Result<()> {
        self.block.read(&self.stream, 0, bytemuck::bytes_of_mut(&mut self.shared))
    }

    /// When each of these steps ended, by the GPU's clock.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn ends_ns(&self, from: u64, until: u64) -> Result<Vec<u64>> {
        let mut stamps = vec![0u64; STAMPS];
        self.stamps.read(&self.stream, 0, bytemuck::cast_slice_mut(&mut stamps))?;
        Ok((from..until).map(|step| stamps[step as usize % STAMPS]).collect())
    }
}
