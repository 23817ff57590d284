//! Two GPUs that hand rows on in every way there is, side by side: timed by the first one's clock.

use super::host::Busy;
use super::techniques::{self, Found, Plan, Steps};
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::listed::handover::HandoverWay;
pub use crate::backend::cuda::tools::handover::{Foreseen, check};
use crate::backend::cuda::tools::handover::{Run, WAIT, open};
use crate::backend::cuda::tools::techniques::Chunk;
use crate::error::Result;
use std::sync::atomic::AtomicBool;

/// Of a row, as it goes over the link.
pub const ROW_BYTES: u64 = 4096;

impl Steps for Run {
    fn run(&mut self, count: u64) -> Result<Chunk> {
        Self::run(self, count)
    }

    fn digest(&self) -> u64 {
        self.token()
    }

    fn not_taken(&self) -> Option<u32> {
        None
    }
}

/// Runs one repeat of `way` over `steps`, whose answers are worked out already; false: interrupted, and `found` is as before.
///
/// # Errors
/// What the way failed by, or that its bits are not the reference's.
pub fn measure(
    gpus: &[OpenGpu; 2],
    way: HandoverWay,
    plan: &Plan,
    steps: &Foreseen,
    busy: &Busy,
    found: &mut Found,
    interrupt: &AtomicBool,
) -> Result<bool> {
    let free = || gpus.iter().map(OpenGpu::free_bytes).sum();
    let open = || open(gpus, way, steps, WAIT);
    techniques::repeat(free, open, plan, busy, found, interrupt)
}
