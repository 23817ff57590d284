//! The plan as a Graphviz graph: a cluster for each stage, a node for each run of alike layers (or each layer), with
//! its time in a step of each number of rows.

use super::{View, Written, layers_text, us_text};
use crate::model::{LayerType, ModelConfig};
use crate::plan::cost::op_cost;
use crate::plan::{OpKind, Stage};
use std::io::Write;
use std::ops::Range;

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> Written {
    writeln!(out, "digraph plan {{")?;
    writeln!(
        out,
        "  rankdir=TB; node [shape=box, fontname=\"monospace\"];"
    )?;
    let mut before: Option<String> = None;
    for stage in &view.plan.stages {
        writeln!(out, "  subgraph cluster_stage{} {{", stage.index)?;
        writeln!(
            out,
            "    label=\"stage {}: {}\\n{}\";",
            stage.index,
            layers_text(&stage.layers),
            times(view, |rows| view.stage_us(stage, rows))
        )?;
        let nodes = nodes(view, stage);
        for (name, label) in &nodes {
            writeln!(out, "    {name} [label=\"{label}\"];")?;
        }
        writeln!(out, "  }}")?;
        for (name, _) in nodes {
            if let Some(before) = before {
                writeln!(out, "  {before} -> {name};")?;
            }
            before = Some(name);
        }
    }
    writeln!(out, "}}")
}

/// Names and labels, in order.
fn nodes(view: &View<'_>, stage: &Stage) -> Vec<(String, String)> {
    let config = &view.plan.config;
    let mut nodes = Vec::new();
    for op in &stage.ops {
        if op.layer.is_none() {
            let label = format!(
                "{}\\n{}",
                op.kind.name(),
                times(view, |rows| op_us(view, op.kind, rows))
            );
            nodes.push((op.kind.name().to_owned(), label));
        } else if nodes
            .last()
            .is_none_or(|(name, _)| !name.starts_with("layer"))
        {
            // The first operation of the first layer: all layers follow, then what comes after them.
            for layers in runs(config, stage.layers.clone(), view.each_layer) {
                let us = |rows| {
                    stage
                        .ops
                        .iter()
                        .filter(|op| op.layer.is_some_and(|layer| layers.contains(&layer)))
                        .map(|op| op_us(view, op.kind, rows))
                        .sum()
                };
                let label = format!(
                    "{}: {}\\n{}",
                    layers_text(&layers),
                    layer_name(config, layers.start),
                    times(view, us)
                );
                nodes.push((format!("layer{}", layers.start), label));
            }
        }
    }
    nodes
}

fn op_us(view: &View<'_>, kind: OpKind, rows: u32) -> f64 {
    let cost = op_cost(&view.plan.config, kind, &view.shape(rows), view.precision);
    view.gpu.roofline_us(&cost, view.precision).0
}

fn times(view: &View<'_>, us: impl Fn(u32) -> f64) -> String {
    let times: Vec<String> = view
        .rows
        .iter()
        .map(|&rows| format!("{} us @{rows}", us_text(us(rows))))
        .collect();
    times.join(", ")
}

pub(super) fn layer_name(config: &ModelConfig, layer: usize) -> String {
    let mixer = match config.layer_types[layer] {
        LayerType::Conv => "convolution",
        LayerType::FullAttention => "attention",
    };
    let feed_forward = if config.is_moe(layer) {
        "experts"
    } else {
        "dense"
    };
    format!("{mixer}, {feed_forward}")
}

pub(super) fn alike(config: &ModelConfig, a: usize, b: usize) -> bool {
    config.layer_types[a] == config.layer_types[b] && config.is_moe(a) == config.is_moe(b)
}

/// Consecutive layers that are alike, or each layer.
pub(super) fn runs(config: &ModelConfig, layers: Range<usize>, each: bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for layer in layers {
        match runs.last_mut() {
            Some(run) if !each && alike(config, run.start, layer) => run.end = layer + 1,
            _ => runs.push(layer..layer + 1),
        }
    }
    runs
}
