//! The CUDA backend: what the machine's driver offers, and the kernels compiled into this build.
//!
//! The driver (libcuda) is loaded at run time, so one binary runs with and without a GPU; nothing here links
//! to CUDA. May use `plan`, `model`, `sys` and `error`. Each part uses only what stands to its right:
//! `device` -> `engine` -> `lower` -> `memory` -> `families` -> `driver` -> `listed` -> `tuning`.
//!
//! A build without GPU support has what is data alone: `listed` and `tuning`.

#[cfg(feature = "cuda")]
pub mod device;
#[cfg(feature = "cuda")]
pub mod driver;
#[cfg(feature = "cuda")]
pub mod engine;
#[cfg(feature = "cuda")]
pub mod families;
pub mod listed;
#[cfg(feature = "cuda")]
pub mod lower;
#[cfg(feature = "cuda")]
pub mod memory;
pub mod tuning;
