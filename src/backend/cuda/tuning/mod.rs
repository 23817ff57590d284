//! What is known of GPUs, as data that any build reads: those with names, and which kernels serve which bucket, by
//! measurement: architectures, classes of GPUs, variants, and the files that say so.

pub mod class;
pub mod gpu;
pub mod kernel_file;
pub mod limits;
pub mod shape;
pub mod variants;

pub use class::GpuClass;
pub use kernel_file::{KernelChoice, KernelFile, Origin, Served};
pub use shape::Shape;
pub use variants::{Architecture, Variant};
