//! Tables: of the plan and of the roofline, at most 120 columns wide, and of captured graphs and kernel calls, which may be wider.

use super::Written;
use super::document::{
    Captured, Costs, Document, Graph, Kernel, Model, Operation, Share, StageCosts, Total,
};
use crate::backend::cuda::listed::calls::{Call, StepCalls};
use crate::bench::output::number;
use crate::cli::table::Table;
use crate::plan::StepKind;
use crate::plan::bytes::{Bytes, Si};
use std::io::Write;
use std::ops::Range;

/// Time columns of one table; more rows go into further tables.
const COLUMNS: usize = 5;

pub(super) fn write(shown: &Document, out: &mut dyn Write) -> Written {
    model(shown, out)?;
    for first in (0..shown.totals.len()).step_by(COLUMNS) {
        let columns = first..(first + COLUMNS).min(shown.totals.len());
        for stage in &shown.stages {
            writeln!(out)?;
            stage_table(shown, stage, columns.clone(), out)?;
        }
        writeln!(out)?;
        totals(shown, &shown.totals[columns], out)?;
    }
    writeln!(out)?;
    graphs(shown, out)
}

fn model(shown: &Document, out: &mut dyn Write) -> Written {
    let Model {
        layers,
        attention_layers: attention,
        dense_layers: dense,
        experts,
        experts_per_token,
        hidden_size,
        vocab_size,
        heads,
        kv_heads,
        head_dim,
        ..
    } = shown.model;
    let (convolution, routed) = (layers - attention, layers - dense);
    let tied = if shown.model.tied_embeddings {
        " (tied)"
    } else {
        ""
    };
    let (weights, compute) = (shown.weight_dtype, shown.compute_dtype);
    let parameters = Si(shown.model.parameters as f64);
    let stored = Si(shown.model.weight_bytes as f64);
    let token = Bytes(shown.model.kv_bytes_per_token);
    let sequence = Bytes(shown.model.conv_state_bytes_per_sequence);
    writeln!(
        out,
        "{layers} layers: {convolution} convolution, {attention} attention; {dense} dense, {routed} of {experts} experts with {experts_per_token} a token\n\
         hidden {hidden_size}, vocabulary {vocab_size}{tied}, {heads} heads and {kv_heads} key-value heads of {head_dim}\n\
         {parameters} parameters, {stored}B of weights in {weights}\n\
         {token} of keys and values a token, {sequence} of convolution state a sequence, in {compute}"
    )?;
    for kind in StepKind::ALL {
        let buckets = shown.buckets.of(kind).iter();
        let buckets: Vec<String> = buckets.map(u32::to_string).collect();
        writeln!(out, "{} buckets: {}", kind.name(), buckets.join(" "))?;
    }
    let (kind, context) = (shown.kind.name(), shown.context);
    let at = match shown.kind {
        StepKind::Decode => "every sequence at position",
        StepKind::Mixed | StepKind::Score => "prompts of length",
    };
    let gpu = &shown.gpu;
    writeln!(
        out,
        "\n{kind} steps in {compute}, {at} {context}\n\
         roofline of {}, without launches: {} TB/s, {} TFLOP/s; {}\n\
         operands and results count where an operation's exceed the {} MB L2 cache",
        gpu.title,
        gpu.bytes_per_s / 1e12,
        gpu.flops_per_s / 1e12,
        gpu.source,
        gpu.l2_bytes as f64 / 1e6
    )?;
    shown.shares.iter().try_for_each(|of| share(shown, of, out))
}

/// What one of several devices does.
fn share(shown: &Document, share: &Share, out: &mut dyn Write) -> Written {
    let stages = shown.stages.iter();
    let own: Vec<&StageCosts> = stages.filter(|s| share.stages.contains(&s.index)).collect();
    let (Some(first), false) = (own.first(), own.len() == shown.stages.len()) else {
        return writeln!(
            out,
            "{}: the whole model, its rows from a queue that is everyone's",
            share.device
        );
    };
    let what = match own.len() {
        1 => format!("stage {}", first.index),
        many => format!("stages {} to {}", first.index, first.index + many - 1),
    };
    let layers = own.iter().map(|stage| stage.layers).sum();
    let layers = layers_text(first.first_layer, layers);
    writeln!(out, "{}: {what}, {layers}", share.device)
}

fn stage_table(
    shown: &Document,
    stage: &StageCosts,
    columns: Range<usize>,
    out: &mut dyn Write,
) -> Written {
    let rows = stage.totals[columns.start].rows;
    writeln!(
        out,
        "stage {}: {}; a row's bytes and FLOPs in a step of {rows} {}",
        stage.index,
        layers_text(stage.first_layer, stage.layers),
        if rows == 1 { "row" } else { "rows" }
    )?;
    let mut table = Table::new(&[0, 1, 2]);
    let head = "operation, layers, weights, stored, B/row, FLOP/row";
    let totals = &stage.totals[columns.clone()];
    let times = totals.iter().map(|total| format!("us @{}", total.rows));
    table.row(head.split(", ").map(String::from).chain(times));
    let per_row = |amount: u64| Si((amount as f64 / f64::from(rows)).round()).to_string();
    let mut line = |names: [String; 4], costs: &[Costs]| {
        let costs = &costs[columns.clone()];
        let first = &costs[0];
        let amounts = [
            per_row(first.cache_bytes + first.activation_bytes),
            per_row(first.flops),
        ];
        let times = costs.iter().map(|cost| us_text(cost.roofline_us));
        table.row(names.into_iter().chain(amounts).chain(times));
    };
    for operation in &stage.operations {
        let shape = operation.weights.first().map_or(String::new(), |weight| {
            let sizes: Vec<String> = weight.shape.iter().map(usize::to_string).collect();
            sizes.join(" x ")
        });
        let name = operation.operation.name().to_owned();
        let names = [name, operation_layers(operation), shape, stored(operation)];
        line(names, &operation.costs);
    }
    if shown.stages.len() > 1 {
        let none = String::new;
        line(["stage".to_owned(), none(), none(), none()], &stage.totals);
    }
    table.write("  ", out)
}

/// `x18`, or the number of the one layer.
fn operation_layers(operation: &Operation) -> String {
    match operation.layers.as_slice() {
        [] => String::new(),
        [layer] => layer.to_string(),
        layers => format!("x{}", layers.len()),
    }
}

fn stored(operation: &Operation) -> String {
    let bytes: u64 = operation.weights.iter().map(|weight| weight.bytes).sum();
    match bytes * operation.layers.len().max(1) as u64 {
        0 => String::new(),
        bytes => format!("{}B", Si(bytes as f64)),
    }
}

/// A line of the totals: its name, and what it shows of a step.
type Line = (&'static str, fn(&Total) -> String);

fn totals(shown: &Document, totals: &[Total], out: &mut dyn Write) -> Written {
    let lines: [Line; 10] = [
        ("whole step, rows", |total| total.costs.rows.to_string()),
        ("bucket", |total| {
            total.bucket.map_or(String::new(), |rows| rows.to_string())
        }),
        ("experts read in a layer (expected)", |total| {
            format!("{:.1}", total.experts_per_layer)
        }),
        ("weights read", |total| bytes(total.costs.weight_bytes)),
        ("keys, values, conv state", |total| {
            bytes(total.costs.cache_bytes)
        }),
        ("activations", |total| bytes(total.costs.activation_bytes)),
        ("FLOPs", |total| Si(total.costs.flops as f64).to_string()),
        ("floor, us", |total| us_text(total.costs.roofline_us)),
        ("slowest stage, us", |total| us_text(total.slowest_stage_us)),
        ("rows/s at most", |total| {
            Si((f64::from(total.costs.rows) / total.slowest_stage_us * 1e6).round()).to_string()
        }),
    ];
    let mut table = Table::new(&[0]);
    for (name, text) in lines {
        if name != "slowest stage, us" || shown.stages.len() > 1 {
            let cells = totals.iter().map(text);
            table.row(std::iter::once(name.to_owned()).chain(cells));
        }
    }
    table.write("", out)
}

fn bytes(count: u64) -> String {
    format!("{}B", Si(count as f64))
}

/// The list of graphs, the kernels of those that the rows choose, and the memory of a run.
fn graphs(shown: &Document, out: &mut dyn Write) -> Written {
    let Some(device) = &shown.device else {
        writeln!(
            out,
            "graphs, as the plan has them; --device cuda captures them and shows their kernels"
        )?;
        return list(&shown.graphs, out);
    };
    writeln!(
        out,
        "graphs as captured for {} on {}; weights loaded in {} ms; variants {}",
        device.launch,
        device.name,
        ms_text(device.load_ms),
        device.kernel_variants
    )?;
    match device.entries {
        Some(entries) => writeln!(out, "decode steps by entries {entries}")?,
        None => writeln!(
            out,
            "decode steps by no entries: by the kernels for any step"
        )?,
    }
    list(&shown.graphs, out)?;
    for graph in &shown.graphs {
        let rows = Some(graph.bucket);
        let asked = shown.totals.iter().any(|total| total.bucket == rows);
        if let Some(captured) = &graph.captured
            && asked
            && graph.kind == shown.kind
        {
            writeln!(out)?;
            kernels(graph, captured, out)?;
        }
    }
    writeln!(out, "\nmemory of a run with these sizes")?;
    let mut table = Table::new(&[0, 2]);
    for item in &device.memory {
        let bytes = Bytes(item.bytes).to_string();
        table.row([item.name, &bytes, item.place.name()]);
    }
    table.write("  ", out)
}

fn list(graphs: &[Graph], out: &mut dyn Write) -> Written {
    let mut table = Table::new(&[0, 1]);
    let mut head = "stage, kind, rows, operations, bytes, FLOPs, floor us".to_owned();
    if graphs.iter().any(|graph| graph.captured.is_some()) {
        head +=
            ", nodes, edges, early, dispatcher, copies, capture ms, inst. ms, upload ms, memory";
    }
    table.row(head.split(", "));
    for graph in graphs {
        let costs = &graph.costs;
        let mut cells = vec![
            stages_text(&graph.stages),
            graph.kind.name().to_owned(),
            graph.bucket.to_string(),
            graph.operations.to_string(),
            bytes(costs.weight_bytes + costs.cache_bytes),
            Si(costs.flops as f64).to_string(),
            us_text(costs.roofline_us),
        ];
        if let Some(captured) = &graph.captured {
            let dispatcher = if captured.dispatcher { "in it" } else { "-" };
            cells.extend([
                captured.nodes.to_string(),
                captured.edges.to_string(),
                captured.early_edges.to_string(),
                dispatcher.to_owned(),
                captured.copies.to_string(),
                ms_text(captured.capture_ms),
                ms_text(captured.instantiate_ms),
                ms_text(captured.upload_ms),
                Bytes(captured.device_bytes).to_string(),
            ]);
        }
        table.row(cells);
    }
    table.write("  ", out)
}

fn kernels(graph: &Graph, captured: &Captured, out: &mut dyn Write) -> Written {
    let dispatcher = if captured.dispatcher {
        ", dispatcher in it"
    } else {
        ""
    };
    writeln!(
        out,
        "stage {} {} {}{dispatcher}: nodes by kernel; shared memory static + dynamic, early: may start before the one ahead ends",
        stages_text(&graph.stages),
        graph.kind.name(),
        graph.bucket,
    )?;
    if let Some(variant) = captured.variant {
        writeln!(out, "  {variant}")?;
    }
    let mut table = Table::new(&[0, 8]);
    table
        .row("kernel, count, grid, block, registers, shared, local, early, operations".split(", "));
    for kernel in &captured.kernels {
        table.row(kernel_cells(kernel));
    }
    table.write("  ", out)
}

fn kernel_cells(kernel: &Kernel) -> Vec<String> {
    let mut cells = vec![kernel.name.clone(), kernel.count.to_string()];
    match kernel.shape {
        Some(shape) => cells.extend([
            extent(shape.grid),
            extent(shape.block),
            shape.registers.to_string(),
            format!(
                "{}+{}",
                shape.static_shared_bytes, shape.dynamic_shared_bytes
            ),
            shape.local_bytes.to_string(),
        ]),
        None => cells.extend(std::iter::repeat_n(String::new(), 5)),
    }
    cells.push(kernel.early.to_string());
    // A line has room for two.
    cells.push(match kernel.operations.as_slice() {
        [first, second, _, ..] => format!("{first}, {second}, ..."),
        names => names.join(", "),
    });
    cells
}

/// `132x2`, without the ones at its end.
fn extent((x, y, z): (u32, u32, u32)) -> String {
    match (y, z) {
        (1, 1) => x.to_string(),
        (_, 1) => format!("{x}x{y}"),
        _ => format!("{x}x{y}x{z}"),
    }
}

/// Microseconds with three or four digits.
pub(super) fn us_text(us: f64) -> String {
    match us {
        us if us < 9.995 => format!("{us:.2}"),
        us if us < 999.95 => format!("{us:.1}"),
        us => format!("{us:.0}"),
    }
}

fn ms_text(ms: f64) -> String {
    let decimals = if ms < 9.995 { 2 } else { 1 };
    format!("{ms:.decimals$}")
}

/// So many layers from `first` on in words.
pub(super) fn layers_text(first: usize, layers: usize) -> String {
    match layers {
        1 => format!("layer {first}"),
        _ => format!("layers {first} to {}", (first + layers).saturating_sub(1)),
    }
}

fn stages_text(stages: &[usize]) -> String {
    match stages {
        [first, .., last] => format!("{first}-{last}"),
        stages => stages.first().map_or(String::new(), usize::to_string),
    }
}

/// Each operation of each bucket against the roofline of a GPU.
pub(super) fn roofline(shown: &Document, out: &mut dyn Write) -> Written {
    let gpu = &shown.gpu;
    writeln!(
        out,
        "roofline of {}: {} TB/s, {} TFLOP/s in {}; ridge at {:.0} FLOP/B: below it memory bounds, above it products",
        gpu.title,
        gpu.bytes_per_s / 1e12,
        gpu.flops_per_s / 1e12,
        shown.compute_dtype,
        gpu.ridge,
    )?;
    (0..shown.totals.len()).try_for_each(|index| planned(shown, index, out))
}

/// What the plan asks of a step of the rows at `index`.
fn planned(shown: &Document, index: usize, out: &mut dyn Write) -> Written {
    writeln!(
        out,
        "\n{} step of {} rows, all layers of a stage",
        shown.kind.name(),
        shown.totals[index].costs.rows
    )?;
    let mut table = Table::new(&[0, 1, 6]);
    table.row("operation, layers, bytes, FLOPs, FLOP/B, of ridge, bound, us".split(", "));
    for operation in shown.stages.iter().flat_map(|stage| &stage.operations) {
        let cost = &operation.costs[index];
        let of_ridge = cost.intensity.map(|value| value / shown.gpu.ridge);
        table.row([
            operation.operation.name().to_owned(),
            operation_layers(operation),
            format!("{}B", Si(cost.memory_bytes as f64)),
            Si(cost.flops as f64).to_string(),
            or_dash(cost.intensity, number),
            or_dash(of_ridge, per_cent),
            cost.bound.to_owned(),
            us_text(cost.roofline_us),
        ]);
    }
    table.write("  ", out)
}

fn or_dash(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or("-".to_owned(), text)
}

fn per_cent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

/// The list of `--calls`.
pub(super) fn calls(stages: usize, steps: &[StepCalls], out: &mut dyn Write) -> Written {
    for (index, step) in steps.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        if stages > 1 {
            write!(out, "stage {} ", step.stage)?;
        }
        writeln!(
            out,
            "{} {}: {} calls; {}",
            step.kind.name(),
            step.rows,
            step.calls.len(),
            step.variant
        )?;
        let mut table = Table::new(&[1, 2]);
        table.row("layer, operations, kernel, blocks, threads, shared, cluster, early".split(", "));
        for call in &step.calls {
            table.row(row(call));
        }
        table.write("  ", out)?;
    }
    Ok(())
}

fn row(call: &Call) -> [String; 8] {
    let layer = call.ops.first().and_then(|op| op.layer);
    let operations: Vec<&str> = call.ops.iter().map(|op| op.kind.name()).collect();
    [
        layer.map_or(String::new(), |layer| layer.to_string()),
        operations.join(" + "),
        call.kernel.clone(),
        extent(call.grid),
        call.threads.to_string(),
        call.shared_bytes.to_string(),
        call.cluster.to_string(),
        if call.early { "yes" } else { "no" }.to_owned(),
    ]
}
