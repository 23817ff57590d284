//! Which kernels serve which bucket, by measurement: architectures of GPUs, variants, and the files that say so. It is data,
//! and read with and without GPU support.

pub mod kernel_file;
pub mod variants;

pub use kernel_file::{KernelChoice, KernelFile};
pub use variants::{Architecture, Variant};
