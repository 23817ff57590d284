//! The list of `--calls`.

use super::Written;
use super::graphs::extent;
use crate::backend::cuda::listed::calls::{Call, StepCalls};
use crate::cli::table::Table;
use crate::plan::Plan;
use serde_json::{Value, json};
use std::io::Write;

pub(super) fn text(plan: &Plan, steps: &[StepCalls], out: &mut dyn Write) -> Written {
    for (index, step) in steps.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        let stage = match plan.stages.len() {
            1 => String::new(),
            _ => format!("stage {} ", step.stage),
        };
        let variant = step.variant;
        writeln!(
            out,
            "{stage}{} {}: {} calls; products {}, experts {}",
            step.kind.name(),
            step.rows,
            step.calls.len(),
            variant.products,
            variant.experts
        )?;
        let mut table = Table::new(&[1, 2]);
        table.row([
            "layer",
            "operations",
            "kernel",
            "blocks",
            "threads",
            "shared",
            "cluster",
            "early",
        ]);
        for call in &step.calls {
            table.row(row(call));
        }
        table.write("  ", out)?;
    }
    Ok(())
}

fn row(call: &Call) -> [String; 8] {
    let layer = call.ops.first().and_then(|op| op.layer);
    [
        layer.map_or(String::new(), |layer| layer.to_string()),
        operations(call).join(" + "),
        call.kernel.clone(),
        extent(call.grid),
        call.threads.to_string(),
        call.shared_bytes.to_string(),
        call.cluster.to_string(),
        if call.early { "yes" } else { "no" }.to_owned(),
    ]
}

fn operations(call: &Call) -> Vec<&'static str> {
    call.ops.iter().map(|op| op.kind.name()).collect()
}

pub(super) fn json(steps: &[StepCalls], out: &mut dyn Write) -> Written {
    let steps: Vec<Value> = steps.iter().map(step).collect();
    serde_json::to_writer_pretty(&mut *out, &json!({ "steps": steps }))?;
    writeln!(out)
}

fn step(step: &StepCalls) -> Value {
    let calls: Vec<Value> = step
        .calls
        .iter()
        .map(|call| {
            let (x, y, z) = call.grid;
            let ops: Vec<Value> = call
                .ops
                .iter()
                .map(|op| json!({"operation": op.kind.name(), "layer": op.layer}))
                .collect();
            json!({
                "kernel": call.kernel,
                "operations": ops,
                "grid": [x, y, z],
                "threads": call.threads,
                "dynamic_shared_bytes": call.shared_bytes,
                "cluster": call.cluster,
                "early": call.early,
            })
        })
        .collect();
    json!({
        "stage": step.stage,
        "kind": step.kind.name(),
        "rows": step.rows,
        "variant": {
            "products": step.variant.products.to_string(),
            "experts": step.variant.experts.to_string(),
        },
        "calls": calls,
    })
}
