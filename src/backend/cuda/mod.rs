//! The CUDA backend: what the machine's driver offers, and the kernels compiled into this build.
//!
//! The driver (libcuda) is loaded at run time, so one binary runs with and without a GPU; nothing here links
//! to CUDA. May use `plan`, `model`, `sys` and `error`.

pub mod buffer;
pub mod driver;
pub mod image;
pub mod launch;
pub mod module;
pub mod ops;
