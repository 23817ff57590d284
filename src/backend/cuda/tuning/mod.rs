//! What is known of GPUs, as data that any build reads: those with names, and which kernels serve which bucket, by
//! measurement: architectures, variants, and the files that say so.

pub mod gpu;
pub mod kernel_file;
pub mod limits;
pub mod shape;
pub mod variants;

pub use kernel_file::{KernelChoice, KernelFile};
pub use shape::Shape;
pub use variants::{Architecture, Variant};
