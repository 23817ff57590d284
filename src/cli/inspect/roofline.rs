//! `inspect --roofline`: each operation of each bucket against the roofline of a GPU; and where a trace with kernels was given,
//! how near the same operations came to it there.

use super::Written;
use super::document::{Document, Measured, MeasuredBucket};
use super::text::{operation_layers, us_text};
use crate::bench::output::number;
use crate::cli::table::Table;
use crate::plan::bytes::Si;
use std::io::Write;

pub(super) fn write(shown: &Document, out: &mut dyn Write) -> Written {
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
    for (index, total) in shown.totals.iter().enumerate() {
        planned(shown, index, out)?;
        let Some(measured) = &shown.measured else {
            continue;
        };
        let buckets = measured.buckets.iter();
        for bucket in buckets.filter(|of| Some(of.bucket) == total.bucket) {
            reached(measured, bucket, out)?;
        }
    }
    Ok(())
}

/// What the plan asks of a step of the rows at `index`.
fn planned(shown: &Document, index: usize, out: &mut dyn Write) -> Written {
    writeln!(
        out,
        "\n{} step of {} rows, all layers of a stage",
        shown.kind.name(),
        shown.totals[index].rows
    )?;
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
    for operation in shown.stages.iter().flat_map(|stage| &stage.operations) {
        let cost = &operation.costs[index];
        let of_ridge = cost.intensity.map(|value| value / shown.gpu.ridge);
        table.row([
            operation.operation.name().to_owned(),
            operation_layers(operation),
            format!("{}B", Si(cost.memory_bytes as f64)),
            Si(cost.costs.flops as f64).to_string(),
            or_dash(cost.intensity, number),
            or_dash(of_ridge, per_cent),
            cost.bound.to_owned(),
            us_text(cost.costs.roofline_us),
        ]);
    }
    table.write("  ", out)
}

/// What a trace has of the bucket.
fn reached(measured: &Measured, bucket: &MeasuredBucket, out: &mut dyn Write) -> Written {
    let by = match measured.roofline {
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
        measured.device,
        measured.launch.as_deref().unwrap_or("stage threads"),
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
    let tera = |a_second| number(a_second / 1e12);
    for operation in &bucket.operations {
        table.row([
            operation.operation.clone(),
            us_text(operation.us),
            or_dash(operation.intensity, number),
            operation.bound.unwrap_or("-").to_owned(),
            or_dash(operation.flops_per_s, tera),
            or_dash(operation.bytes_per_s, tera),
            or_dash(operation.fraction, per_cent),
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
