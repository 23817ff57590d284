//! The runtime: the scheduler core compiled for the host, the rings around it, a thread per stage, and
//! [`Engine`], which takes requests and gives events.

pub mod options;
pub mod request;

pub use options::{EngineOptions, EngineStatus};
pub use request::{EndReason, Event, Logits, Request, Sampling, Timing, TokenLogprobs};
