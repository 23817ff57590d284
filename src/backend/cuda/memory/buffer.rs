//! Device memory: allocated once, at start-up, and carved by byte offsets.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::error::{Error, Result};
use cudarc::driver::result;
use cudarc::driver::sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY;
use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;

/// Every array starts on a multiple of this.
pub use crate::backend::cuda::memory::arena::ALIGN_BYTES;

/// One allocation, freed when dropped. Its contents are unspecified until written.
#[derive(Debug)]
pub struct Buffer {
    context: Arc<CudaContext>,
    address: Address,
    bytes: usize,
}

impl Buffer {
    /// Allocates what no user knows by name; see [`Buffer::named`].
    ///
    /// # Errors
    /// [`Buffer::named`]'s.
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Self> {
        Self::named(context, "an array", bytes)
    }

    /// `what` is for messages, as in `the weights`.
    ///
    /// # Errors
    /// [`Error::Memory`] where the GPU has no such amount free; [`Error::Runtime`] for anything else that the driver
    /// refuses.
    pub fn named(context: &Arc<CudaContext>, what: &str, bytes: usize) -> Result<Self> {
        let refused = |error: result::DriverError| match error.0 {
            CUDA_ERROR_OUT_OF_MEMORY => Error::Memory(format!(
                "allocating {bytes} bytes of GPU memory for {what}: the driver answered {:?}, expected that much free: \
                 end other programs on the GPU, or lower `memory_limit`, `max_seqs` or `max_context`",
                error.0
            )),
            _ => failed(
                &format!("allocating {bytes} bytes of GPU memory for {what}"),
                error,
            ),
        };
        context.bind_to_thread().map_err(refused)?;
        // SAFETY: the context is bound; the driver takes no allocation of 0 bytes.
        let address = unsafe { result::malloc_sync(bytes.max(1)) }.map_err(refused)?;
        Ok(Self {
            context: context.clone(),
            address,
            bytes,
        })
    }

    /// The address of byte `offset`, which lies inside.
    pub fn at(&self, offset: usize) -> Address {
        assert!(
            offset <= self.bytes,
            "byte {offset} of a buffer of {}",
            self.bytes
        );
        self.address + offset as u64
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `bytes` to byte `offset`, in the stream's order. Returns when `bytes` may change again.
    ///
    /// # Errors
    /// The driver refuses, or something before it on the stream failed.
    pub fn write(&self, stream: &CudaStream, offset: usize, bytes: &[u8]) -> Result<()> {
        assert!(offset + bytes.len() <= self.bytes, "a write past the end");
        let refused = |error| failed("copying to the GPU", error);
        stream.context().bind_to_thread().map_err(refused)?;
        // SAFETY: the range lies inside the allocation, and `bytes` outlives the wait below.
        unsafe { result::memcpy_htod_async(self.at(offset), bytes, stream.cu_stream()) }
            .map_err(refused)?;
        stream.synchronize().map_err(refused)
    }

    /// Copies from byte `offset`, after what is queued on the stream.
    ///
    /// # Errors
    /// The driver refuses, or something before it on the stream failed.
    pub fn read(&self, stream: &CudaStream, offset: usize, bytes: &mut [u8]) -> Result<()> {
        assert!(offset + bytes.len() <= self.bytes, "a read past the end");
        let refused = |error| failed("copying from the GPU", error);
        stream.context().bind_to_thread().map_err(refused)?;
        // SAFETY: the range lies inside the allocation, and `bytes` outlives the wait below.
        unsafe { result::memcpy_dtoh_async(bytes, self.at(offset), stream.cu_stream()) }
            .map_err(refused)?;
        stream.synchronize().map_err(refused)
    }

    /// Sets every byte, in the stream's order.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn fill(&self, stream: &CudaStream, byte: u8) -> Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let refused = |error| failed("filling GPU memory", error);
        stream.context().bind_to_thread().map_err(refused)?;
        // SAFETY: the range is the allocation.
        unsafe { result::memset_d8_async(self.address, byte, self.bytes, stream.cu_stream()) }
            .map_err(refused)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // A failure here leaves the memory taken until the context goes, and there is nobody to tell.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `new`, freed once.
            let _ = unsafe { result::free_sync(self.address) };
        }
    }
}
