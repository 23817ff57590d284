//! One graph whose shape the host changes from step to step, and, to see what that saves, a new graph for each: against graphs
//! that read all that changes from device memory.

use super::step::BUCKETS;
use super::{Ground, Steps};
use crate::backend::cuda::driver::call::ReadyCall;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::driver::graph::Captured;
use crate::backend::cuda::driver::update::NodeHandles;
use crate::backend::cuda::tools::progress::Progress;
use crate::error::Result;

/// Launches what `next` makes ready for each step, and spins for it.
fn run(ground: &Ground, until: u64, mut next: impl FnMut(usize) -> Result<()>) -> Result<u64> {
    let (from, mut bucket) = ground.told();
    for step in from..until {
        next(bucket)?;
        ground.spin_for(step + 1)?;
        bucket = ground.told().1;
    }
    Ok(until - from)
}

/// Each kernel's parameters set before each launch. The host does not know which of them a step leaves as they are.
pub(super) struct Params {
    exec: Exec,
    nodes: NodeHandles,
    calls: Vec<Vec<ReadyCall>>,
    /// Whose nodes these are.
    _graph: Captured,
}

impl Params {
    pub fn new(ground: &Ground) -> Result<Self> {
        let graph = ground.capture(0, None)?;
        let calls = |bucket| {
            let calls = ground.calls(bucket, None);
            calls.iter().map(ReadyCall::new).collect::<Result<_>>()
        };
        Ok(Self {
            exec: Exec::new(&graph, LaunchedBy::Host)?,
            nodes: graph.node_handles()?,
            calls: (0..BUCKETS).map(calls).collect::<Result<_>>()?,
            _graph: graph,
        })
    }
}

impl Steps for Params {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        run(ground, until, |bucket| {
            for (index, call) in self.calls[bucket].iter().enumerate() {
                self.exec.set_call(&self.nodes, index, call)?;
            }
            // SAFETY: the memory is the ground's, which outlives what runs.
            unsafe { self.exec.launch() }
        })
    }
}

/// The executable graph updated as a whole from a captured one.
pub(super) struct Whole {
    exec: Exec,
    graphs: Vec<Captured>,
}

impl Whole {
    pub fn new(ground: &Ground) -> Result<Self> {
        let graphs = (0..BUCKETS).map(|bucket| ground.capture(bucket, None));
        let graphs: Vec<_> = graphs.collect::<Result<_>>()?;
        Ok(Self {
            exec: Exec::new(&graphs[0], LaunchedBy::Host)?,
            graphs,
        })
    }
}

impl Steps for Whole {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        run(ground, until, |bucket| {
            self.exec.update(&self.graphs[bucket])?;
            // SAFETY: as above.
            unsafe { self.exec.launch() }
        })
    }
}

/// A graph captured, instantiated and launched for each step; it lives until the next one is there.
pub(super) struct Recapture(Option<Exec>);

impl Recapture {
    pub fn new(_ground: &Ground) -> Result<Self> {
        Ok(Self(None))
    }
}

impl Steps for Recapture {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        run(ground, until, |bucket| {
            let exec = Exec::instantiate(&ground.capture(bucket, None)?, LaunchedBy::Host)?;
            // SAFETY: as above; the one before has run.
            unsafe { exec.launch() }?;
            self.0 = Some(exec);
            Ok(())
        })
    }
}
