//! Sizes an engine is started with, and what it says about itself.

pub use crate::plan::EngineOptions;
use crate::plan::{BucketSizes, RingCapacities};
use serde::{Deserialize, Serialize};

/// Everything that the schedule of a run depends on besides its requests and their times.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineShape {
    pub options: EngineOptions,
    #[serde(rename = "ladders")]
    pub bucket_sizes: BucketSizes,
    /// Stages that the scheduler sees: a GPU that runs all stages of a plan counts as one.
    pub stages: u32,
    pub rings: RingCapacities,
    /// A decode step may be composed before the one ahead of it has come back (`tg_config.ahead`).
    pub ahead: bool,
}

impl EngineShape {
    /// Where the scheduler runs on the device, or on the first of several, each of which is a stage.
    pub fn on_device(
        bucket_sizes: &BucketSizes,
        options: &EngineOptions,
        rings: RingCapacities,
        stages: u32,
    ) -> Self {
        let options = match stages {
            1 => options.one_step_in_flight(),
            stages => EngineOptions {
                steps_in_flight: options.steps_in_flight.max(stages),
                ..*options
            },
        };
        Self {
            options,
            bucket_sizes: bucket_sizes.clone(),
            stages,
            rings,
            ahead: false,
        }
    }
}

/// What is in flight, as of the scheduler's last turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EngineStatus {
    pub running: u32,
    pub waiting: u32,
    pub free_pages: u32,
    pub steps: u64,
}
