//! `inspect --roofline`: each operation of each bucket against the roofline of a GPU; and where a trace with kernels was given,
//! how near the same operations came to it there.

use super::{View, Written, us_text};
use crate::bench::output::number;
use crate::cli::table::Table;
use crate::plan::bytes::Si;
use crate::trace::About;
use crate::trace::kernels::{Bucket, Operation, Roofline};
use serde_json::{Value, json};
use std::io::Write;

pub(super) fn text(view: &View<'_>, out: &mut dyn Write) -> Written {
    let compute = view.precision.compute;
    writeln!(
        out,
        "roofline of {}: {} TB/s, {} TFLOP/s in {}; ridge at {:.0} FLOP/B: below it memory bounds, above it products",
        view.gpu.title,
        view.gpu.bytes_per_s / 1e12,
        view.gpu.flops_per_s(view.precision) / 1e12,
        compute.name(),
        view.gpu.ridge(view.precision),
    )?;
    for &rows in &view.rows {
        planned(view, rows, out)?;
        for bucket in view.measured_at(rows) {
            measured(view, bucket, out)?;
        }
    }
    Ok(())
}

/// What the plan asks of a step of `rows` rows.
fn planned(view: &View<'_>, rows: u32, out: &mut dyn Write) -> Written {
    let kind = view.kind.name();
    writeln!(out, "\n{kind} step of {rows} rows, all layers of a stage")?;
    let mut table = Table::new(&[0, 1, 6]);
    table.row([
        "operation",
        "layers",
        "bytes",
        "FLOPs",
        "FLOP/B",
        "of ridge",
        "bound",
        "us",
    ]);
    for stage in &view.plan.stages {
        for group in view.groups(stage) {
            let cost = view.cost(&group, rows);
            let (us, bound) = view.roofline_us(&group, rows);
            let intensity = view.intensity(&group, rows);
            let ridge = view.gpu.ridge(view.precision);
            let layers = match group.layers.as_slice() {
                [] => String::new(),
                [layer] => layer.to_string(),
                layers => format!("x{}", layers.len()),
            };
            table.row([
                group.kind.name().to_owned(),
                layers,
                format!("{}B", Si(view.memory_bytes(&group, rows))),
                Si(cost.flops).to_string(),
                intensity.map_or("-".to_owned(), number),
                intensity.map_or("-".to_owned(), |value| per_cent(value / ridge)),
                bound.name().to_owned(),
                us_text(us),
            ]);
        }
    }
    table.write("  ", out)
}

/// What a trace has of the bucket.
fn measured(view: &View<'_>, bucket: &Bucket, out: &mut dyn Write) -> Written {
    let Some(about) = view.measured else {
        return Ok(());
    };
    let by = match view.roofline() {
        Some(by) => format!(
            "; shares by {} TB/s and {} TFLOP/s",
            number(by.bytes_per_s / 1e12),
            number(by.flops_per_s / 1e12)
        ),
        None => "; nothing is known of the device, so there are no shares".to_owned(),
    };
    writeln!(
        out,
        "\n  measured on {} with {}: {} steps of {:.1} rows{by}",
        about.device,
        about.launch.as_deref().unwrap_or("stage threads"),
        bucket.steps,
        bucket.rows
    )?;
    let mut table = Table::new(&[0, 3]);
    table.row([
        "operations",
        "us",
        "FLOP/B",
        "bound",
        "TFLOP/s",
        "TB/s",
        "of it",
    ]);
    for operation in &bucket.operations {
        table.row([
            operation.operation.clone(),
            us_text(operation.us_per_step),
            operation.intensity().map_or("-".to_owned(), number),
            side(operation, view.roofline()).unwrap_or("-").to_owned(),
            tera(operation.flops_per_s()),
            tera(operation.bytes_per_s()),
            operation.fraction.map_or("-".to_owned(), per_cent),
        ]);
    }
    table.write("  ", out)
}

/// What the trace has, for programs; null where none was given.
pub(super) fn json(view: &View<'_>) -> Value {
    let Some(about) = view.measured else {
        return Value::Null;
    };
    let buckets = view.rows.iter().flat_map(|&rows| view.measured_at(rows));
    let operation = |operation: &Operation| {
        json!({
            "operation": operation.operation,
            "us": operation.us_per_step,
            "bytes": operation.bytes_per_step,
            "flops": operation.flops_per_step,
            "intensity": operation.intensity(),
            "bound": side(operation, view.roofline()),
            "flops_per_s": operation.flops_per_s(),
            "bytes_per_s": operation.bytes_per_s(),
            "fraction": operation.fraction,
        })
    };
    json!({
        "device": about.device,
        "launch": about.launch,
        "roofline": view.roofline(),
        "buckets": buckets.map(|bucket| json!({
            "bucket": bucket.bucket,
            "steps": bucket.steps,
            "operations": bucket.operations.iter().map(operation).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

/// The side of the ridge that an operation is on.
fn side(operation: &Operation, roofline: Option<Roofline>) -> Option<&'static str> {
    let ridge = roofline?.ridge();
    Some(match operation.intensity() {
        Some(intensity) if intensity < ridge => "memory",
        _ => "compute",
    })
}

fn tera(a_second: Option<f64>) -> String {
    a_second.map_or("-".to_owned(), |value| number(value / 1e12))
}

fn per_cent(share: f64) -> String {
    format!("{:.1}%", share * 100.0)
}

impl View<'_> {
    /// The roofline of the GPU that was measured.
    fn roofline(&self) -> Option<Roofline> {
        self.measured
            .and_then(|about: &About| about.kernels.as_ref()?.roofline)
    }

    /// Steps that were measured of the kind and the bucket of `rows` rows: one or none.
    fn measured_at(&self, rows: u32) -> impl Iterator<Item = &Bucket> {
        let wanted = self.plan.ladders.bucket(self.kind, rows).unwrap_or(rows);
        let kernels = self.measured.and_then(|about| about.kernels.as_ref());
        let buckets = kernels.into_iter().flat_map(|kernels| &kernels.buckets);
        buckets.filter(move |bucket| bucket.kind == self.kind.name() && bucket.bucket == wanted)
    }
}
