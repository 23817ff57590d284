//! The plan as a Graphviz graph: a cluster for each stage, a node for each layer, with its time in a step of each number of rows.

use super::document::{Costs, Document, StageCosts};
use super::text::layers_text;
use crate::model::{LayerType, ModelConfig};
use std::io::{self, Write};

pub(super) fn write(shown: &Document, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "digraph plan {{\n  node [shape=box, fontname=\"monospace\"];"
    )?;
    let mut chain: Vec<String> = vec![];
    for stage in &shown.stages {
        writeln!(out, "  subgraph cluster_stage{} {{", stage.index)?;
        writeln!(
            out,
            "    label=\"stage {}: {}\\n{}\";",
            stage.index,
            layers_text(stage.first_layer, stage.layers),
            times(&stage.totals, |index| stage.totals[index].roofline_us)
        )?;
        for (name, label) in nodes(shown.model.config, stage) {
            writeln!(out, "    {name} [label=\"{label}\"];")?;
            chain.push(name);
        }
        writeln!(out, "  }}")?;
    }
    writeln!(out, "  {};\n}}", chain.join(" -> "))
}

/// Names and labels, in order: operations of no layer by themselves, the layers before the first such that comes after them.
fn nodes(config: &ModelConfig, stage: &StageCosts) -> Vec<(String, String)> {
    let mut nodes = vec![];
    let mut layers = stage.first_layer..stage.first_layer + stage.layers;
    for operation in &stage.operations {
        if operation.layers.is_empty() {
            let times = times(&stage.totals, |index| operation.costs[index].roofline_us);
            let name = operation.operation.name();
            nodes.push((name.to_owned(), format!("{name}\\n{times}")));
            continue;
        }
        for layer in layers.by_ref() {
            let mixer = match config.layer_types[layer] {
                LayerType::FullAttention => "attention",
                LayerType::Conv => "convolution",
            };
            let feed_forward = if config.is_moe(layer) {
                "experts"
            } else {
                "dense"
            };
            let times = times(&stage.totals, |index| layer_us(stage, layer, index));
            let label = format!("layer {layer}: {mixer}, {feed_forward}\\n{times}");
            nodes.push((format!("layer{layer}"), label));
        }
    }
    nodes
}

fn times(totals: &[Costs], us: impl Fn(usize) -> f64) -> String {
    let totals = totals.iter().enumerate();
    let times: Vec<String> = totals
        .map(|(index, total)| format!("{:.2} us @{}", us(index), total.rows))
        .collect();
    times.join(", ")
}

/// What a layer takes of each operation's time: all layers that have an operation take as long.
fn layer_us(stage: &StageCosts, layer: usize, index: usize) -> f64 {
    let operations = stage.operations.iter();
    let own = operations.filter(|operation| operation.layers.contains(&layer));
    own.map(|operation| operation.costs[index].roofline_us / operation.layers.len() as f64)
        .sum()
}
