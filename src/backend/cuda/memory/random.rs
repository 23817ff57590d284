//! Weights of random presets, made by the GPU that runs them: nothing of them is in the host's memory.

use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::families::limits::Library;
use crate::backend::cuda::matrix::Matrix;
use crate::error::Result;
use crate::model::weights::Made;
use crate::model::{Tensor, WeightFormat};
use crate::sys::abi;
use cudarc::driver::CudaStream;

/// kernels/weights/random.cu for each format that weights are kept in, in the order of [`WeightFormat::ALL`].
pub struct RandomKernels(Vec<Kernel>);

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
        let kernel = |format: WeightFormat| library.kernel(&format!("tg_random_{}", format.name()));
        WeightFormat::ALL
            .into_iter()
            .map(kernel)
            .collect::<Result<_>>()
            .map(Self)
    }

    /// Queues the making of `tensor`, whose elements are `made`, in its place, in another format and order.
    ///
    /// # Errors
    /// The driver refuses.
    ///
    /// # Safety
    /// The place has room for the tensor, and nobody else uses it until the stream has come to the end of this.
    pub unsafe fn make(
        &self,
        stream: &CudaStream,
        tensor: &Tensor,
        made: Made,
        place: &Matrix,
        order: Order,
    ) -> Result<()> {
        let mut kernels = self.0.iter().zip(WeightFormat::ALL);
        let found = kernels.find(|&(_, of)| of == place.format);
        let (kernel, _) = found.expect("one for each format");
        let ([key_low, key_high], seed_high, scale, offset) = made.stream.parts();
        let args = abi::tg_random_args {
            w: place.address,
            row_scales: place.scale_address(),
            first: made.first,
            key_low,
            key_high,
            seed_high,
            scale,
            offset,
            columns: tensor.cols() as u32,
            packed: (order == Order::Packed).into(),
            keeps_f32: (tensor.format == WeightFormat::F32).into(),
        };
        let launch = Launch::blocks(tensor.rows() as u32, abi::TG_RANDOM_THREADS);
        // SAFETY: the arguments are those that the kernel takes; the caller vouches for the memory.
        unsafe { kernel.launch(stream, launch, &[Argument::of(&args)]) }
    }
}
