//! Kernels that launch all that follows, or stay for all steps of a run.

use super::super::LAUNCHING;
use super::super::cuda::{Argument, Kernel, Launch, Module};
use super::super::memory::Progress;
use super::step::{THREADS, WIDEST};
use super::{Ground, Launching};
use tailgraph::error::Result;

/// One cooperative kernel (kernels/ways/persistent.cu).
struct Stays(Kernel);

pub fn persistent(ground: &mut Ground) -> Result<Box<dyn Launching>> {
    Ok(Box::new(Stays(
        ground.memory.gpu.module.kernel("tg_ways_persistent")?,
    )))
}

impl Launching for Stays {
    fn run(&mut self, ground: &mut Ground, _until: u64) -> Result<u64> {
        let launch = Launch::blocks(WIDEST, THREADS);
        // SAFETY: the argument is the kernel's; the memory is the ground's, which outlives what runs.
        unsafe {
            self.0
                .launch_cooperative(&ground.memory.stream, launch, &[ground.ways()])
        }?;
        ground.wait_for_all()?;
        Ok(1)
    }
}

/// A kernel that launches a step's kernels, and its own next turn (kernels/cdp/turn.cu).
struct Scheduler {
    turn: Kernel,
    own_stream: bool,
}

/// Its image has the device runtime, and the step's kernels once more: no other way pays for that.
pub fn launching(ground: &mut Ground, own_stream: bool) -> Result<Box<dyn Launching>> {
    let module = Module::of_image(
        &ground.memory.gpu.context,
        "loading the kernels that launch kernels",
        LAUNCHING,
    )?;
    let turn = module.kernel("tg_cdp_turn")?;
    Ok(Box::new(Scheduler { turn, own_stream }))
}

impl Launching for Scheduler {
    fn run(&mut self, ground: &mut Ground, _until: u64) -> Result<u64> {
        let arguments = [ground.ways(), Argument::U32(self.own_stream.into())];
        // SAFETY: the arguments are the kernel's; the memory is the ground's, which outlives what runs.
        unsafe {
            self.turn
                .launch(&ground.memory.stream, Launch::blocks(1, 1), &arguments)
        }?;
        ground.wait_for_all()?;
        Ok(1)
    }
}
