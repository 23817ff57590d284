//! Sums over kernels, operations and buckets, and what they come to.

use super::Least;
use crate::backend::timing::StepTimes;
use crate::plan::StepKind;
use crate::trace::kernels::{Bucket, Kernel, Operation, Overhead};

/// Fewer untimed steps than this say nothing.
const FEWEST_UNTIMED: u64 = 3;

#[derive(Default)]
struct KernelSum {
    name: String,
    launches: u64,
    us: f64,
    early_us: f64,
}

#[derive(Default)]
pub(super) struct OperationSum {
    name: String,
    times: u64,
    us: f64,
    bytes: f64,
    flops: f64,
    floor_us: Option<f64>,
    kernels: Vec<KernelSum>,
}

/// Differences, as a sum, a sum of squares and a count.
#[derive(Default)]
pub(super) struct Differences {
    pub(super) count: u64,
    pub(super) us: f64,
    pub(super) squares: f64,
    pub(super) untimed_us: f64,
}

pub(super) struct BucketSum {
    pub(super) kind: StepKind,
    pub(super) bucket: u32,
    pub(super) steps: u64,
    pub(super) rows: u64,
    pub(super) step_us: f64,
    pub(super) kernels_us: f64,
    pub(super) handover_us: f64,
    pub(super) differences: Differences,
    pub(super) operations: Vec<OperationSum>,
}

pub(super) fn entry<T>(
    all: &mut Vec<T>,
    is: impl Fn(&T) -> bool,
    new: impl FnOnce() -> T,
) -> &mut T {
    let at = all.iter().position(is).unwrap_or_else(|| {
        all.push(new());
        all.len() - 1
    });
    &mut all[at]
}

/// Three digits after the point are what anyone reads.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl BucketSum {
    pub(super) fn stage(&mut self, times: &StepTimes, least: &[Least]) {
        let Some(first) = times.at.first() else {
            return;
        };
        self.kernels_us += (times.end_ns - first.ready_ns) as f64 / 1e3;
        let ends = times.at[1..].iter().map(|next| next.ready_ns);
        let ends = ends.chain([times.end_ns]);
        let parts = times.parts.iter().zip(&times.at).zip(ends).zip(least);
        for (((part, at), end_ns), least) in parts {
            let us = (end_ns - at.ready_ns) as f64 / 1e3;
            let name = part.operation();
            let operation = entry(
                &mut self.operations,
                |sum| sum.name == name,
                || OperationSum {
                    name: name.clone(),
                    ..OperationSum::default()
                },
            );
            operation.us += us;
            if part.index == 0 {
                operation.times += 1;
                operation.bytes += least.bytes;
                operation.flops += least.flops;
                let floor_us = operation.floor_us.unwrap_or(0.0);
                operation.floor_us = least.floor_us.map(|us| floor_us + us);
            }
            if let Some(launch) = &part.kernel {
                let kernel = entry(
                    &mut operation.kernels,
                    |sum| sum.name == launch.name,
                    || KernelSum {
                        name: launch.name.clone(),
                        ..KernelSum::default()
                    },
                );
                kernel.launches += 1;
                kernel.us += us;
                kernel.early_us += (at.ready_ns - at.waits_ns) as f64 / 1e3;
            }
        }
    }

    pub(super) fn finish(&self) -> Option<Bucket> {
        if self.steps == 0 {
            return None;
        }
        let steps = self.steps as f64;
        let operation = |sum: &OperationSum| Operation {
            operation: sum.name.clone(),
            per_step: rounded(sum.times as f64 / steps),
            us_each: rounded(sum.us / sum.times as f64),
            us_per_step: rounded(sum.us / steps),
            bytes_per_step: (sum.bytes / steps).round(),
            flops_per_step: (sum.flops / steps).round(),
            floor_us_per_step: sum.floor_us.map(|us| rounded(us / steps)),
            fraction: sum.floor_us.map(|us| rounded(us / sum.us)),
            kernels: sum.kernels.iter().map(|k| k.finish(steps)).collect(),
        };
        Some(Bucket {
            kind: self.kind.name().to_owned(),
            bucket: self.bucket,
            steps: self.steps,
            rows: rounded(self.rows as f64 / steps),
            step_us: rounded(self.step_us / steps),
            kernels_us: rounded(self.kernels_us / steps),
            handover_us: rounded(self.handover_us / steps),
            overhead: self.differences.finish(),
            operations: self.operations.iter().map(operation).collect(),
        })
    }
}

impl KernelSum {
    fn finish(&self, steps: f64) -> Kernel {
        let launches = self.launches as f64;
        Kernel {
            kernel: self.name.clone(),
            per_step: rounded(launches / steps),
            us_each: rounded(self.us / launches),
            early_us: rounded(self.early_us / launches),
        }
    }
}

impl Differences {
    fn finish(&self) -> Option<Overhead> {
        if self.count < FEWEST_UNTIMED {
            return None;
        }
        let count = self.count as f64;
        let mean = self.us / count;
        let variance = (self.squares - count * mean * mean).max(0.0) / (count - 1.0);
        Some(Overhead {
            untimed_steps: self.count,
            us: rounded(mean),
            us_error: rounded((variance / count).sqrt()),
            share: (mean / (self.untimed_us / count) * 1e5).round() / 1e5,
        })
    }
}
