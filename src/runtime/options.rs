//! Sizes an engine is started with, and what it says about itself.

pub use crate::plan::EngineOptions;
use crate::plan::{Ladders, RingCapacities};
use serde::{Deserialize, Serialize};

/// Who launches the kernels of a step, on a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launch {
    /// The host, one by one.
    HostKernels,
    /// The host, a captured graph a step.
    HostGraph,
    /// A captured graph a step, the next decode step before the last is through, where that can end no sequence and let none in.
    HostGraphAhead,
    /// The GPU itself, which also schedules.
    DeviceGraph,
}

impl Launch {
    /// As in `--launch`, which says nothing of `--ahead`.
    pub fn name(self) -> &'static str {
        match self {
            Self::HostKernels => "host-kernels",
            Self::HostGraph | Self::HostGraphAhead => "host-graph",
            Self::DeviceGraph => "device-graph",
        }
    }
}

/// Everything that the schedule of a run depends on besides its requests and their times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineShape {
    pub options: EngineOptions,
    pub ladders: Ladders,
    /// As the scheduler sees them: a GPU that runs all stages of a plan counts as one.
    pub stages: u32,
    pub rings: RingCapacities,
    /// A decode step may be composed before the one ahead of it has come back (`tg_config.ahead`).
    pub ahead: bool,
}

/// What is in flight, as of the scheduler's last turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStatus {
    pub running: u32,
    pub waiting: u32,
    pub free_pages: u32,
    pub steps: u64,
}
