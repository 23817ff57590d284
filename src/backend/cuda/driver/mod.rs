//! The driver (libcuda) and what is asked of it: GPUs, the image of kernels, launches, graphs. May use `plan`, `sys`, `error`
//! and `backend::timing`; knows no model.

pub mod arguments;
pub mod audit;
pub mod call;
pub mod errors;
pub mod exec;
pub mod gpu;
pub mod graph;
pub mod image;
pub mod launch;
pub mod machine;
pub mod module;
pub mod nccl;
pub mod peer;
pub mod tensor_map;
pub mod timed;

/// An address in device memory, or in pinned memory as the device sees it. 0 is no array.
pub type Address = u64;
