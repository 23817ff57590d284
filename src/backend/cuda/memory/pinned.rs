//! Host memory that the device reads and writes in place: pinned, and mapped into its address space.

use crate::backend::SharedRegion;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::error::{Error, Result};
use cudarc::driver::{CudaContext, sys};
use std::ptr::NonNull;
use std::sync::Arc;

/// One allocation on page borders, freed when dropped. Cached by the host like any other memory (not
/// write-combined: the host reads it as much as it writes it).
#[derive(Debug)]
pub struct Pinned {
    context: Arc<CudaContext>,
    start: NonNull<u8>,
    bytes: usize,
    device: Address,
}

// SAFETY: plain memory; who may touch what, and when, is its users' protocol.
unsafe impl Send for Pinned {}
// SAFETY: as for `Send`.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeroed.
    ///
    /// # Errors
    /// [`Error::Memory`] where the machine pins no more.
    pub fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Arc<Self>> {
        let pinned = Self::unset(context, bytes)?;
        // SAFETY: the range is the allocation, which nobody else has yet.
        unsafe { pinned.start.as_ptr().write_bytes(0, bytes) };
        Ok(pinned)
    }

    /// Pins memory and leaves in it whatever lies there, for a block that is laid out before anyone reads it: zeroes for 100 MiB
    /// take as long as some graphs.
    ///
    /// # Errors
    /// Fails as [`Pinned::new`] does.
    pub fn unset(context: &Arc<CudaContext>, bytes: usize) -> Result<Arc<Self>> {
        let refused = |error| failed(&format!("pinning {bytes} bytes of host memory"), error);
        context.bind_to_thread().map_err(refused)?;
        let mut start = std::ptr::null_mut();
        let flags = sys::CU_MEMHOSTALLOC_DEVICEMAP | sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the driver writes the pointer's place alone; it takes no allocation of 0 bytes.
        unsafe { sys::cuMemHostAlloc(&mut start, bytes.max(1), flags) }
            .result()
            .map_err(|error| match error.0 {
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::Memory(format!(
                    "pinning {bytes} bytes of host memory: the driver answered {:?}, expected that much free: raise \
                     the machine's limit on locked memory, or lower `max_seqs` or `max_context`",
                    error.0
                )),
                _ => refused(error),
            })?;
        let start = NonNull::new(start.cast::<u8>())
            .ok_or_else(|| Error::Memory(format!("pinning {bytes} bytes gave no memory")))?;
        let mut pinned = Self {
            context: context.clone(),
            start,
            bytes,
            device: 0,
        };
        // SAFETY: the memory was just allocated as mapped.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut pinned.device, start.as_ptr().cast(), 0) }
            .result()
            .map_err(refused)?;
        Ok(Arc::new(pinned))
    }

    /// The first byte as the device sees it.
    pub fn device(&self) -> Address {
        self.device
    }
}

impl SharedRegion for Arc<Pinned> {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // A failure here leaves the memory pinned until the context goes, and there is nobody to tell.
        if self.context.bind_to_thread().is_ok() {
            // SAFETY: allocated by `new`, freed once.
            let _ = unsafe { sys::cuMemFreeHost(self.start.as_ptr().cast()) };
        }
    }
}
