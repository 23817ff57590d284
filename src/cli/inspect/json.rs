//! The plan for programs. Bytes and FLOPs are rounded to whole numbers; times are in microseconds.

use super::graphs::{Entry, OnGpu, entries, ms, operation};
use super::{Group, View, Written};
use crate::backend::cuda::listed::captured::CapturedGraph;
use crate::backend::cuda::tuning::Origin;
use crate::model::LayerType;
use crate::plan::cost::distinct_experts;
use crate::plan::params::{model_bytes, model_parameters, params};
use crate::plan::{Cost, Stage, StepKind};
use serde_json::{Map, Value, json};
use std::io::Write;

pub(super) fn write(view: &View<'_>, out: &mut dyn Write) -> Written {
    serde_json::to_writer_pretty(&mut *out, &document(view))?;
    writeln!(out)
}

fn document(view: &View<'_>) -> Value {
    let config = &view.plan.config;
    let (weights, compute) = (view.precision.weights, view.precision.compute);
    let attention = config
        .layer_types
        .iter()
        .filter(|&&mixer| mixer == LayerType::FullAttention)
        .count();
    let buckets: Map<String, Value> = StepKind::ALL
        .iter()
        .map(|&kind| (kind.name().to_owned(), json!(view.plan.ladders.of(kind))))
        .collect();
    json!({
        "model": {
            "layers": config.layer_types.len(),
            "attention_layers": attention,
            "dense_layers": config.num_dense_layers,
            "experts": config.num_experts,
            "experts_per_token": config.num_experts_per_tok,
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "parameters": whole(model_parameters(config)),
            "weight_bytes": whole(model_bytes(config, weights)),
            "kv_bytes_per_token": whole(view.plan.kv_bytes_per_token(compute)),
            "conv_state_bytes_per_sequence": whole(view.plan.conv_state_bytes_per_sequence(compute)),
        },
        "weight_dtype": weights.name(),
        "compute_dtype": compute.name(),
        "gpu": {
            "name": view.gpu.name,
            "title": view.gpu.title,
            "bytes_per_s": view.gpu.bytes_per_s,
            "flops_per_s": view.gpu.flops_per_s(view.precision),
            "ridge": view.gpu.ridge(view.precision),
            "l2_bytes": whole(view.gpu.l2_bytes),
            "source": view.gpu.source,
        },
        "buckets": buckets,
        "kind": view.kind.name(),
        "context": view.context,
        "shares": view.shares.iter().map(|share| json!({
            "device": share.device,
            "stages": share.stages.clone().collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "stages": view.plan.stages.iter().map(|s| stage(view, s)).collect::<Vec<_>>(),
        "totals": view.rows.iter().map(|&rows| total(view, rows)).collect::<Vec<_>>(),
        "measured": super::roofline::json(view),
        "device": view.on_gpu.map(device),
        "graphs": entries(view).iter().map(|entry| graph(view, entry)).collect::<Vec<_>>(),
    })
}

/// Times are in milliseconds.
fn device(on_gpu: &OnGpu) -> Value {
    json!({
        "name": on_gpu.device,
        "launch": on_gpu.launch,
        "kernel_variants": on_gpu.kernel_variants,
        "entries": on_gpu.entries.map(Origin::json),
        "load_ms": ms(on_gpu.load),
        "memory": on_gpu.memory.iter().map(|item| json!({
            "name": item.name,
            "bytes": item.bytes,
            "place": item.place.name(),
        })).collect::<Vec<_>>(),
    })
}

/// `captured` is null where no GPU was asked.
fn graph(view: &View<'_>, entry: &Entry<'_>) -> Value {
    json!({
        "stages": entry.stages.clone().collect::<Vec<_>>(),
        "kind": entry.kind.name(),
        "bucket": entry.rows,
        "operations": entry.operations,
        "weight_bytes": whole(entry.cost.weight_bytes),
        "cache_bytes": whole(entry.cost.cache_bytes),
        "activation_bytes": whole(entry.cost.activation_bytes),
        "flops": whole(entry.cost.flops),
        "roofline_us": entry.roofline_us,
        "captured": entry.captured.map(|graph| captured(view, graph)),
    })
}

fn captured(view: &View<'_>, graph: &CapturedGraph) -> Value {
    let kernels: Vec<Value> = graph
        .alike()
        .iter()
        .map(|alike| {
            let kernel = alike.node.kernel;
            let threads = |(x, y, z): (u32, u32, u32)| [x, y, z];
            json!({
                "name": alike.node.name,
                "count": alike.count,
                "early": alike.early,
                "operations": alike.kinds.iter().map(|kind| operation(*kind)).collect::<Vec<_>>(),
                "grid": kernel.map(|k| threads(k.grid)),
                "block": kernel.map(|k| threads(k.block)),
                "registers": kernel.map(|k| k.registers),
                "static_shared_bytes": kernel.map(|k| k.static_shared_bytes),
                "dynamic_shared_bytes": kernel.map(|k| k.dynamic_shared_bytes),
                "local_bytes": kernel.map(|k| k.local_bytes),
            })
        })
        .collect();
    let chosen = view
        .plan
        .stages
        .iter()
        .filter(|s| graph.stages.contains(&s.index));
    let operations: Vec<Value> = chosen
        .flat_map(|stage| &stage.ops)
        .map(|op| {
            json!({
                "operation": op.kind.name(),
                "layer": op.layer,
                "nodes": graph.nodes_of(*op).map(|(place, _)| place).collect::<Vec<_>>(),
            })
        })
        .collect();
    json!({
        "nodes": graph.nodes.len(),
        "edges": graph.edges.len(),
        "early_edges": graph.early_edges(),
        "dispatcher": graph.dispatcher,
        "copies": graph.copies,
        "capture_ms": ms(graph.capture),
        "instantiate_ms": ms(graph.instantiate),
        "upload_ms": ms(graph.upload),
        "device_bytes": graph.device_bytes,
        "variant": graph.variant.map(|variant| json!({
            "products": variant.products.to_string(),
            "experts": variant.experts.to_string(),
        })),
        "kernels": kernels,
        "operations": operations,
    })
}

fn stage(view: &View<'_>, stage: &Stage) -> Value {
    json!({
        "index": stage.index,
        "first_layer": stage.layers.start,
        "layers": stage.layers.len(),
        "operations": view.groups(stage).iter().map(|g| group(view, g)).collect::<Vec<_>>(),
        "totals": view.rows.iter().map(|&rows| {
            let cost = stage.cost(&view.plan.config, &view.shape(rows), view.precision);
            costs(rows, &cost, view.stage_us(stage, rows))
        }).collect::<Vec<_>>(),
    })
}

/// Costs are of all the group's layers together.
fn group(view: &View<'_>, group: &Group) -> Value {
    let weights: Vec<Value> = params(&view.plan.config, group.kind)
        .iter()
        .map(|param| {
            json!({
                "name": param.name,
                "shape": param.shape,
                "bytes": whole(param.bytes(view.precision.weights)),
            })
        })
        .collect();
    let per_rows: Vec<Value> = view
        .rows
        .iter()
        .map(|&rows| {
            let (us, bound) = view.roofline_us(group, rows);
            let mut value = costs(rows, &view.cost(group, rows), us);
            value["memory_bytes"] = json!(whole(view.memory_bytes(group, rows)));
            value["intensity"] = json!(view.intensity(group, rows));
            value["bound"] = json!(bound.name());
            value
        })
        .collect();
    json!({
        "operation": group.kind.name(),
        "layers": group.layers,
        "weights": weights,
        "costs": per_rows,
    })
}

fn total(view: &View<'_>, rows: u32) -> Value {
    let cost = view.plan.cost(&view.shape(rows), view.precision);
    let mut value = costs(rows, &cost, view.step_us(rows));
    value["bucket"] = json!(view.plan.ladders.bucket(view.kind, rows));
    value["experts_per_layer"] = json!(distinct_experts(&view.plan.config, f64::from(rows)));
    value["slowest_stage_us"] = json!(view.slowest_stage_us(rows));
    value
}

fn costs(rows: u32, cost: &Cost, roofline_us: f64) -> Value {
    json!({
        "rows": rows,
        "weight_bytes": whole(cost.weight_bytes),
        "cache_bytes": whole(cost.cache_bytes),
        "activation_bytes": whole(cost.activation_bytes),
        "flops": whole(cost.flops),
        "roofline_us": roofline_us,
    })
}

fn whole(amount: f64) -> u64 {
    amount.round() as u64
}
