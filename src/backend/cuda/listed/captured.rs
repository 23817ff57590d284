//! Captured graphs as data, for whoever shows them: made on a GPU, read anywhere.

use crate::backend::cuda::tuning::Variant;
use crate::plan::{Op, StepKind};
use serde::Serialize;
use std::ops::Range;
use std::time::Duration;

/// The graph of one bucket, as a GPU was given it.
#[derive(Debug, Clone)]
pub struct CapturedGraph {
    /// The stages in it: one, or all where the host launches them together.
    pub stages: Range<usize>,
    pub kind: StepKind,
    /// Of its bucket.
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
    /// Once, whatever the copies.
    pub capture: Duration,
    /// Of all copies.
    pub instantiate: Duration,
    /// Until all copies are on the device.
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
    pub early: bool,
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

impl CapturedNode {
    /// Names of its operations, or `scheduler`.
    fn operations(&self) -> Vec<&'static str> {
        match &self.ops[..] {
            [] => vec!["scheduler"],
            ops => ops.iter().map(|op| op.kind.name()).collect(),
        }
    }
}

/// How a kernel is launched and what a block of it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct KernelShape {
    /// Blocks along x, y and z.
    pub grid: (u32, u32, u32),
    /// Threads along x, y and z.
    pub block: (u32, u32, u32),
    /// Of a thread.
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
    /// How many of them may start early.
    pub early: usize,
    /// The operations they are of, each once, in order.
    pub operations: Vec<&'static str>,
}

impl CapturedGraph {
    pub fn early_edges(&self) -> usize {
        self.edges.iter().filter(|edge| edge.early).count()
    }

    /// Whether this node may start before one ahead of it has ended.
    pub fn starts_early(&self, node: usize) -> bool {
        self.edges.iter().any(|edge| edge.to == node && edge.early)
    }

    /// Nodes that do an operation or have a share in it.
    pub fn nodes_of(&self, op: Op) -> impl Iterator<Item = (usize, &CapturedNode)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(move |(_, node)| node.ops.contains(&op))
    }

    /// The nodes by kernel and shape, in the order of their first.
    pub fn alike(&self) -> Vec<AlikeNodes<'_>> {
        let mut groups: Vec<AlikeNodes<'_>> = Vec::new();
        let mut early = vec![false; self.nodes.len()];
        for edge in self.edges.iter().filter(|edge| edge.early) {
            early[edge.to] = true;
        }
        for (node, early) in self.nodes.iter().zip(early) {
            let alike = |group: &AlikeNodes<'_>| {
                group.node.name == node.name && group.node.kernel == node.kernel
            };
            let at = groups.iter().position(alike);
            let at = at.unwrap_or_else(|| {
                groups.push(AlikeNodes {
                    node,
                    count: 0,
                    early: 0,
                    operations: vec![],
                });
                groups.len() - 1
            });
            let group = &mut groups[at];
            group.count += 1;
            group.early += usize::from(early);
            for operation in node.operations() {
                if !group.operations.contains(&operation) {
                    group.operations.push(operation);
                }
            }
        }
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::OpKind;

    fn node(name: &str, kinds: &[OpKind], blocks: u32) -> CapturedNode {
        let op = |&kind| Op { layer: None, kind };
        CapturedNode {
            ops: kinds.iter().map(op).collect(),
            name: name.into(),
            kernel: Some(KernelShape {
                grid: (blocks, 1, 1),
                block: (128, 1, 1),
                registers: 40,
                static_shared_bytes: 0,
                dynamic_shared_bytes: 0,
                local_bytes: 0,
            }),
        }
    }

    #[test]
    fn alike_nodes_are_counted_together() {
        let edge = |from, early| Edge {
            from,
            to: from + 1,
            early,
        };
        let graph = CapturedGraph {
            stages: 0..1,
            kind: StepKind::Decode,
            rows: 8,
            variant: None,
            dispatcher: true,
            copies: 1,
            nodes: vec![
                node("product", &[OpKind::OperatorNorm, OpKind::QkvProj], 4),
                node("product", &[OpKind::LmHead], 64),
                node("product", &[OpKind::AttentionOutProj], 4),
                node("dispatch", &[], 1),
            ],
            edges: vec![edge(0, true), edge(1, true), edge(2, false)],
            capture: Duration::ZERO,
            instantiate: Duration::ZERO,
            upload: Duration::ZERO,
            device_bytes: 0,
        };
        let found: Vec<_> = graph
            .alike()
            .into_iter()
            .map(|g| (g.node.name.clone(), g.count, g.early, g.operations))
            .collect();
        let products = vec!["operator_norm", "qkv_proj", "attn_out_proj"];
        assert_eq!(
            found,
            [
                ("product".into(), 2, 1, products),
                ("product".into(), 1, 1, vec!["lm_head"]),
                ("dispatch".into(), 1, 0, vec!["scheduler"]),
            ]
        );
        assert_eq!(graph.early_edges(), 2);
        assert!(graph.starts_early(2) && !graph.starts_early(0) && !graph.starts_early(3));
    }
}
