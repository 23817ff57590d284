//! Graphs with conditional nodes, whose bodies are graphs in turn.

use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::graph::Captured;
use crate::error::Result;
use cudarc::driver::{CudaStream, result::DriverError, sys};
use std::sync::Arc;

/// A graph to put nodes into: a whole one, or the body of a conditional node, which lives as long as the whole one.
#[derive(Debug, Clone)]
pub struct Body {
    stream: Arc<CudaStream>,
    graph: sys::CUgraph,
    name: String,
}

/// A node of a [`Body`].
#[derive(Debug, Clone, Copy)]
pub struct NodeHandle(sys::CUgraphNode);

/// What a conditional node does with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Condition {
    /// Runs its body where the value is not 0.
    If,
    /// ... for as long.
    While,
    /// Runs the body of this number, of so many; none where there is no such body.
    Switch(u32),
}

impl Captured {
    /// A graph without nodes, to be filled by its [`Body`].
    ///
    /// # Errors
    /// The driver refuses.
    pub fn empty(stream: &Arc<CudaStream>, name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let refused = |error| failed(&format!("making the graph of {name}"), error);
        stream.context().bind_to_thread().map_err(refused)?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the driver writes the handle alone.
        unsafe { sys::cuGraphCreate(&mut handle, 0) }
            .result()
            .map_err(refused)?;
        Ok(Self::of_handle(stream, handle, name))
    }

    /// What nodes are put into; it must not outlive the graph.
    pub fn body(&self) -> Body {
        Body {
            stream: self.stream().clone(),
            graph: self.handle(),
            name: self.name().to_owned(),
        }
    }
}

impl Body {
    fn refused(&self, what: &str, error: DriverError) -> crate::Error {
        failed(&format!("{what} of the graph of {}", self.name), error)
    }

    fn bind(&self) -> Result<()> {
        let bound = self.stream.context().bind_to_thread();
        bound.map_err(|error| self.refused("making a node", error))
    }

    /// A value for a conditional node of this graph; it is `default` whenever the whole graph is launched.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn value(&self, default: u32) -> Result<u64> {
        self.bind()?;
        let context = self.stream.context().cu_ctx();
        let mut handle = 0;
        // SAFETY: the graph is alive; the driver writes the handle alone. 1: the default is given at each launch.
        unsafe {
            sys::cuGraphConditionalHandleCreate(&mut handle, self.graph, context, default, 1)
        }
        .result()
        .map_err(|error| self.refused("making a condition's value", error))?;
        Ok(handle)
    }

    /// Adds a conditional node behind `after`; gives it and its bodies, which are empty.
    ///
    /// # Errors
    /// The driver refuses the node.
    pub fn condition(
        &self,
        condition: Condition,
        value: u64,
        after: &[NodeHandle],
    ) -> Result<(NodeHandle, Vec<Self>)> {
        use sys::CUgraphConditionalNodeType as Type;
        self.bind()?;
        let (kind, size) = match condition {
            Condition::If => (Type::CU_GRAPH_COND_TYPE_IF, 1),
            Condition::While => (Type::CU_GRAPH_COND_TYPE_WHILE, 1),
            Condition::Switch(size) => (Type::CU_GRAPH_COND_TYPE_SWITCH, size),
        };
        // SAFETY: all-zero bytes are a value of this struct, whose first type is that of a kernel.
        let mut params: sys::CUgraphNodeParams = unsafe { std::mem::zeroed() };
        params.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
        params.__bindgen_anon_1.conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS {
            handle: value,
            type_: kind,
            size,
            phGraph_out: std::ptr::null_mut(),
            ctx: self.stream.context().cu_ctx(),
        };
        let before: Vec<_> = after.iter().map(|node| node.0).collect();
        let mut node = std::ptr::null_mut();
        // SAFETY: graph and nodes are alive, and of one graph; the driver writes node and params.
        unsafe {
            sys::cuGraphAddNode_v2(
                &mut node,
                self.graph,
                before.as_ptr(),
                std::ptr::null(),
                before.len(),
                &mut params,
            )
        }
        .result()
        .map_err(|error| self.refused(&format!("adding conditional node {condition:?}"), error))?;
        // SAFETY: the driver gave an array of `size` graphs, which lives as long as the node.
        let bodies = unsafe {
            let first = params.__bindgen_anon_1.conditional.phGraph_out;
            std::slice::from_raw_parts(first, size as usize)
        };
        let body = |(index, &graph): (usize, &sys::CUgraph)| Self {
            stream: self.stream.clone(),
            graph,
            name: format!("{}, body {index} of {condition:?}", self.name),
        };
        Ok((
            NodeHandle(node),
            bodies.iter().enumerate().map(body).collect(),
        ))
    }

    /// Adds what `enqueue` enqueues, one behind the other, to this graph, which is empty; gives the last node.
    ///
    /// # Errors
    /// What `enqueue` gives, or the driver refuses.
    pub fn capture(
        &self,
        enqueue: impl FnOnce(&CudaStream) -> Result<()>,
    ) -> Result<Option<NodeHandle>> {
        use sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THIS_THREAD;
        self.bind()?;
        let stream = self.stream.cu_stream();
        let (nodes, edges) = (std::ptr::null(), std::ptr::null());
        // SAFETY: stream and graph are alive; it depends on no node.
        unsafe {
            sys::cuStreamBeginCaptureToGraph(stream, self.graph, nodes, edges, 0, THIS_THREAD)
        }
        .result()
        .map_err(|error| self.refused("beginning a capture", error))?;
        let enqueued = enqueue(&self.stream);
        let mut graph = std::ptr::null_mut();
        // SAFETY: this thread began the capture, which is ended whatever came of it.
        let ended = unsafe { sys::cuStreamEndCapture(stream, &mut graph) }.result();
        enqueued?;
        ended.map_err(|error| self.refused("ending a capture", error))?;
        Ok(Captured::handles_of(self.graph)
            .map_err(|error| self.refused("looking at a node", error))?
            .last()
            .map(|&node| NodeHandle(node)))
    }
}
