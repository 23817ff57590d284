//! One graph of conditional nodes, launched once by the host (kernels/ways/conditional.cu).

use super::step::BUCKETS;
use super::{Ground, Steps};
use crate::backend::cuda::driver::call::ReadyCall;
use crate::backend::cuda::driver::conditional::Condition;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::driver::graph::Captured;
use crate::backend::cuda::driver::launch::{Argument, Launch};
use crate::backend::cuda::tools::progress::Progress;
use crate::error::{Error, Result};

pub(super) struct Loop(Exec);

impl Loop {
    pub fn new(ground: &Ground) -> Result<Self> {
        let graph = Captured::empty(&ground.stream, ground.name("the loop"))?;
        let root = graph.body();
        let of_while = root.value(1)?;
        let (_, bodies) = root.condition(Condition::While, of_while, &[])?;
        let body = &bodies[0];
        // No body of SWITCH has this number.
        let of_switch = body.value(BUCKETS as u32)?;
        let of_if = body.value(0)?;
        let one = Launch::blocks(1, 1);
        let turn = ground.module.kernel("tg_ways_turn")?;
        let after = body.capture(|stream| {
            let arguments = [
                ground.ways(),
                Argument::U64(of_switch),
                Argument::U64(of_if),
            ];
            // SAFETY: the arguments are the kernel's; a captured launch runs when the graph does.
            unsafe { turn.launch(stream, one, &arguments) }
        })?;
        let turn = after.ok_or_else(|| {
            Error::Runtime(
                ground.name("the loop's first kernel left no node: this is a bug in tailgraph"),
            )
        })?;
        let switch = Condition::Switch(BUCKETS as u32);
        let (switch, buckets) = body.condition(switch, of_switch, &[turn])?;
        for (bucket, inner) in buckets.iter().enumerate() {
            let calls = ground.calls(bucket, None);
            inner.capture(|stream| {
                for call in &calls {
                    // SAFETY: as above.
                    unsafe { ReadyCall::new(call)?.launch(stream) }?;
                }
                Ok(())
            })?;
        }
        let (_, idle) = body.condition(Condition::If, of_if, &[switch])?;
        let kernel = ground.module.kernel("tg_ways_idle")?;
        idle[0].capture(|stream| {
            let arguments = [ground.ways(), Argument::U64(of_while)];
            // SAFETY: as above.
            unsafe { kernel.launch(stream, one, &arguments) }
        })?;
        Exec::new(&graph, LaunchedBy::Host).map(Self)
    }
}

impl Steps for Loop {
    fn run(&mut self, ground: &mut Ground, _until: u64) -> Result<u64> {
        // SAFETY: the memory is the ground's, which outlives what runs.
        unsafe { self.0.launch() }?;
        ground.wait_for_all()?;
        Ok(1)
    }
}
