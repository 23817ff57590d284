//! One graph of conditional nodes, launched once by the host (kernels/ways/conditional.cu); and what such nodes are made by.

use super::super::cuda::{Argument, Captured, Exec, LaunchedBy, ReadyCall, failed};
use super::step::BUCKETS;
use super::{Ground, Launching};
use cudarc::driver::sys::CUgraphConditionalNodeType as Type;
use cudarc::driver::{CudaStream, sys};
use std::sync::Arc;
use tailgraph::error::Result;

pub fn open(ground: &Ground) -> Result<Launching> {
    let (graph, root) = Body::whole(&ground.memory.stream, ground.name("the loop"))?;
    let kernel = |name| ground.memory.gpu.module.kernel(name);
    let of_while = root.value(1)?;
    let (_, bodies) = root.condition(Type::CU_GRAPH_COND_TYPE_WHILE, 1, of_while, None)?;
    let body = &bodies[0];
    // No body of SWITCH has this number.
    let of_switch = body.value(BUCKETS as u32)?;
    let of_if = body.value(0)?;
    let turn = [Argument::U64(of_switch), Argument::U64(of_if)];
    let turn = body.capture(|_| ground.queue_one(&kernel("tg_ways_turn")?, &turn))?;
    let (switch, buckets) =
        body.condition(Type::CU_GRAPH_COND_TYPE_SWITCH, BUCKETS, of_switch, turn)?;
    for (inner, calls) in buckets.iter().zip(ground.ready_calls()?) {
        inner.capture(|stream| {
            // SAFETY: the memory is the ground's, which outlives what runs.
            let launch = |call: &ReadyCall| unsafe { call.launch(stream) };
            calls.iter().try_for_each(launch)
        })?;
    }
    let (_, idle) = body.condition(Type::CU_GRAPH_COND_TYPE_IF, 1, of_if, Some(switch))?;
    let over = [Argument::U64(of_while)];
    idle[0].capture(|_| ground.queue_one(&kernel("tg_ways_idle")?, &over))?;
    let graph = Exec::new(&graph, LaunchedBy::Host)?;
    Ok(Box::new(move |ground, _| ground.launch(&graph).map(|()| 1)))
}

/// A graph to put nodes into: a whole one, or the body of a conditional node, which lives as long as the whole one.
pub struct Body {
    stream: Arc<CudaStream>,
    graph: sys::CUgraph,
    name: String,
}

impl Body {
    /// A graph without nodes, and what nodes are put into, which must not outlive it.
    pub fn whole(stream: &Arc<CudaStream>, name: String) -> Result<(Captured, Self)> {
        let refused = |error| failed(&format!("making the graph of {name}"), error);
        stream.context().bind_to_thread().map_err(refused)?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the driver writes the handle alone.
        unsafe { sys::cuGraphCreate(&mut graph, 0) }
            .result()
            .map_err(refused)?;
        let whole = Captured::of_handle(stream, graph, name.clone());
        let stream = stream.clone();
        let body = Self {
            stream,
            graph,
            name,
        };
        Ok((whole, body))
    }

    fn answered(&self, what: &str, answer: sys::CUresult) -> Result<()> {
        let refused = |error| failed(&format!("{what} of the graph of {}", self.name), error);
        answer.result().map_err(refused)
    }

    /// A value for a conditional node of this graph; it is `default` whenever the whole graph is launched.
    pub fn value(&self, default: u32) -> Result<u64> {
        let context = self.stream.context().cu_ctx();
        let mut handle = 0;
        // SAFETY: the graph is alive; the driver writes the handle alone. 1: the default is given at each launch.
        let made = unsafe {
            sys::cuGraphConditionalHandleCreate(&mut handle, self.graph, context, default, 1)
        };
        self.answered("making a condition's value", made)?;
        Ok(handle)
    }

    /// Adds a conditional node behind `after`; gives it and its `size` bodies, which are empty.
    pub fn condition(
        &self,
        kind: Type,
        size: usize,
        value: u64,
        after: Option<sys::CUgraphNode>,
    ) -> Result<(sys::CUgraphNode, Vec<Self>)> {
        // SAFETY: all-zero bytes are a value of this struct, whose first type is that of a kernel.
        let mut params: sys::CUgraphNodeParams = unsafe { std::mem::zeroed() };
        params.type_ = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_CONDITIONAL;
        params.__bindgen_anon_1.conditional = sys::CUDA_CONDITIONAL_NODE_PARAMS {
            handle: value,
            type_: kind,
            size: size as u32,
            phGraph_out: std::ptr::null_mut(),
            ctx: self.stream.context().cu_ctx(),
        };
        let (to, (mut node, edges)) = (self.graph, (std::ptr::null_mut(), std::ptr::null()));
        let (behind, count) = (after.as_slice().as_ptr(), after.as_slice().len());
        // SAFETY: graph and nodes are alive, and of one graph; the driver writes node and params.
        let added =
            unsafe { sys::cuGraphAddNode_v2(&mut node, to, behind, edges, count, &mut params) };
        self.answered(&format!("adding a conditional node ({kind:?})"), added)?;
        // SAFETY: the driver gave an array of `size` graphs, which lives as long as the node.
        let bodies = unsafe {
            std::slice::from_raw_parts(params.__bindgen_anon_1.conditional.phGraph_out, size)
        };
        let body = |(index, &graph): (usize, &sys::CUgraph)| Self {
            stream: self.stream.clone(),
            graph,
            name: format!("{}, body {index} of {kind:?}", self.name),
        };
        Ok((node, bodies.iter().enumerate().map(body).collect()))
    }

    /// Adds what `enqueue` enqueues, one behind the other, to this graph, which is empty; gives the last node.
    pub fn capture(
        &self,
        enqueue: impl FnOnce(&CudaStream) -> Result<()>,
    ) -> Result<Option<sys::CUgraphNode>> {
        use sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THIS_THREAD;
        let stream = self.stream.cu_stream();
        let (nodes, edges) = (std::ptr::null(), std::ptr::null());
        // SAFETY: stream and graph are alive; it depends on no node.
        let begun = unsafe {
            sys::cuStreamBeginCaptureToGraph(stream, self.graph, nodes, edges, 0, THIS_THREAD)
        };
        self.answered("beginning a capture", begun)?;
        let enqueued = enqueue(&self.stream);
        let mut graph = std::ptr::null_mut();
        // SAFETY: this thread began the capture, which is ended whatever came of it.
        let ended = unsafe { sys::cuStreamEndCapture(stream, &mut graph) };
        enqueued?;
        self.answered("ending a capture", ended)?;
        // SAFETY: the whole graph is alive, and its bodies with it.
        let nodes = unsafe { Captured::handles_of(self.graph) };
        let nodes = nodes.map_err(|error| failed("looking at a node", error))?;
        Ok(nodes.last().copied())
    }
}
