//! Tables: of the plan, at most 120 columns wide, and of captured graphs and kernel calls, which may be wider.

use super::document::{Costs, Device, Document, Graph, Total};
use crate::backend::cuda::catalogue::{AlikeNodes, StepCalls};
use crate::bench::output::number;
use crate::bytes::{Bytes, Si};
use crate::cli::table::Table;
use crate::command::summary::counted;
use crate::model::LayerType;
use crate::plan::StepKind;
use std::io::{self, Write};

pub(super) fn write(shown: &Document, out: &mut dyn Write) -> io::Result<()> {
    model(shown, out)?;
    for (index, total) in shown.totals.iter().enumerate() {
        step(shown, index, total, out)?;
    }
    let graphs = |device| graphs(shown, device, out);
    shown.device.map_or(Ok(()), graphs)
}

fn model(shown: &Document, out: &mut dyn Write) -> io::Result<()> {
    let (model, config) = (&shown.model, shown.model.config);
    let layers = config.layer_types.len();
    let mixers = config.layer_types.iter();
    let attention = mixers.filter(|&&m| m == LayerType::FullAttention).count();
    let dense = config.num_dense_layers.min(layers);
    writeln!(
        out,
        "{layers} layers: {} convolution, {attention} attention; {dense} dense, {} of {} experts with {} a token\n\
         {} parameters, {} of weights in {}\n\
         {} of keys and values a token, {} of convolution state a sequence, in {}",
        layers - attention,
        layers - dense,
        config.num_experts,
        config.num_experts_per_tok,
        Si(model.parameters),
        bytes(model.weight_bytes),
        shown.weight_dtype,
        Bytes(model.kv_bytes_per_token),
        Bytes(model.conv_state_bytes_per_sequence),
        shown.compute_dtype
    )?;
    for kind in StepKind::ALL {
        let buckets = shown.buckets.of(kind).iter();
        let buckets: Vec<String> = buckets.map(u32::to_string).collect();
        writeln!(out, "{} buckets: {}", kind.name(), buckets.join(" "))?;
    }
    let gpu = shown.gpu.gpu;
    writeln!(
        out,
        "\n{} steps in {}, with {} positions of each sequence once the step is done\n\
         roofline of {}, without launches: {} TB/s, {} TFLOP/s, {}\n\
         ridge at {:.0} FLOP/B: below it memory bounds, above it products\n\
         operands and results count where an operation's exceed the {} MB L2 cache",
        shown.kind.name(),
        shown.compute_dtype,
        shown.context,
        gpu.title,
        gpu.bytes_per_s / 1e12,
        shown.gpu.flops_per_s / 1e12,
        gpu.source,
        shown.gpu.ridge,
        gpu.l2_bytes / 1e6
    )
}

/// The step of the rows at `index`: each operation of each stage against the roofline.
fn step(shown: &Document, index: usize, total: &Total, out: &mut dyn Write) -> io::Result<()> {
    let Total { costs, bucket } = total;
    let bucket = bucket.map_or(String::new(), |rows| format!(" (bucket {rows})"));
    writeln!(
        out,
        "\n{} step of {}{bucket}: {} of weights, {} of keys, values, conv state; floor {:.2} us",
        shown.kind.name(),
        counted(costs.rows.into(), "token"),
        bytes(costs.sum.weight_bytes),
        bytes(costs.sum.cache_bytes),
        costs.roofline_us
    )?;
    for stage in &shown.stages {
        let layers = layers_text(stage.first_layer, stage.layers);
        writeln!(out, "stage {}: {layers}", stage.index)?;
        let mut table = Table::new(&[0, 1, 2, 7]);
        let head = "operation, layers, weights, bytes, FLOPs, FLOP/B, of ridge, bound, floor us";
        table.row(head.split(", "));
        for operation in &stage.operations {
            let layers = match operation.layers.as_slice() {
                [] => String::new(),
                [layer] => layer.to_string(),
                layers => format!("x{}", layers.len()),
            };
            let weights = operation.weights.iter();
            let mut shapes: Vec<String> = weights.map(|w| joined(&w.shape, " x ")).collect();
            shapes.dedup();
            let names = [
                operation.operation.name().to_owned(),
                layers,
                shapes.join(", "),
            ];
            let cells = cells(shown, &operation.costs[index]);
            table.row(names.into_iter().chain(cells));
        }
        let names = ["all", "", ""].map(String::from);
        table.row(names.into_iter().chain(cells(shown, &stage.totals[index])));
        table.write("  ", out)?;
    }
    Ok(())
}

fn cells(shown: &Document, cost: &Costs) -> [String; 6] {
    let of_ridge = |intensity| format!("{:.1}%", intensity / shown.gpu.ridge * 100.0);
    let or_dash = |text: Option<String>| text.unwrap_or("-".to_owned());
    [
        bytes(cost.memory_bytes),
        Si(cost.sum.flops).to_string(),
        or_dash(cost.intensity.map(number)),
        or_dash(cost.intensity.map(of_ridge)),
        cost.bound.to_owned(),
        format!("{:.2}", cost.roofline_us),
    ]
}

fn bytes(count: f64) -> String {
    format!("{}B", Si(count.round()))
}

/// The list of captured graphs, and the kernels of those that the rows choose.
fn graphs(shown: &Document, device: &Device, out: &mut dyn Write) -> io::Result<()> {
    let entries = match device.entries {
        Some(entries) => format!("entries {entries}"),
        None => "no entries: by the kernels for any step".to_owned(),
    };
    writeln!(
        out,
        "\ngraphs as captured for {} on {}; variants {}\ndecode steps by {entries}",
        device.launch, device.name, device.kernel_variants
    )?;
    let mut table = Table::new(&[0, 1]);
    let head = "stage, kind, rows, bytes, FLOPs, floor us, nodes, edges, early, dispatcher, copies, capture ms, \
                inst. ms, upload ms, memory";
    table.row(head.split(", "));
    for graph in &shown.graphs {
        let (sum, captured) = (&graph.costs.sum, &graph.captured);
        table.row([
            joined(&graph.stages, ","),
            graph.kind.name().to_owned(),
            graph.bucket.to_string(),
            bytes(sum.floor_bytes()),
            Si(sum.flops).to_string(),
            format!("{:.2}", graph.costs.roofline_us),
            captured.nodes.to_string(),
            captured.edges.to_string(),
            captured.early_edges.to_string(),
            if captured.dispatcher { "in it" } else { "-" }.to_owned(),
            captured.copies.to_string(),
            format!("{:.2}", captured.capture_ms),
            format!("{:.2}", captured.instantiate_ms),
            format!("{:.2}", captured.upload_ms),
            Bytes(captured.device_bytes).to_string(),
        ]);
    }
    table.write("  ", out)?;
    let asked = |graph: &&Graph| {
        let mut totals = shown.totals.iter();
        graph.kind == shown.kind && totals.any(|total| total.bucket == Some(graph.bucket))
    };
    let mut graphs = shown.graphs.iter().filter(asked);
    graphs.try_for_each(|graph| kernels(graph, out))
}

fn kernels(graph: &Graph, out: &mut dyn Write) -> io::Result<()> {
    writeln!(
        out,
        "\nstage {} {} {}: nodes by kernel; shared memory static + dynamic, early: may start before the one ahead ends",
        joined(&graph.stages, ","),
        graph.kind.name(),
        graph.bucket,
    )?;
    if let Some(variant) = graph.captured.variant {
        writeln!(out, "  {variant}")?;
    }
    let mut table = Table::new(&[0, 8]);
    table
        .row("kernel, count, grid, block, registers, shared, local, early, operations".split(", "));
    for kernel in &graph.captured.kernels {
        table.row(kernel_cells(kernel));
    }
    table.write("  ", out)
}

fn kernel_cells(kernel: &AlikeNodes) -> Vec<String> {
    let mut cells = vec![kernel.node.name.clone(), kernel.count.to_string()];
    let shape = kernel.node.kernel.map(|shape| {
        let (fixed, asked) = (shape.static_shared_bytes, shape.dynamic_shared_bytes);
        [
            extent(shape.grid),
            extent(shape.block),
            shape.registers.to_string(),
            format!("{fixed}+{asked}"),
            shape.local_bytes.to_string(),
        ]
    });
    cells.extend(shape.unwrap_or_default());
    cells.push(kernel.pdl.to_string());
    // A line has room for two.
    cells.push(match kernel.operations.as_slice() {
        [first, second, _, ..] => format!("{first}, {second}, ..."),
        names => names.join(", "),
    });
    cells
}

fn extent((x, y, z): (u32, u32, u32)) -> String {
    format!("{x}x{y}x{z}")
}

/// So many layers from `first` on in words.
pub(super) fn layers_text(first: usize, layers: usize) -> String {
    match layers {
        1 => format!("layer {first}"),
        _ => format!("layers {first} to {}", (first + layers).saturating_sub(1)),
    }
}

fn joined(numbers: &[usize], between: &str) -> String {
    let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
    numbers.join(between)
}

/// The list of `--calls`.
pub(super) fn calls(steps: &[StepCalls], out: &mut dyn Write) -> io::Result<()> {
    for (index, step) in steps.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        writeln!(
            out,
            "stage {} {} {}: {} calls; {}",
            step.stage,
            step.kind.name(),
            step.rows,
            step.calls.len(),
            step.variant
        )?;
        let mut table = Table::new(&[1, 2]);
        table.row("layer, operations, kernel, blocks, threads, shared, cluster, early".split(", "));
        for call in &step.calls {
            let layer = call.ops.first().and_then(|op| op.layer);
            let operations: Vec<&str> = call.ops.iter().map(|op| op.kind.name()).collect();
            table.row([
                layer.map_or(String::new(), |layer| layer.to_string()),
                operations.join(" + "),
                call.kernel.clone(),
                extent(call.grid),
                call.threads.to_string(),
                call.shared_bytes.to_string(),
                call.cluster.to_string(),
                if call.pdl { "yes" } else { "no" }.to_owned(),
            ]);
        }
        table.write("  ", out)?;
    }
    Ok(())
}
