//! A kernel that launches a step's kernels, and its own next turn (kernels/cdp/turn.cu). Its image has the device runtime, and the
//! step's kernels once more.

use super::{Ground, Steps};
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::driver::module::Module;
use crate::backend::cuda::tools::progress::Progress;
use crate::error::Result;

pub(super) struct Scheduler {
    turn: Kernel,
    own_stream: bool,
}

impl Scheduler {
    pub fn new(ground: &Ground, own_stream: bool) -> Result<Self> {
        let module = Module::load_launching(&ground.context)?;
        Ok(Self {
            turn: module.kernel("tg_cdp_turn")?,
            own_stream,
        })
    }
}

impl Steps for Scheduler {
    fn run(&mut self, ground: &mut Ground, _until: u64) -> Result<u64> {
        let arguments = [ground.ways(), Argument::U32(self.own_stream.into())];
        // SAFETY: the arguments are the kernel's; the memory is the ground's, which outlives what runs.
        unsafe {
            self.turn
                .launch(&ground.stream, Launch::blocks(1, 1), &arguments)
        }?;
        ground.wait_for_all()?;
        Ok(1)
    }
}
