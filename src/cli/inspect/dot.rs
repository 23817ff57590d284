//! The plan as a Graphviz graph: a cluster for each stage, a node for each run of alike layers (or each layer), with
//! its time in a step of each number of rows.

use super::Written;
use super::document::{Costs, Document, StageCosts};
use super::text::{layers_text, us_text};
use std::io::Write;
use std::ops::Range;

pub(super) fn write(shown: &Document, out: &mut dyn Write) -> Written {
    writeln!(out, "digraph plan {{")?;
    writeln!(
        out,
        "  rankdir=TB; node [shape=box, fontname=\"monospace\"];"
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
        for (name, label) in nodes(stage) {
            writeln!(out, "    {name} [label=\"{label}\"];")?;
            chain.push(name);
        }
        writeln!(out, "  }}")?;
    }
    writeln!(out, "  {};\n}}", chain.join(" -> "))
}

/// Names and labels, in order: operations of no layer by themselves, the layers before the first such that comes after them.
fn nodes(stage: &StageCosts) -> Vec<(String, String)> {
    let mut nodes = vec![];
    let mut runs = runs(stage);
    for operation in &stage.operations {
        if operation.layers.is_empty() {
            let times = times(&stage.totals, |index| operation.costs[index].roofline_us);
            let name = operation.operation.name();
            nodes.push((name.to_owned(), format!("{name}\\n{times}")));
            continue;
        }
        for layers in runs.drain(..) {
            let label = format!(
                "{}: {}\\n{}",
                layers_text(layers.start, layers.len()),
                layer_name(stage, layers.start),
                times(&stage.totals, |index| layers_us(stage, &layers, index))
            );
            nodes.push((format!("layer{}", layers.start), label));
        }
    }
    nodes
}

fn times(totals: &[Costs], us: impl Fn(usize) -> f64) -> String {
    let totals = totals.iter().enumerate();
    let times: Vec<String> = totals
        .map(|(index, total)| format!("{} us @{}", us_text(us(index)), total.rows))
        .collect();
    times.join(", ")
}

/// What these layers take of each operation's time; all layers that have an operation take as long.
fn layers_us(stage: &StageCosts, layers: &Range<usize>, index: usize) -> f64 {
    let operations = stage.operations.iter();
    let shares = operations.map(|operation| {
        let inside = operation.layers.iter().filter(|l| layers.contains(l));
        let share = inside.count() as f64 / operation.layers.len().max(1) as f64;
        operation.costs[index].roofline_us * share
    });
    shares.sum()
}

fn layer_name(stage: &StageCosts, layer: usize) -> String {
    let has = |name: &str| {
        let mut operations = stage.operations.iter();
        operations.any(|of| of.operation.name() == name && of.layers.contains(&layer))
    };
    let mixer = if has("attention") {
        "attention"
    } else {
        "convolution"
    };
    let feed_forward = if has("router") { "experts" } else { "dense" };
    format!("{mixer}, {feed_forward}")
}

/// Consecutive layers that are alike, or each layer where operations stand layer by layer.
fn runs(stage: &StageCosts) -> Vec<Range<usize>> {
    let each = stage.operations.iter().all(|of| of.layers.len() <= 1);
    let mut runs: Vec<Range<usize>> = vec![];
    for layer in stage.first_layer..stage.first_layer + stage.layers {
        match runs.last_mut() {
            Some(run) if !each && layer_name(stage, run.start) == layer_name(stage, layer) => {
                run.end = layer + 1;
            }
            _ => runs.push(layer..layer + 1),
        }
    }
    runs
}
