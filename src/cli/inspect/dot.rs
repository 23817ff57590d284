//! The plan as a Graphviz graph: a cluster for each stage, a node for each run of alike layers (or each layer), with
//! its time in a step of each number of rows.

use super::Written;
use super::document::{Document, Operation, StageCosts};
use super::text::{layers_text, us_text};
use std::io::Write;
use std::ops::Range;

pub(super) fn write(shown: &Document, out: &mut dyn Write) -> Written {
    writeln!(out, "digraph plan {{")?;
    writeln!(
        out,
        "  rankdir=TB; node [shape=box, fontname=\"monospace\"];"
    )?;
    let mut before: Option<String> = None;
    for stage in &shown.stages {
        writeln!(out, "  subgraph cluster_stage{} {{", stage.index)?;
        let totals = stage.totals.iter();
        writeln!(
            out,
            "    label=\"stage {}: {}\\n{}\";",
            stage.index,
            layers_text(stage.first_layer, stage.layers),
            times(totals.map(|total| (total.rows, total.costs.roofline_us)))
        )?;
        let nodes = nodes(stage);
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

/// Names and labels, in order: operations of no layer by themselves, the layers before the first such that comes after them.
fn nodes(stage: &StageCosts) -> Vec<(String, String)> {
    let mut nodes = vec![];
    let mut runs = runs(stage);
    for operation in &stage.operations {
        if operation.layers.is_empty() {
            let costs = operation.costs.iter();
            let times = times(costs.map(|cost| (cost.rows, cost.costs.roofline_us)));
            let name = operation.operation.name();
            nodes.push((name.to_owned(), format!("{name}\\n{times}")));
            continue;
        }
        for layers in runs.drain(..) {
            let label = format!(
                "{}: {}\\n{}",
                layers_text(layers.start, layers.len()),
                layer_name(stage, layers.start),
                layer_times(stage, &layers)
            );
            nodes.push((format!("layer{}", layers.start), label));
        }
    }
    nodes
}

fn times(times: impl Iterator<Item = (u32, f64)>) -> String {
    let times: Vec<String> = times
        .map(|(rows, us)| format!("{} us @{rows}", us_text(us)))
        .collect();
    times.join(", ")
}

fn layer_times(stage: &StageCosts, layers: &Range<usize>) -> String {
    let us_at = |index: usize| {
        let of = |operation: &Operation| {
            let inside = operation.layers.iter().filter(|l| layers.contains(l));
            let share = inside.count() as f64 / operation.layers.len().max(1) as f64;
            operation.costs[index].costs.roofline_us * share
        };
        stage.operations.iter().map(of).sum()
    };
    let totals = stage.totals.iter().enumerate();
    times(totals.map(|(index, total)| (total.rows, us_at(index))))
}

fn has(stage: &StageCosts, layer: usize, name: &str) -> bool {
    let mut of_it = stage.operations.iter();
    of_it.any(|o| o.operation.name() == name && o.layers.contains(&layer))
}

fn layer_name(stage: &StageCosts, layer: usize) -> String {
    let of = |operation, there, absent| {
        if has(stage, layer, operation) {
            there
        } else {
            absent
        }
    };
    format!(
        "{}, {}",
        of("attention", "attention", "convolution"),
        of("router", "experts", "dense")
    )
}

/// Consecutive layers that are alike, or each layer where operations stand layer by layer.
fn runs(stage: &StageCosts) -> Vec<Range<usize>> {
    let each = stage.operations.iter().all(|o| o.layers.len() <= 1);
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
