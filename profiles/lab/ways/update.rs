//! One graph whose shape the host changes from step to step, and, to see what that saves, a new graph for each: against graphs
//! that read all that changes from device memory.

use super::super::cuda::{Captured, Exec, LaunchedBy, ReadyCall, failed};
use super::host::each_step;
use super::{Ground, Launching};
use cudarc::driver::sys;
use tailgraph::error::{Error, Result};

/// Each kernel's parameters set before each launch. The host does not know which of them a step leaves as they are.
struct Params {
    exec: Exec,
    calls: Vec<Vec<ReadyCall>>,
    /// The graph that the executable was made of, which has its nodes.
    graph: Captured,
}

pub fn params(ground: &mut Ground) -> Result<Box<dyn Launching>> {
    let graph = ground.capture(0, None)?;
    Ok(Box::new(Params {
        exec: Exec::new(&graph, LaunchedBy::Host)?,
        calls: ground.ready_calls()?,
        graph,
    }))
}

impl Launching for Params {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        let nodes = self.graph.handles()?;
        each_step(ground, until, |bucket| {
            for (index, (call, &node)) in self.calls[bucket].iter().zip(&nodes).enumerate() {
                call.with_node(|params| {
                    // SAFETY: the executable is alive, the node of its graph, and the driver copies the parameters.
                    unsafe {
                        sys::cuGraphExecKernelNodeSetParams_v2(self.exec.handle(), node, params)
                    }
                    .result()
                    .map_err(|error| {
                        failed(
                            &ground.name(&format!("giving node {index} a call of {}", call.name())),
                            error,
                        )
                    })
                })?;
            }
            // SAFETY: the memory is the ground's, which outlives what runs.
            unsafe { self.exec.launch() }
        })
    }
}

/// The executable graph updated as a whole from a captured one.
struct Whole {
    exec: Exec,
    graphs: Vec<Captured>,
}

pub fn whole(ground: &mut Ground) -> Result<Box<dyn Launching>> {
    let graphs = (0..super::step::BUCKETS).map(|bucket| ground.capture(bucket, None));
    let graphs: Vec<_> = graphs.collect::<Result<_>>()?;
    Ok(Box::new(Whole {
        exec: Exec::new(&graphs[0], LaunchedBy::Host)?,
        graphs,
    }))
}

impl Launching for Whole {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        each_step(ground, until, |bucket| {
            update(&self.exec, &self.graphs[bucket])?;
            // SAFETY: the memory is the ground's, which outlives what runs.
            unsafe { self.exec.launch() }
        })
    }
}

/// From the next launch on `exec` does what `graph` does, whose nodes and edges are as those that it was made of.
fn update(exec: &Exec, graph: &Captured) -> Result<()> {
    graph.bind()?;
    let mut found = sys::CUgraphExecUpdateResultInfo {
        result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS,
        errorNode: std::ptr::null_mut(),
        errorFromNode: std::ptr::null_mut(),
    };
    // SAFETY: both are alive; the driver writes the result alone.
    let updated = unsafe { sys::cuGraphExecUpdate_v2(exec.handle(), graph.handle(), &mut found) };
    updated.result().map_err(|error| {
        Error::Runtime(format!(
            "updating the graph of {} to that of {}: the driver answered {:?} ({:?}) for {}",
            exec.name(),
            graph.name(),
            error.0,
            found.result,
            graph.node_text(found.errorNode)
        ))
    })
}

/// A graph captured, instantiated and launched for each step; it lives until the next one is there.
struct Recapture(Option<Exec>);

pub fn recapture() -> Box<dyn Launching> {
    Box::new(Recapture(None))
}

impl Launching for Recapture {
    fn run(&mut self, ground: &mut Ground, until: u64) -> Result<u64> {
        each_step(ground, until, |bucket| {
            let exec = Exec::instantiate(&ground.capture(bucket, None)?, LaunchedBy::Host)?;
            // SAFETY: the memory is the ground's, which outlives what runs; the graph before has run.
            unsafe { exec.launch() }?;
            self.0 = Some(exec);
            Ok(())
        })
    }
}
