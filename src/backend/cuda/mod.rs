//! The CUDA backend: what the machine's driver offers, and the kernels compiled into this build.
//!
//! The driver (libcuda) is loaded at run time, so one binary runs with and without a GPU; nothing here links
//! to CUDA. May use `plan`, `model`, `sys` and `error`.

pub mod ahead;
pub mod audit;
pub mod buffer;
pub mod call;
pub mod delivery;
pub mod driver;
pub mod exec;
pub mod families;
pub mod gpu;
pub mod graph;
pub mod hosted;
pub mod image;
pub mod launch;
pub mod lower;
pub mod mirror;
pub mod model;
pub mod module;

pub mod packed;
pub mod pinned;
pub mod probe;
pub mod program;
pub mod scheduler;
pub mod stamps;
pub mod survey;
pub mod telling;
pub mod tensor_map;
pub mod weights;
