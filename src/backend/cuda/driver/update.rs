//! An executable graph made to do something else, in place of another one.

use crate::backend::cuda::driver::call::ReadyCall;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::Exec;
use crate::backend::cuda::driver::graph::Captured;
use crate::error::{Error, Result};
use cudarc::driver::sys;

/// The nodes of a captured graph, which must outlive them.
#[derive(Debug)]
pub struct NodeHandles(Vec<sys::CUgraphNode>);

impl Captured {
    /// In the order they were captured.
    ///
    /// # Errors
    /// The driver does not say.
    pub fn node_handles(&self) -> Result<NodeHandles> {
        Ok(NodeHandles(self.handles()?))
    }
}

impl Exec {
    /// From the next launch on kernel node `index` of `nodes`, which are of the graph that this was made of, is `call`.
    ///
    /// # Errors
    /// There is no such node, or the driver refuses: the error names node and graph.
    pub fn set_call(&self, nodes: &NodeHandles, index: usize, call: &ReadyCall) -> Result<()> {
        let what = || {
            format!(
                "giving node {index} of the graph of {} a call of {}",
                self.name(),
                call.name()
            )
        };
        let Some(&node) = nodes.0.get(index) else {
            return Err(Error::Runtime(format!(
                "{}: found {} nodes",
                what(),
                nodes.0.len()
            )));
        };
        call.with_node(|params| {
            // SAFETY: the executable is alive, the node of its graph, and the driver copies the parameters.
            unsafe { sys::cuGraphExecKernelNodeSetParams_v2(self.handle(), node, params) }
                .result()
                .map_err(|error| failed(&what(), error))
        })
    }

    /// From the next launch on this does what `graph` does, whose nodes and edges are as those that this was made of.
    ///
    /// # Errors
    /// They are not: the error names the first node that differs, and how.
    pub fn update(&self, graph: &Captured) -> Result<()> {
        graph.bind()?;
        let mut found = sys::CUgraphExecUpdateResultInfo {
            result: sys::CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS,
            errorNode: std::ptr::null_mut(),
            errorFromNode: std::ptr::null_mut(),
        };
        // SAFETY: both are alive; the driver writes the result alone.
        let updated =
            unsafe { sys::cuGraphExecUpdate_v2(self.handle(), graph.handle(), &mut found) };
        let Err(error) = updated.result() else {
            return Ok(());
        };
        let node = graph.node_text(found.errorNode);
        Err(Error::Runtime(format!(
            "updating the graph of {} to that of {}: the driver answered {:?} ({:?}) for {node}",
            self.name(),
            graph.name(),
            error.0,
            found.result
        )))
    }
}
