//! The runtime: the scheduler core compiled for the host, the rings around it, a thread per stage, and
//! [`Engine`], which takes requests and gives events: of one scheduler ([`SingleEngine`]) or of several ([`Replicas`]). Uses `backend` through traits, whatever the device, and `sys`; knows nothing of
//! text, files or the command line.

mod claims;
pub mod core;
mod device;
mod device_queue;
mod driver;
pub mod engine;
mod entries;
mod held_up;
pub mod links;
mod memory;
mod notices;
pub mod options;
mod pauses;
pub mod replay;
pub mod replica;
pub mod replicas;
pub mod request;
pub mod rings;
mod signal;
mod single;
mod sizes;
mod threads;
mod watchdog;

pub use core::{Action, Between, Core, Outcome};
pub use engine::{Engine, Part};
pub use links::{Asked, StageLink};
pub use options::{EngineOptions, EngineShape, EngineStatus};
pub use replica::Replica;
pub use replicas::Replicas;
pub use request::{Border, EndReason, Event, Logits, Request, Sampling, Timing, TokenLogprobs};
pub use rings::HostRings;

pub use signal::Waker;
pub use single::SingleEngine;
pub use sizes::core_bytes;
