//! One kernel that stays for all steps of a run (kernels/ways/persistent.cu).

use super::step::{THREADS, WIDEST};
use super::{Ground, Steps};
use crate::backend::cuda::driver::launch::{Kernel, Launch};
use crate::backend::cuda::tools::progress::Progress;
use crate::error::Result;

pub(super) struct Stays(Kernel);

impl Stays {
    pub fn new(ground: &Ground) -> Result<Self> {
        ground.module.kernel("tg_ways_persistent").map(Self)
    }
}

impl Steps for Stays {
    fn run(&mut self, ground: &mut Ground, _until: u64) -> Result<u64> {
        let arguments = [ground.ways()];
        let launch = Launch::blocks(WIDEST, THREADS);
        // SAFETY: the argument is the kernel's; the memory is the ground's, which outlives what runs.
        unsafe { (self.0).launch_cooperative(&ground.stream, launch, &arguments) }?;
        ground.wait_for_all()?;
        Ok(1)
    }
}
