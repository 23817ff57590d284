//! Copies to a GPU by way of pinned memory: while one part is on its way, the next is put together.
//!
//! A copy from memory that is not pinned goes by way of the driver's own, a part after the other, and nothing is packed or
//! converted meanwhile.

use super::pinned::Pinned;
use crate::backend::SharedRegion;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::error::Result;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream, result};
use std::sync::Arc;

/// Bytes of a part. Long enough that starting a copy costs nothing, short enough that the first one starts at once.
pub const PART_BYTES: usize = 32 << 20;
const PARTS: usize = 2;
/// Pinned memory of a [`Staging`].
pub const STAGING_BYTES: usize = PARTS * PART_BYTES;

pub struct Staging<'a> {
    stream: &'a CudaStream,
    parts: [Part; PARTS],
    next: usize,
}

struct Part {
    memory: Arc<Pinned>,
    /// Behind its last copy.
    copied: CudaEvent,
}

impl<'a> Staging<'a> {
    /// # Errors
    /// [`crate::Error::Memory`] where the machine pins no more.
    pub fn new(context: &Arc<CudaContext>, stream: &'a CudaStream) -> Result<Self> {
        let part = || {
            let copied = context.new_event(None);
            Ok::<_, crate::error::Error>(Part {
                memory: Pinned::new(context, PART_BYTES)?,
                copied: copied.map_err(|error| failed("making an event", error))?,
            })
        };
        Ok(Self {
            stream,
            parts: [part()?, part()?],
            next: 0,
        })
    }

    /// Queues a copy of `bytes`, [`PART_BYTES`] at most, to `to`. `fill` puts them together; what it is given holds anything.
    ///
    /// # Errors
    /// The driver refuses, or a copy before this one failed.
    ///
    /// # Safety
    /// `to` has room for them, and nobody else uses it until the stream has come to the end of this.
    pub unsafe fn put(
        &mut self,
        to: Address,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        assert!(bytes <= PART_BYTES, "a part has {PART_BYTES} bytes");
        let refused = |error| failed("copying to the GPU", error);
        let part = &self.parts[self.next];
        self.next = (self.next + 1) % PARTS;
        part.copied.synchronize().map_err(refused)?;
        // SAFETY: the part has as many bytes, and its last copy has ended.
        let memory = unsafe { std::slice::from_raw_parts_mut(part.memory.start().as_ptr(), bytes) };
        fill(memory);
        // SAFETY: the caller's promise; the part stays as it is until its event.
        unsafe { result::memcpy_htod_async(to, memory, self.stream.cu_stream()) }
            .map_err(refused)?;
        part.copied.record(self.stream).map_err(refused)
    }
}

impl Drop for Staging<'_> {
    /// A part must not be freed under its copy.
    fn drop(&mut self) {
        // Where this fails, so does what is done next on the stream, which is told.
        let _ = self.stream.synchronize();
    }
}
