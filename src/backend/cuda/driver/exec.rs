//! A captured graph instantiated, to be launched by the host or by the device itself.

use crate::backend::cuda::driver::audit::audit;
use crate::backend::cuda::driver::errors::{failed, memory_or};
use crate::backend::cuda::driver::graph::Captured;
use crate::error::{Error, Result};
use crate::telemetry::launches::launched;
use crate::telemetry::phases::{Phase, phase};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaStream, sys};
use std::sync::Arc;

/// Who launches a graph. One for the device can also be launched by the host, which starts the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LaunchedBy {
    Host,
    Device,
}

/// An executable graph with all its resources on the device.
#[derive(Debug)]
pub struct Exec {
    stream: Arc<CudaStream>,
    handle: sys::CUgraphExec,
    name: String,
}

// SAFETY: an executable graph may be used from any thread, by one at a time; every method binds the context first.
unsafe impl Send for Exec {}

impl Exec {
    /// Instantiates `graph` and uploads it, in the order of its stream.
    ///
    /// # Errors
    /// [`Error::Runtime`] naming the node that cannot be had, and why; [`Error::Memory`] where the device has no
    /// room for the graph.
    pub fn new(graph: &Captured, by: LaunchedBy) -> Result<Self> {
        let exec = Self::instantiate(graph, by)?;
        exec.upload(graph.stream())?;
        Ok(exec)
    }

    /// The first half of [`Self::new`].
    pub fn instantiate(graph: &Captured, by: LaunchedBy) -> Result<Self> {
        Self::check(graph, by)?;
        Self::instantiate_unaudited(graph, by)
    }

    /// Instantiates `copies` executables: one runs once at a time, so a graph that is to run beside itself has several.
    pub fn instantiate_copies(
        graph: &Captured,
        by: LaunchedBy,
        copies: usize,
    ) -> Result<Vec<Self>> {
        Self::check(graph, by)?;
        (0..copies)
            .map(|_| Self::instantiate_unaudited(graph, by))
            .collect()
    }

    /// Whether it can be launched `by` whom it is for.
    fn check(graph: &Captured, by: LaunchedBy) -> Result<()> {
        match by {
            LaunchedBy::Host => Ok(()),
            LaunchedBy::Device => audit(graph.name(), &graph.nodes()?),
        }
    }

    /// Instantiates without the audit, to see what the driver says of a graph that is known to be refused.
    ///
    /// # Errors
    /// Fails as [`Self::new`] does.
    pub fn instantiate_unaudited(graph: &Captured, by: LaunchedBy) -> Result<Self> {
        graph.bind()?;
        let flags = match by {
            LaunchedBy::Host => 0,
            LaunchedBy::Device => {
                sys::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH.0
            }
        };
        let mut params = sys::CUDA_GRAPH_INSTANTIATE_PARAMS {
            flags: flags.into(),
            hUploadStream: std::ptr::null_mut(),
            hErrNode_out: std::ptr::null_mut(),
            result_out: sys::CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_SUCCESS,
        };
        let mut handle = std::ptr::null_mut();
        let instantiated = {
            let _phase = phase(Phase::Instantiate);
            // SAFETY: the graph is alive and bound; the driver writes only the two places given.
            unsafe {
                sys::cuGraphInstantiateWithParams(&mut handle, graph.handle(), &mut params).result()
            }
        };
        instantiated.map_err(|error| {
            let node = graph.node_text(params.hErrNode_out);
            refused(graph.name(), &node, params.result_out, error)
        })?;
        Ok(Self {
            stream: graph.stream().clone(),
            handle,
            name: graph.name().to_owned(),
        })
    }

    /// The second half of [`Self::new`], in the order of `stream`, which nobody captures meanwhile: the executable may be
    /// launched once that has come so far.
    pub fn upload(&self, stream: &CudaStream) -> Result<()> {
        let refused = |error| {
            let what = format!("uploading the graph of {}", self.name);
            memory_or(&what, error, || failed(&what, error))
        };
        stream.context().bind_to_thread().map_err(refused)?;
        let _phase = phase(Phase::Upload);
        // SAFETY: the executable and the stream are alive.
        unsafe { result::graph::upload(self.handle, stream.cu_stream()) }.map_err(refused)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    /// The driver's handle, which lives as long as this.
    pub fn handle(&self) -> sys::CUgraphExec {
        self.handle
    }

    /// What `tg_graphs` holds: the handle as device code takes it.
    pub fn device_handle(&self) -> u64 {
        self.handle.addr() as u64
    }

    /// Queues a launch on the stream that the graph was captured on.
    ///
    /// # Errors
    /// The driver refuses, or something before it on the stream failed.
    ///
    /// # Safety
    /// What the captured kernels point to is alive and theirs until they have run.
    pub unsafe fn launch(&self) -> Result<()> {
        let refused = |error| failed(&format!("launching the graph of {}", self.name), error);
        self.stream.context().bind_to_thread().map_err(refused)?;
        // SAFETY: the executable and its stream are alive; the rest is the caller's promise.
        unsafe { result::graph::launch(self.handle, self.stream.cu_stream()) }.map_err(refused)?;
        launched();
        Ok(())
    }
}

/// Why a graph could not be instantiated.
fn refused(
    graph: &str,
    node: &str,
    result: sys::CUgraphInstantiateResult,
    error: DriverError,
) -> Error {
    let what = format!("instantiating the graph of {graph}");
    memory_or(&what, error, || {
        Error::Runtime(format!(
            "{what}: the driver answered {:?} ({result:?}) for {node}",
            error.0
        ))
    })
}

impl Drop for Exec {
    fn drop(&mut self) {
        // A failure here leaves the graph in memory until the context goes, and there is nobody to tell.
        if self.stream.context().bind_to_thread().is_ok() {
            // SAFETY: instantiated by `new`, destroyed once.
            let _ = unsafe { result::graph::exec_destroy(self.handle) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sys::CUgraphInstantiateResult::CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED as UNSUPPORTED;

    #[test]
    fn a_refusal_names_graph_node_and_reason() {
        let error = DriverError(sys::CUresult::CUDA_ERROR_NOT_SUPPORTED);
        let message = refused("stage 0 decode 8", "node 3, copy", UNSUPPORTED, error);
        let message = message.to_string();
        for part in [
            "stage 0 decode 8",
            "node 3, copy",
            "NODE_OPERATION_NOT_SUPPORTED",
            "CUDA_ERROR_NOT_SUPPORTED",
        ] {
            assert!(message.contains(part), "{message}");
        }
        let error = DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let error = refused("stage 0 decode 8", "node 3, copy", UNSUPPORTED, error);
        assert!(matches!(error, Error::Memory(_)));
        assert!(error.to_string().contains("stage 0 decode 8"), "{error}");
    }
}
