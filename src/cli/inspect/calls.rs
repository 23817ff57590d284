//! The list of `--calls` as tables.

use super::Written;
use super::text::extent;
use crate::backend::cuda::listed::calls::{Call, StepCalls};
use crate::cli::table::Table;
use std::io::Write;

pub(super) fn write(stages: usize, steps: &[StepCalls], out: &mut dyn Write) -> Written {
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
