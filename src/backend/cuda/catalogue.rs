//! What a GPU is given, as data that any build can show: calls of kernels, graphs captured of them, and links between GPUs.

use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::tuning::Variant;
use crate::plan::{Op, StepKind};
use indexmap::IndexMap;
use serde::Serialize;
use std::ops::Range;
use std::time::Duration;

/// What does one step of a stage, in one bucket.
#[derive(Debug, Clone, Serialize)]
pub struct StepCalls {
    pub stage: usize,
    pub kind: StepKind,
    /// Rows of its bucket.
    pub rows: u32,
    pub variant: Variant,
    /// In order.
    pub calls: Vec<Call>,
}

/// One launch of one kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Call {
    pub kernel: String,
    /// The operations of the plan that it does or has a share in.
    #[serde(rename = "operations")]
    pub ops: Vec<Op>,
    /// Blocks along x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads of a block.
    pub threads: u32,
    /// Dynamic shared memory of a block.
    #[serde(rename = "dynamic_shared_bytes")]
    pub shared_bytes: u32,
    /// Blocks of a cluster.
    pub cluster: u32,
    /// The matrices that it multiplies with; of experts the first one's.
    pub weights: Vec<Matrix>,
    /// May start before the call ahead has ended (programmatic dependent launch).
    #[serde(rename = "early")]
    pub pdl: bool,
}

/// The graph of one bucket, as a GPU was given it.
#[derive(Debug, Clone)]
pub struct CapturedGraph {
    /// The stages in it: one, or all where the host launches them together.
    pub stages: Range<usize>,
    pub kind: StepKind,
    /// Rows of its bucket.
    pub rows: u32,
    /// What serves it; `None` of a program that knows no plan.
    pub variant: Option<Variant>,
    /// The scheduler is in it, as its last node where its stage is the last. Else it is on the host.
    pub dispatcher: bool,
    /// Executables made of it.
    pub copies: u32,
    /// In the order they were captured.
    pub nodes: Vec<CapturedNode>,
    pub edges: Vec<Edge>,
    /// Time to capture it, once for all copies.
    pub capture: Duration,
    /// Time to instantiate all copies.
    pub instantiate: Duration,
    /// Time until all copies are on the device.
    pub upload: Duration,
    /// What instantiation and upload of all copies took of the device's free memory. The driver takes memory in blocks, so a small
    /// graph may show 0 and the next one its block.
    pub device_bytes: u64,
}

/// A dependency between two nodes, by their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    pub from: usize,
    pub to: usize,
    /// `to` may start before `from` has ended (programmatic dependent launch).
    pub pdl: bool,
}

/// One node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CapturedNode {
    /// The operations of the plan that it does or has a share in; none: the scheduler's own.
    #[serde(skip)]
    pub ops: Vec<Op>,
    /// The kernel's name, or what else it is.
    pub name: String,
    #[serde(flatten)]
    pub kernel: Option<KernelShape>,
}

/// How a kernel is launched and what a block of it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct KernelShape {
    /// Blocks along x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads along x, y and z.
    pub block: (u32, u32, u32),
    /// Registers of a thread.
    pub registers: u32,
    pub static_shared_bytes: u32,
    pub dynamic_shared_bytes: u32,
    /// Stack and spills of a thread.
    pub local_bytes: u32,
}

/// Nodes that are alike: the same kernel in the same shape.
#[derive(Debug, Clone, Serialize)]
pub struct AlikeNodes<'a> {
    #[serde(flatten)]
    pub node: &'a CapturedNode,
    pub count: usize,
    /// How many of them may start before the one ahead ends.
    #[serde(rename = "early")]
    pub pdl: usize,
    /// The operations that they do or have a share in, each once, in order; `scheduler` is none of the plan's.
    pub operations: Vec<&'static str>,
}

impl CapturedGraph {
    pub fn pdl_edges(&self) -> usize {
        self.edges.iter().filter(|edge| edge.pdl).count()
    }

    /// Nodes that do an operation or have a share in it.
    pub fn nodes_of(&self, op: Op) -> impl Iterator<Item = (usize, &CapturedNode)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(move |(_, node)| node.ops.contains(&op))
    }

    /// The nodes by kernel and shape, in the order of their first.
    pub fn alike(&self) -> Vec<AlikeNodes<'_>> {
        let mut groups: IndexMap<(&str, Option<KernelShape>), AlikeNodes<'_>> = IndexMap::new();
        for (place, node) in self.nodes.iter().enumerate() {
            let group = groups.entry((&node.name, node.kernel));
            let group = group.or_insert_with(|| AlikeNodes {
                node,
                count: 0,
                pdl: 0,
                operations: vec![],
            });
            group.count += 1;
            let mut edges = self.edges.iter();
            group.pdl += usize::from(edges.any(|edge| edge.to == place && edge.pdl));
            let operations = node.ops.iter().map(|op| op.kind.name());
            let scheduler = node.ops.is_empty().then_some("scheduler");
            for name in operations.chain(scheduler) {
                if !group.operations.contains(&name) {
                    group.operations.push(name);
                }
            }
        }
        groups.into_values().collect()
    }
}

/// The way from one GPU to another, measured.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Link {
    /// The number in `--device cuda:N`.
    pub from: u32,
    pub to: u32,
    /// Kernels on each reach the other's memory.
    pub peer_access: bool,
    /// The rate of copies that the driver makes, one after the other.
    pub copy_bytes_per_s: Option<f64>,
    /// Half of a round trip of one word, in the memory of whoever waits for it, or without peer access in pinned memory of the host.
    pub store_us: Option<f64>,
    /// Why something was not measured.
    pub failures: Vec<String>,
}
