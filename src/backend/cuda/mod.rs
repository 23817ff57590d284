//! The CUDA backend: what the machine's driver offers, and the kernels compiled into this build.
//!
//! The driver (libcuda) is loaded at run time, so one binary runs with and without a GPU; nothing here links
//! to CUDA. May use `plan`, `model`, `sys` and `error`. Each part uses only what stands to its right:
//! `device` -> `engine` -> `lower` -> `memory` -> `families` -> `driver` -> `catalogue` -> `matrix` -> `tuning`.
//!
//! A build without the feature `cuda` has no kernels, and opens no GPU.

pub mod catalogue;
pub mod device;
pub mod driver;
pub mod engine;
pub mod families;
pub mod lower;
pub mod matrix;
pub mod memory;
pub mod tuning;
