//! When the parts of a step ran, for `trace --kernels`: the same for every backend; and when stages that have a GPU each had a
//! step.
//!
//! Parts follow each other: one has the step to itself from when it is ready until the next one is, and the last until
//! the step's end. So their times add up, and what lies between two kernels counts for the first.

use crate::error::Result;
use crate::plan::{Op, OpKind};
use crate::sys::abi;
use std::sync::Arc;
use std::time::Instant;

/// One step of so many is left untimed, so that what timing costs shows as the difference. The number is prime: what else comes
/// round again comes by powers of two.
pub const UNTIMED_EVERY: u64 = 7;

/// How often the kernels of an operation run one behind the other where they are to find their weights in the L2 cache.
pub const IN_A_ROW: usize = 8;

/// Whether the parts of this step leave their times.
pub fn is_timed(step: u64) -> bool {
    step % UNTIMED_EVERY != UNTIMED_EVERY - 1
}

/// A kernel of a step; on the CPU an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// The operations of the plan that it does or has a share in; none where the program knows of no plan.
    pub ops: Vec<Op>,
    /// Which of the kernels of these operations it is, from 0 on.
    pub index: u32,
    /// How many they have.
    pub count: u32,
    /// `None` on the CPU.
    pub kernel: Option<KernelLaunch>,
}

/// A kernel as it is launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelLaunch {
    pub name: String,
    /// Blocks along x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads of a block.
    pub threads: u32,
}

impl Part {
    /// What it computes, as tables and slices have it: `router`, or `norm + router`.
    pub fn operation(&self) -> String {
        let mut kinds: Vec<OpKind> = self.ops.iter().map(|op| op.kind).collect();
        kinds.dedup();
        let names: Vec<&str> = kinds.iter().map(|kind| kind.name()).collect();
        match (&names[..], &self.kernel) {
            ([], Some(kernel)) => kernel.name.clone(),
            _ => names.join(" + "),
        }
    }
}

/// By the clock of whoever timed it. On a GPU it is `Stamp` of kernels/common/stamps.cuh.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartTime {
    /// It stood ready to go on, but for parts ahead of it: before it is ready where kernels overlap.
    pub waits_ns: u64,
    /// All parts before it had ended.
    pub ready_ns: u64,
}

/// One run of one stage; of all stages where one device runs them one after the other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepTimes {
    pub stage: u32,
    pub step: u64,
    pub parts: Arc<[Part]>,
    /// By part, ascending; empty where the step was left untimed.
    pub at: Vec<PartTime>,
    /// The last part had ended.
    pub end_ns: u64,
}

impl StepTimes {
    /// By part: its times, and when it had ended, as the next one saw it.
    pub fn spans(&self) -> impl Iterator<Item = (&PartTime, u64)> {
        let next = self.at.iter().skip(1).map(|next| next.ready_ns);
        self.at.iter().zip(next.chain([self.end_ns]))
    }
}

/// Where timed steps come out. A step's times are there before the scheduler's record of the turn that collects it.
pub trait StepClock: Send {
    /// The oldest step that has not been read.
    ///
    /// # Errors
    /// Its times are not those of its parts.
    fn next(&mut self) -> Result<Option<StepTimes>>;

    /// When the clock was at 0, where it is the host's; `None`: a GPU's `%globaltimer`.
    fn zero(&self) -> Option<Instant>;

    /// Steps whose times were not read soon enough.
    fn lost(&self) -> u64;
}

/// Bits of a time of [`StageTimes`]: what a GPU tells is its `%globaltimer` in ns without the bits above, 78 hours.
pub const STAGE_TIME_BITS: u32 = 64 - abi::TG_TIMES_STEP_BITS;

/// When a stage that has a GPU of its own had a step, by that GPU's clock: [`STAGE_TIME_BITS`] of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StageTimes {
    pub stage: u32,
    pub step: u64,
    /// All of it was there; `None` of the first stage, which composes steps.
    pub came: Option<u64>,
    /// It was about to be handed on.
    pub left: u64,
}

/// Where the times of stages come out, of each stage in the order of steps. They may come after the scheduler's record of the turn
/// that collects the step.
pub trait StageClock: Send {
    /// The next one that is there.
    fn next(&mut self) -> Option<StageTimes>;

    /// All stages have told of the steps before this one, or their times were lost.
    fn through(&self) -> u64;
}
