//! Kernel calls as data, for whoever shows them: lowered for a GPU, which need not be there, and read anywhere.

use crate::backend::cuda::tuning::Variant;
use crate::plan::{Op, StepKind};
use serde::Serialize;

/// What does one step of a stage, in one bucket.
#[derive(Debug, Clone, Serialize)]
pub struct StepCalls {
    pub stage: usize,
    pub kind: StepKind,
    /// Of its bucket.
    pub rows: u32,
    pub variant: Variant,
    /// In order.
    pub calls: Vec<Call>,
}

/// One launch of one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Call {
    pub kernel: String,
    /// The operations of the plan that it does or has a share in.
    #[serde(rename = "operations")]
    pub ops: Vec<Op>,
    /// Blocks along x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    #[serde(rename = "dynamic_shared_bytes")]
    pub shared_bytes: u32,
    /// Blocks of a cluster.
    pub cluster: u32,
    /// May start before the call ahead has ended (programmatic dependent launch).
    pub early: bool,
}
