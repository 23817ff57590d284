//! Steps that the host launches: kernel by kernel, or as a graph a step, with each way that it has to wait.

use super::step::BUCKETS;
use super::{Ground, Steps};
use crate::backend::cuda::driver::call::ReadyCall;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::engine::waiter::{Wait, Waiter};
use crate::backend::cuda::tools::progress::Progress;
use crate::error::Result;

/// Every bucket's step as a graph that the host launches.
pub(super) fn graphs(ground: &Ground) -> Result<Vec<Exec>> {
    let graph = |bucket| Exec::new(&ground.capture(bucket, None)?, LaunchedBy::Host);
    (0..BUCKETS).map(graph).collect()
}

/// A graph a step.
pub(super) struct Graphs {
    graphs: Vec<Exec>,
    /// For a step's end, before its word in pinned memory is looked at; none: the host spins for the word.
    waiter: Option<Waiter>,
}

impl Graphs {
    pub fn new(ground: &Ground, wait: Option<Wait>) -> Result<Self> {
        let waiter = wait.map(|wait| Waiter::new(&ground.context, wait));
        let waiter = waiter.transpose();
        Ok(Self {
            graphs: graphs(ground)?,
            waiter: waiter.map_err(|error| failed(&ground.name("making an event"), error))?,
        })
    }

    fn wait(&self, ground: &Ground) -> Result<()> {
        let Some(waiter) = &self.waiter else {
            return Ok(());
        };
        match waiter.within(Ground::STEP_TIMEOUT, &ground.stream) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ground.late(Ground::STEP_TIMEOUT)),
            Err(error) => Err(failed(&ground.name("waiting for an event"), error)),
        }
    }
}

impl Steps for Graphs {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        let (from, mut bucket) = ground.told();
        for step in from..until {
            // SAFETY: the memory is the ground's, which outlives what runs.
            unsafe { self.graphs[bucket].launch() }?;
            self.wait(ground)?;
            // What an event has seen the word has told.
            ground.spin_for(step + 1)?;
            bucket = ground.told().1;
        }
        Ok(until - from)
    }
}

/// All graphs queued by a host that knows every shape.
pub(super) struct Queued(Vec<Exec>);

impl Queued {
    pub fn new(ground: &Ground) -> Result<Self> {
        graphs(ground).map(Self)
    }
}

impl Steps for Queued {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        let from = ground.told().0;
        for step in from..until {
            let bucket = ground.reference.bucket(step);
            // SAFETY: as above.
            unsafe { self.0[bucket].launch() }?;
        }
        ground.spin_for(until)?;
        Ok(until - from)
    }
}

/// Kernel by kernel.
pub(super) struct Kernels(Vec<Vec<ReadyCall>>);

impl Kernels {
    pub fn new(ground: &Ground) -> Result<Self> {
        let calls = |bucket| {
            let calls = ground.calls(bucket, None);
            calls.iter().map(ReadyCall::new).collect::<Result<_>>()
        };
        (0..BUCKETS).map(calls).collect::<Result<_>>().map(Self)
    }
}

impl Steps for Kernels {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        let (from, mut bucket) = ground.told();
        for step in from..until {
            for call in &self.0[bucket] {
                // SAFETY: as above.
                unsafe { call.launch(&ground.stream) }?;
            }
            ground.spin_for(step + 1)?;
            bucket = ground.told().1;
        }
        Ok((until - from) * u64::from(ground.layers + 1))
    }
}
