//! What a captured graph is made of, and whether the device may launch it: pure data, so that it can be tested
//! without a GPU.

use crate::error::{Error, Result};
use std::fmt;

/// One node of a graph, in the order it was captured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    Kernel(KernelNode),
    Copy,
    Fill,
    /// A graph inside the graph.
    Child,
    /// Any other type, by the driver's name for it.
    Other(String),
}

/// A kernel as it will be launched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelNode {
    pub name: String,
    /// Blocks along x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads along x, y and z.
    pub block: (u32, u32, u32),
    /// Dynamic shared memory of a block.
    pub shared_bytes: u32,
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(kernel) => {
                let KernelNode {
                    name,
                    grid: (gx, gy, gz),
                    block: (bx, by, bz),
                    shared_bytes,
                } = kernel;
                write!(
                    f,
                    "kernel {name} grid {gx}x{gy}x{gz} block {bx}x{by}x{bz} shared {shared_bytes} B"
                )
            }
            Self::Copy => f.write_str("copy"),
            Self::Fill => f.write_str("fill"),
            Self::Child => f.write_str("child graph"),
            Self::Other(name) => f.write_str(name),
        }
    }
}

/// Refuses a graph that the device cannot launch: it takes kernels, copies, fills and child graphs of these, and
/// nothing else (CUDA programming guide, "Device Graph Requirements").
///
/// # Errors
/// [`Error::Runtime`] naming the first such node of `graph` by index and type, and the kernel before it; or that
/// there is no node at all.
pub fn audit(graph: &str, nodes: &[Node]) -> Result<()> {
    if nodes.is_empty() {
        return Err(Error::Runtime(format!(
            "the graph of {graph} is empty, expected at least a kernel: nothing was enqueued on the captured stream"
        )));
    }
    let refused = nodes.iter().position(|node| matches!(node, Node::Other(_)));
    let Some(index) = refused else {
        return Ok(());
    };
    let before = nodes[..index].iter().rev().find_map(|node| match node {
        Node::Kernel(kernel) => Some(kernel.name.as_str()),
        _ => None,
    });
    Err(Error::Runtime(format!(
        "node {index} of the graph of {graph} is of type {}{}, expected kernels, copies, fills and graphs of these: a \
         GPU launches no others by itself; use `launch` host-graph",
        nodes[index],
        before.map_or(String::new(), |kernel| format!(" (after kernel {kernel})")),
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(name: &str) -> Node {
        Node::Kernel(KernelNode {
            name: name.into(),
            grid: (132, 2, 1),
            block: (256, 1, 1),
            shared_bytes: 49152,
        })
    }

    #[test]
    fn the_first_node_that_the_device_does_not_launch_is_named() {
        let host = || Node::Other("CU_GRAPH_NODE_TYPE_HOST".into());
        let launched = [Node::Fill, kernel("a"), Node::Copy, Node::Child];
        audit("stage 0 decode 8", &launched).unwrap();
        let nodes = [&launched[..], &[host(), kernel("c"), host()]].concat();
        let refused = |nodes: &[Node]| audit("stage 0 decode 8", nodes).unwrap_err().to_string();
        let message = refused(&nodes);
        for part in [
            "node 4",
            "stage 0 decode 8",
            "CU_GRAPH_NODE_TYPE_HOST",
            "after kernel a",
        ] {
            assert!(message.contains(part), "{message}");
        }
        let message = refused(&[host()]);
        assert!(
            message.contains("node 0") && !message.contains("after"),
            "{message}"
        );
        assert!(refused(&[]).contains("empty"));
    }
}
