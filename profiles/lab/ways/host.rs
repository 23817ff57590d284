//! Steps that the host launches: kernel by kernel, as a graph a step with each way that it has to wait, and as graphs that it changes
//! from step to step.

use super::super::cuda::{Captured, Exec, LaunchedBy, ReadyCall, Wait, Waiter, failed};
use super::super::memory::{Progress, STEP_TIMEOUT};
use super::step::{BUCKETS, bucket_behind};
use super::{Ground, Launching};
use cudarc::driver::sys;
use tailgraph::error::Result;

/// Launches what `next` launches for each step's bucket, and spins for the step's word.
fn each_step(mut next: impl FnMut(&Ground, usize) -> Result<()> + 'static) -> Launching {
    Box::new(move |ground, until| {
        let (from, mut bucket) = ground.told();
        for step in from..until {
            next(ground, bucket)?;
            ground.spin_for(step + 1)?;
            bucket = ground.told().1;
        }
        Ok(until - from)
    })
}

/// Every bucket's step as a graph that the host launches.
fn all_graphs(ground: &Ground) -> Result<Vec<Exec>> {
    let graph = |bucket| Exec::new(&ground.capture(bucket, None)?, LaunchedBy::Host);
    (0..BUCKETS).map(graph).collect()
}

/// A graph a step. The host spins for the step's word at once, or, with a way to wait, waits for the step's end before.
pub fn graphs(ground: &Ground, wait: Option<Wait>) -> Result<Launching> {
    let graphs = all_graphs(ground)?;
    let context = &ground.memory.gpu.context;
    let waiter = wait.map(|wait| Waiter::new(context, wait)).transpose();
    let waiter = waiter.map_err(|error| failed(&ground.name("making an event"), error))?;
    Ok(each_step(move |ground, bucket| {
        ground.launch(&graphs[bucket])?;
        let Some(waiter) = &waiter else {
            return Ok(());
        };
        match waiter.within(STEP_TIMEOUT, &ground.memory.stream) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ground.late(STEP_TIMEOUT)),
            Err(error) => Err(failed(&ground.name("waiting for an event"), error)),
        }
    }))
}

/// All graphs queued by a host that knows every shape.
pub fn queued(ground: &Ground) -> Result<Launching> {
    let graphs = all_graphs(ground)?;
    Ok(Box::new(move |ground, until| {
        let from = ground.told().0;
        for step in from..until {
            let bucket = bucket_behind(ground.reference[step as usize]);
            ground.launch(&graphs[bucket])?;
        }
        ground.spin_for(until)?;
        Ok(until - from)
    }))
}

/// Kernel by kernel.
pub fn kernels(ground: &Ground) -> Result<Launching> {
    let calls = ground.ready_calls()?;
    let kernels = calls[0].len() as u64;
    let mut steps = each_step(move |ground, bucket| {
        // SAFETY: the memory is the ground's, which outlives what runs.
        let launch = |call| unsafe { ReadyCall::launch(call, &ground.memory.stream) };
        calls[bucket].iter().try_for_each(launch)
    });
    Ok(Box::new(move |ground, until| {
        Ok(steps(ground, until)? * kernels)
    }))
}

/// One graph whose kernels are each given their parameters before each launch, by the nodes of the graph that it was made of. The host does not know which of them a step leaves as
/// they are.
pub fn params(ground: &Ground) -> Result<Launching> {
    let graph = ground.capture(0, None)?;
    let (exec, calls) = (Exec::new(&graph, LaunchedBy::Host)?, ground.ready_calls()?);
    let nodes = graph.handles()?;
    Ok(each_step(move |ground, bucket| {
        for (index, (call, &node)) in calls[bucket].iter().zip(&nodes).enumerate() {
            call.with_node(|params| {
                // SAFETY: the executable is alive, the node of its graph, and the driver copies the parameters.
                unsafe { sys::cuGraphExecKernelNodeSetParams_v2(exec.handle(), node, params) }
                    .result()
                    .map_err(|error| {
                        let (graph, call) = (graph.name(), call.name());
                        failed(
                            &format!("{graph}: giving node {index} a call of {call}"),
                            error,
                        )
                    })
            })?;
        }
        ground.launch(&exec)
    }))
}

/// One graph updated as a whole from the captured one of the step's bucket.
pub fn updated(ground: &Ground) -> Result<Launching> {
    let graphs = (0..BUCKETS).map(|bucket| ground.capture(bucket, None));
    let graphs: Vec<_> = graphs.collect::<Result<_>>()?;
    let exec = Exec::new(&graphs[0], LaunchedBy::Host)?;
    Ok(each_step(move |ground, bucket| {
        update(&exec, &graphs[bucket])?;
        ground.launch(&exec)
    }))
}

/// From the next launch on `exec` does what `graph` does, whose nodes and edges are as those that it was made of.
fn update(exec: &Exec, graph: &Captured) -> Result<()> {
    graph.bind()?;
    // SAFETY: all-zero bytes are a value of this struct: a success, and no nodes.
    let mut found: sys::CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
    // SAFETY: both are alive; the driver writes the result alone.
    let updated = unsafe { sys::cuGraphExecUpdate_v2(exec.handle(), graph.handle(), &mut found) };
    updated.result().map_err(|error| {
        let (from, to, node) = (exec.name(), graph.name(), graph.node_text(found.errorNode));
        let what = format!("updating the graph of {from} to that of {to} at {node}");
        failed(&format!("{what} ({:?})", found.result), error)
    })
}

/// A graph captured, instantiated and launched for each step, to see what the others save; it lives until the next one is there.
pub fn recaptured() -> Launching {
    let mut last = None;
    each_step(move |ground, bucket| {
        let exec = Exec::instantiate(&ground.capture(bucket, None)?, LaunchedBy::Host)?;
        ground.launch(&exec)?;
        drop(last.replace(exec));
        Ok(())
    })
}
