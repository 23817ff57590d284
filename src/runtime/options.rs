//! Sizes an engine is started with, and what it says about itself.

pub use crate::plan::EngineOptions;

/// What is in flight, as of the scheduler's last turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStatus {
    pub running: u32,
    pub waiting: u32,
    pub free_pages: u32,
    pub steps: u64,
}
