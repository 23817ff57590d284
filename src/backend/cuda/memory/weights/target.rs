//! The memory that weights get their places in: bytes are copied there, through pinned memory where there are many, or random
//! tensors made.

use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::families::limits::Library;
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::random::{Order, RandomKernels};
use crate::backend::cuda::memory::staging::Staging;
use crate::error::Result;
use crate::model::Tensor;
use crate::model::weights::Made;
use cudarc::driver::{CudaContext, CudaStream, result};
use std::sync::Arc;

/// Where tensors are copied to or made.
pub(super) struct Target<'a> {
    buffer: &'a Buffer,
    context: &'a Arc<CudaContext>,
    stream: &'a CudaStream,
    /// Once a tensor has been copied: a random model has none.
    staging: Option<Staging<'a>>,
    random: RandomKernels,
    /// Copies of these are queued.
    small: Vec<Vec<u8>>,
}

impl<'a> Target<'a> {
    /// # Errors
    /// [`RandomKernels::load`]'s.
    pub fn new(
        buffer: &'a Buffer,
        (context, stream): (&'a Arc<CudaContext>, &'a CudaStream),
        library: &Library,
    ) -> Result<Self> {
        Ok(Self {
            buffer,
            context,
            stream,
            staging: None,
            random: RandomKernels::load(library)?,
            small: vec![],
        })
    }

    /// What is copied to byte `offset`, which nobody else may use, is put together by `fill`.
    pub fn stage(
        &mut self,
        offset: usize,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Result<()> {
        assert!(offset + bytes <= self.buffer.bytes(), "past the end");
        let staging = match &mut self.staging {
            Some(staging) => staging,
            none => none.insert(Staging::new(self.context, self.stream)?),
        };
        // SAFETY: the range lies inside the allocation, and is nobody else's.
        unsafe { staging.put(self.buffer.at(offset), bytes, fill) }
    }

    /// Makes a random tensor in its place, with its scales, which nobody else may use.
    pub fn make(&self, tensor: &Tensor, made: Made, place: &Matrix, order: Order) -> Result<()> {
        let end = self.buffer.at(0) + self.buffer.bytes() as u64;
        let elements_end = place.address + place.stride_bytes();
        let scales_end = place.scale.map_or(0, |scale| scale + place.scale_bytes());
        assert!(elements_end.max(scales_end) <= end, "past the end");
        // SAFETY: the place lies inside the allocation, and is nobody else's.
        unsafe { self.random.make(self.stream, tensor, made, place, order) }
    }

    /// Copies a small array to byte `offset`, which nobody else may use.
    pub fn copy(&mut self, offset: usize, bytes: Vec<u8>) -> Result<()> {
        let refused = |error| failed("copying to the GPU", error);
        assert!(offset + bytes.len() <= self.buffer.bytes(), "past the end");
        self.context.bind_to_thread().map_err(refused)?;
        let (to, stream) = (self.buffer.at(offset), self.stream.cu_stream());
        // SAFETY: the range lies inside the allocation, and is nobody else's; the bytes are kept until the stream has come to
        // the end of this.
        unsafe { result::memcpy_htod_async(to, &bytes, stream) }.map_err(refused)?;
        self.small.push(bytes);
        Ok(())
    }
}

impl Drop for Target<'_> {
    /// No array may be freed under its copy.
    fn drop(&mut self) {
        // Where this fails, so does what is done next on the stream, which is told.
        let _ = self.stream.synchronize();
    }
}
