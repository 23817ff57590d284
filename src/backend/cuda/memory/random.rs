//! Weights of random presets, made by the GPU that runs them: nothing of them is in the host's memory.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::families::limits::Library;
use crate::error::{Error, Result};
use crate::model::weights::Made;
use crate::model::{DType, Tensor};
use crate::sys::abi;
use cudarc::driver::CudaStream;

/// Threads of a block (kernels/weights/random.cu).
const THREADS: u32 = 256;

/// kernels/weights/random.cu for each type that weights are kept in.
pub struct RandomKernels([(DType, Kernel); 3]);

/// How a matrix lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    Rows,
    /// [`crate::backend::cuda::families::packed`]
    Packed,
}

impl RandomKernels {
    /// # Errors
    /// The driver refuses.
    pub fn load(library: &Library) -> Result<Self> {
        let kernel = |dtype: DType| {
            let kernel = library.kernel(&format!("tg_random_{}", dtype.name()))?;
            Ok::<_, Error>((dtype, kernel))
        };
        Ok(Self([
            kernel(DType::F32)?,
            kernel(DType::BF16)?,
            kernel(DType::F16)?,
        ]))
    }

    /// Queues the making of `tensor`, whose elements are `made`, at `to` in another type and order.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// `to` has room for the tensor, and nobody else uses it until the stream has come to the end of this.
    pub unsafe fn make(
        &self,
        stream: &CudaStream,
        tensor: &Tensor,
        made: Made,
        to: Address,
        (dtype, order): (DType, Order),
    ) -> Result<()> {
        let (_, kernel) = self
            .0
            .iter()
            .find(|(of, _)| *of == dtype)
            .expect("one for each type");
        let ([key_low, key_high], seed_high, scale, offset) = made.stream.parts();
        let args = abi::tg_random_args {
            w: to,
            first: made.first,
            key_low,
            key_high,
            seed_high,
            scale,
            offset,
            columns: tensor.cols() as u32,
            packed: (order == Order::Packed).into(),
            keeps_f32: (tensor.dtype == DType::F32).into(),
        };
        let launch = Launch::blocks(tensor.rows() as u32, THREADS);
        // SAFETY: the arguments are those that the kernel takes; the caller vouches for the memory.
        unsafe { kernel.launch(stream, launch, &[Argument::of(&args)]) }
    }
}
