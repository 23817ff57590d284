//! The runtime: the scheduler core compiled for the host, the rings around it, a thread per stage, and
//! [`Engine`], which takes requests and gives events. Uses `backend` through two traits (`cuda` also puts a model on a GPU) and `sys`; knows
//! nothing of text, files or the command line.

pub mod core;
#[cfg(feature = "cuda")]
pub mod cuda;
mod device;
mod driver;
pub mod engine;
mod memory;
pub mod options;
pub mod replay;
pub mod request;
pub mod rings;
mod signal;
mod sizes;
mod threads;
mod watchdog;

pub use core::{Action, Core, Outcome, StageLink};
pub use engine::Engine;
pub use options::{EngineOptions, EngineShape, EngineStatus, Launch};
pub use request::{EndReason, Event, Logits, Request, Sampling, Timing, TokenLogprobs};
pub use rings::HostRings;
