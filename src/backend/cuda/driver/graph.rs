//! What was enqueued on a stream, captured as a graph instead of run.

use crate::backend::cuda::catalogue::{Edge, KernelShape};
use crate::backend::cuda::driver::audit::{KernelNode, Node};
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::errors::memory_or;
use crate::error::{Error, Result};
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaStream, sys};
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::Arc;

/// A captured graph. It holds kernels and addresses; whoever runs it sees to it that both live.
#[derive(Debug)]
pub struct Captured {
    stream: Arc<CudaStream>,
    handle: sys::CUgraph,
    name: String,
}

// SAFETY: a graph may be used from any thread, by one at a time; every method binds the context first.
unsafe impl Send for Captured {}

impl Captured {
    /// Captures what `enqueue` enqueues on `stream`. Capturing is a matter of this thread alone: others may go on
    /// using the device meanwhile. `name` is for messages.
    ///
    /// # Errors
    /// What `enqueue` gives, or [`Error::Runtime`] where it did something that no capture takes.
    pub fn capture(
        stream: &Arc<CudaStream>,
        name: impl Into<String>,
        enqueue: impl FnOnce(&CudaStream) -> Result<()>,
    ) -> Result<Self> {
        let name = name.into();
        let refused = |error| {
            let what = format!("capturing the graph of {name}");
            memory_or(&what, error, || failed(&what, error))
        };
        stream
            .begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
            .map_err(refused)?;
        let enqueued = enqueue(stream);
        // SAFETY: the stream is alive and this thread began the capture, which is ended whatever came of it.
        let captured = unsafe { result::stream::end_capture(stream.cu_stream()) };
        let handle = match captured {
            // A graph that is not whole is null.
            Ok(handle) if !handle.is_null() => handle,
            Ok(_) => {
                enqueued?;
                return Err(Error::Runtime(format!(
                    "capturing the graph of {name} gave none"
                )));
            }
            Err(error) => {
                enqueued?;
                return Err(refused(error));
            }
        };
        let graph = Self {
            stream: stream.clone(),
            handle,
            name,
        };
        enqueued.map(|()| graph)
    }

    /// What the graph computes, for messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// The driver's handle, which lives as long as this.
    pub fn handle(&self) -> sys::CUgraph {
        self.handle
    }

    fn refused(&self, error: DriverError) -> Error {
        failed(&format!("looking into the graph of {}", self.name), error)
    }

    /// Makes the graph's context that of this thread.
    ///
    /// # Errors
    /// The device is lost.
    pub fn bind(&self) -> Result<()> {
        let bound = self.stream.context().bind_to_thread();
        bound.map_err(|error| self.refused(error))
    }

    /// The driver's handles of all nodes, in the order they were captured.
    ///
    /// # Errors
    /// [`Error::Runtime`] where the driver does not say.
    pub fn handles(&self) -> Result<Vec<sys::CUgraphNode>> {
        self.bind()?;
        // SAFETY: it is this value's.
        unsafe { Self::handles_of(self.handle) }.map_err(|error| self.refused(error))
    }

    /// The handles of all nodes of `graph`, whose context is bound, in the order they were captured.
    ///
    /// # Errors
    /// The driver does not say.
    ///
    /// # Safety
    /// The graph is alive.
    pub unsafe fn handles_of(
        graph: sys::CUgraph,
    ) -> std::result::Result<Vec<sys::CUgraphNode>, DriverError> {
        let mut count = 0;
        // SAFETY: without an array the driver only counts.
        unsafe { sys::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count) }.result()?;
        let mut nodes = vec![std::ptr::null_mut(); count];
        // SAFETY: the array has room for `count` handles.
        unsafe { sys::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) }.result()?;
        Ok(nodes)
    }

    /// A graph that the driver made otherwise, which is this value's from now on.
    pub fn of_handle(stream: &Arc<CudaStream>, handle: sys::CUgraph, name: String) -> Self {
        Self {
            stream: stream.clone(),
            handle,
            name,
        }
    }

    /// All nodes, in the order they were captured.
    ///
    /// # Errors
    /// [`Error::Runtime`] where the driver does not say.
    pub fn nodes(&self) -> Result<Vec<Node>> {
        let handles = self.handles()?;
        handles
            .into_iter()
            .map(|node| self.describe(node))
            .collect()
    }

    fn describe(&self, node: sys::CUgraphNode) -> Result<Node> {
        use sys::CUgraphNodeType as Type;
        let mut kind = Type::CU_GRAPH_NODE_TYPE_EMPTY;
        // SAFETY: `node` is of this graph.
        unsafe { sys::cuGraphNodeGetType(node, &mut kind) }
            .result()
            .map_err(|error| self.refused(error))?;
        Ok(match kind {
            Type::CU_GRAPH_NODE_TYPE_KERNEL => Node::Kernel(self.kernel(node)?),
            Type::CU_GRAPH_NODE_TYPE_MEMCPY => Node::Copy,
            Type::CU_GRAPH_NODE_TYPE_MEMSET => Node::Fill,
            Type::CU_GRAPH_NODE_TYPE_GRAPH => Node::Child,
            other => Node::Other(format!("{other:?}")),
        })
    }

    /// Which node the driver means, for messages; a null handle is of none.
    pub fn node_text(&self, node: sys::CUgraphNode) -> String {
        let found = self.handles().and_then(|handles| {
            let place = handles.iter().position(|&handle| handle == node);
            place
                .map(|place| Ok((place, self.describe(node)?)))
                .transpose()
        });
        match found {
            Ok(Some((place, node))) => format!("node {place}, {node}"),
            Ok(None) => "the graph as a whole".to_owned(),
            Err(error) => format!("a node that cannot be looked at ({error})"),
        }
    }

    /// A kernel node's.
    fn params(&self, node: sys::CUgraphNode) -> Result<sys::CUDA_KERNEL_NODE_PARAMS> {
        let mut params = std::mem::MaybeUninit::<sys::CUDA_KERNEL_NODE_PARAMS>::zeroed();
        // SAFETY: `node` is a kernel node of this graph; the driver fills the struct in, of which all-zero bytes are a value.
        let found = unsafe {
            let answer = sys::cuGraphKernelNodeGetParams_v2(node, params.as_mut_ptr());
            answer.result().map(|()| params.assume_init())
        };
        found.map_err(|error| self.refused(error))
    }

    fn kernel(&self, node: sys::CUgraphNode) -> Result<KernelNode> {
        let params = self.params(node)?;
        let mut name = std::ptr::null();
        // SAFETY: the node's function or kernel is of a loaded module; the driver gives a string that ends with a zero and lives as
        // long as that.
        let name = unsafe {
            let named = if params.func.is_null() {
                sys::cuKernelGetName(&mut name, params.kern)
            } else {
                sys::cuFuncGetName(&mut name, params.func)
            };
            named.result().map_err(|error| self.refused(error))?;
            CStr::from_ptr(name)
        };
        Ok(KernelNode {
            name: name.to_string_lossy().into_owned(),
            grid: (params.gridDimX, params.gridDimY, params.gridDimZ),
            block: (params.blockDimX, params.blockDimY, params.blockDimZ),
            shared_bytes: params.sharedMemBytes,
        })
    }

    /// What a thread and a block of a kernel node take, beside how it is launched; `None` for other nodes.
    ///
    /// # Errors
    /// [`Error::Runtime`] where the driver does not say.
    pub fn shapes(&self) -> Result<Vec<Option<KernelShape>>> {
        let handles = self.handles()?;
        let nodes = handles.into_iter().zip(self.nodes()?);
        nodes
            .map(|(handle, node)| match node {
                Node::Kernel(kernel) => self.shape(handle, &kernel).map(Some),
                _ => Ok(None),
            })
            .collect()
    }

    fn shape(&self, node: sys::CUgraphNode, kernel: &KernelNode) -> Result<KernelShape> {
        use sys::CUfunction_attribute_enum as Attribute;
        let params = self.params(node)?;
        let device = self.stream.context().cu_device();
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: the node's function or kernel is of a loaded module.
            unsafe {
                if params.func.is_null() {
                    sys::cuKernelGetAttribute(&mut value, which, params.kern, device)
                } else {
                    sys::cuFuncGetAttribute(&mut value, which, params.func)
                }
            }
            .result()
            .map_err(|error| self.refused(error))?;
            Ok::<_, Error>(u32::try_from(value).unwrap_or(0))
        };
        Ok(KernelShape {
            grid: kernel.grid,
            block: kernel.block,
            registers: attribute(Attribute::CU_FUNC_ATTRIBUTE_NUM_REGS)?,
            static_shared_bytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?,
            dynamic_shared_bytes: kernel.shared_bytes,
            local_bytes: attribute(Attribute::CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES)?,
        })
    }

    /// All dependencies, by the places of [`Self::nodes`].
    ///
    /// # Errors
    /// [`Error::Runtime`] where the driver does not say, or names a node that the graph does not have.
    pub fn dependencies(&self) -> Result<Vec<Edge>> {
        let pdl = sys::CUgraphDependencyType::CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC as u8;
        let places: HashMap<_, _> = self.handles()?.into_iter().zip(0..).collect();
        let mut count = 0;
        let none = std::ptr::null_mut();
        // SAFETY: without arrays the driver only counts.
        unsafe {
            sys::cuGraphGetEdges_v2(self.handle, none, none, std::ptr::null_mut(), &mut count)
        }
        .result()
        .map_err(|error| self.refused(error))?;
        let mut from: Vec<sys::CUgraphNode> = vec![std::ptr::null_mut(); count];
        let mut to = from.clone();
        // SAFETY: all-zero bytes are a value of this struct of integers.
        let mut data: Vec<sys::CUgraphEdgeData> = vec![unsafe { std::mem::zeroed() }; count];
        // SAFETY: all three arrays have room for `count` entries.
        unsafe {
            sys::cuGraphGetEdges_v2(
                self.handle,
                from.as_mut_ptr(),
                to.as_mut_ptr(),
                data.as_mut_ptr(),
                &mut count,
            )
        }
        .result()
        .map_err(|error| self.refused(error))?;
        let place = |node: &sys::CUgraphNode| {
            places.get(node).copied().ok_or_else(|| {
                Error::Runtime(format!(
                    "the graph of {} has an edge at a node that it does not have",
                    self.name
                ))
            })
        };
        let edges = from.iter().zip(&to).zip(&data);
        edges
            .map(|((from, to), data)| {
                Ok(Edge {
                    from: place(from)?,
                    to: place(to)?,
                    pdl: data.type_ == pdl,
                })
            })
            .collect()
    }

    /// How many edges there are, and over how many of them a kernel may start before the one ahead has ended
    /// (programmatic dependent launch).
    ///
    /// # Errors
    /// Fails as [`Self::dependencies`] does.
    pub fn edges(&self) -> Result<(usize, usize)> {
        let edges = self.dependencies()?;
        let pdl = edges.iter().filter(|edge| edge.pdl).count();
        Ok((edges.len(), pdl))
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        // A failure here leaves the graph in memory until the context goes, and there is nobody to tell.
        if self.stream.context().bind_to_thread().is_ok() {
            // SAFETY: captured by `capture`, destroyed once; executables made of it live on their own.
            let _ = unsafe { result::graph::destroy(self.handle) };
        }
    }
}
