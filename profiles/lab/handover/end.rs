//! What each of the two GPUs has: its stream, its memory, its kernels.

use super::step::{BLOCKS, FLAG_BYTES, ROW_WORDS, STAMPS, Shared, THREADS, TOKEN_AT};
use crate::backend::Block;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::engine::waiter::is_done;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::error::{Error, Result};
use cudarc::driver::{CudaEvent, CudaStream};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of kernels/ways/pair.cu and pair_again.cu.
const KERNELS: [&str; 9] = [
    "tg_pair_rows",
    "tg_pair_digest",
    "tg_pair_end",
    "tg_pair_end_again",
    "tg_pair_put",
    "tg_pair_put_token",
    "tg_pair_take_rows",
    "tg_pair_take_token",
    "tg_pair_reduce",
];

pub(super) struct End {
    pub gpu: OpenGpu,
    pub stream: Arc<CudaStream>,
    pub shared: Shared,
    /// What this GPU has queued has run as far as the other one waits for.
    pub sent: CudaEvent,
    kernels: BTreeMap<&'static str, Kernel>,
    block: Buffer,
    rows: Buffer,
    /// Of the other GPU, at two places by turns.
    came: Buffer,
    /// That the other GPU releases: of rows or a token, or of each block.
    flags: Buffer,
    stamps: Buffer,
    told: Arc<Pinned>,
}

impl End {
    pub fn new(gpu: &OpenGpu, index: u32, rows: u32, limit_ns: u64) -> Result<Self> {
        let context = &gpu.context;
        let refused = |error| failed("making a stream and an event", error);
        let stream = context.new_stream().map_err(refused)?;
        let named = |what: &str, bytes| {
            let what = format!("{what} on cuda:{}", gpu.info.ordinal);
            let buffer = Buffer::named(context, &what, bytes)?;
            buffer.fill(&stream, 0)?;
            Ok::<_, Error>(buffer)
        };
        let row_bytes = rows as usize * ROW_WORDS * size_of::<u32>();
        let stamps = named("times of steps", STAMPS * size_of::<u64>())?;
        let told = Pinned::new(context, size_of::<u64>())?;
        let end = Self {
            shared: Shared {
                stamps: stamps.at(0),
                told: told.device(),
                limit_ns,
                gpu: index,
                rows,
                ..Shared::default()
            },
            sent: context.new_event(None).map_err(refused)?,
            kernels: (KERNELS.into_iter())
                .map(|name| Ok((name, gpu.module.kernel(name)?)))
                .collect::<Result<_>>()?,
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
        end.stream
            .synchronize()
            .map_err(|error| failed("filling GPU memory", error))?;
        Ok(end)
    }

    pub fn ordinal(&self) -> u32 {
        self.gpu.info.ordinal
    }

    pub fn row_bytes(&self) -> usize {
        self.shared.rows as usize * ROW_WORDS * size_of::<u32>()
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

    /// Queues a kernel whose first argument is `tg_pair`. `wide`: over the rows; else one thread.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// The other arguments are the kernel's, and what they point to lives until it has run.
    pub unsafe fn launch(&self, kernel: &str, wide: bool, rest: &[Address]) -> Result<()> {
        let launch = match wide {
            true => Launch::blocks(self.shared.rows.min(BLOCKS), THREADS),
            false => Launch::blocks(1, 1),
        };
        let arguments = std::iter::once(self.pair()).chain(rest.iter().copied());
        let arguments: Vec<_> = arguments.map(Argument::Address).collect();
        let kernel = self.kernels.get(kernel).ok_or_else(|| {
            Error::Runtime(format!(
                "{kernel}: no kernel of a step over two GPUs: a bug in tailgraph"
            ))
        })?;
        // SAFETY: the caller's promise.
        unsafe { kernel.launch(&self.stream, launch, &arguments) }
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
        let done = is_done(&self.stream);
        done.map_err(|error| failed(&format!("running steps on cuda:{}", self.ordinal()), error))
    }

    /// Nothing runs: steps may go on until `limit` are done.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn begin(&mut self, limit: u64) -> Result<()> {
        self.shared.limit = limit;
        let bytes = bytemuck::bytes_of(&self.shared);
        self.block.write(&self.stream, 0, bytes)?;
        let written = self.stream.synchronize();
        written.map_err(|error| failed("copying to the GPU", error))
    }

    /// Takes back what the steps left.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn end(&mut self) -> Result<()> {
        let bytes = bytemuck::bytes_of_mut(&mut self.shared);
        self.block.read(&self.stream, 0, bytes)
    }

    /// When each of these steps ended, by the GPU's clock.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn ends_ns(&self, from: u64, until: u64) -> Result<Vec<u64>> {
        let mut stamps = vec![0u64; STAMPS];
        let bytes = bytemuck::cast_slice_mut(&mut stamps);
        self.stamps.read(&self.stream, 0, bytes)?;
        let stamp = |step: u64| stamps[step as usize % STAMPS];
        Ok((from..until).map(stamp).collect())
    }
}
