//! Steps that the host launches: kernel by kernel, or as a graph a step, with each way that it has to wait.

use super::super::cuda::{Exec, LaunchedBy, ReadyCall, Wait, Waiter, failed};
use super::super::memory::Progress;
use super::step::{BUCKETS, bucket_behind};
use super::{Ground, Launching};
use tailgraph::error::Result;

/// Launches what `next` launches for each step's bucket, and spins for the step's word.
pub fn each_step(
    ground: &Ground,
    until: u64,
    mut next: impl FnMut(usize) -> Result<()>,
) -> Result<u64> {
    let (from, mut bucket) = ground.told();
    for step in from..until {
        next(bucket)?;
        ground.spin_for(step + 1)?;
        bucket = ground.told().1;
    }
    Ok(until - from)
}

/// Every bucket's step as a graph that the host launches.
fn all_graphs(ground: &Ground) -> Result<Vec<Exec>> {
    let graph = |bucket| Exec::new(&ground.capture(bucket, None)?, LaunchedBy::Host);
    (0..BUCKETS).map(graph).collect()
}

/// A graph a step. The host spins for the step's word at once, or, with a waiter, waits for the step's end before.
struct Graphs {
    graphs: Vec<Exec>,
    waiter: Option<Waiter>,
}

pub fn graphs(ground: &mut Ground, wait: Option<Wait>) -> Result<Box<dyn Launching>> {
    let waiter = wait
        .map(|wait| Waiter::new(&ground.memory.gpu.context, wait))
        .transpose();
    let waiter = waiter.map_err(|error| failed(&ground.name("making an event"), error))?;
    Ok(Box::new(Graphs {
        graphs: all_graphs(ground)?,
        waiter,
    }))
}

impl Launching for Graphs {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        each_step(ground, until, |bucket| {
            // SAFETY: the memory is the ground's, which outlives what runs.
            unsafe { self.graphs[bucket].launch() }?;
            match &self.waiter {
                None => Ok(()),
                Some(waiter) => match waiter.within(Ground::STEP_TIMEOUT, &ground.memory.stream) {
                    Ok(true) => Ok(()),
                    Ok(false) => Err(ground.late(Ground::STEP_TIMEOUT)),
                    Err(error) => Err(failed(&ground.name("waiting for an event"), error)),
                },
            }
        })
    }
}

/// All graphs queued by a host that knows every shape.
struct Queued(Vec<Exec>);

pub fn queued(ground: &mut Ground) -> Result<Box<dyn Launching>> {
    Ok(Box::new(Queued(all_graphs(ground)?)))
}

impl Launching for Queued {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        let from = ground.told().0;
        for step in from..until {
            let bucket = bucket_behind(ground.reference.value(step));
            // SAFETY: the memory is the ground's, which outlives what runs.
            unsafe { self.0[bucket].launch() }?;
        }
        ground.spin_for(until)?;
        Ok(until - from)
    }
}

/// Kernel by kernel.
struct Kernels(Vec<Vec<ReadyCall>>);

pub fn kernels(ground: &mut Ground) -> Result<Box<dyn Launching>> {
    Ok(Box::new(Kernels(ground.ready_calls()?)))
}

impl Launching for Kernels {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        let steps = each_step(ground, until, |bucket| {
            // SAFETY: the memory is the ground's, which outlives what runs.
            self.0[bucket]
                .iter()
                .try_for_each(|call| unsafe { call.launch(&ground.memory.stream) })
        })?;
        Ok(steps * u64::from(ground.layers + 1))
    }
}
