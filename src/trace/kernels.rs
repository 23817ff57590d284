//! What the kernels of a run came to, by bucket and operation: `kernels` of a trace's `otherData`. Until the run's end its means
//! are sums over all steps, which grow with the buckets and operations there are, not with the run.

use super::step::{Flying, rounded};
use crate::backend::cuda::tuning::gpu::{Least, Rates};
use crate::backend::timing::{Part, StepTimes};
use serde::{Deserialize, Serialize};

/// All timed steps of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernels {
    /// Steps whose kernels are in the file; the others were left untimed.
    pub steps: u64,
    /// Steps whose times were not read soon enough: they are not in the file.
    pub lost: u64,
    /// What floors are by; `None`: nothing is known of the device, and there are none.
    pub floor: Option<String>,
    /// The roofline that floors are by; `None` as there.
    pub roofline: Option<Roofline>,
    pub buckets: Vec<Bucket>,
}

/// What bounds a device: a line that rises with the FLOPs a byte up to the ridge, and is flat behind it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    pub bytes_per_s: f64,
    /// The rate of the run's type of products.
    pub flops_per_s: Option<f64>,
}

/// Steps of one kind and bucket.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Bucket {
    pub kind: String,
    /// Rows.
    pub bucket: u32,
    /// Timed ones; what follows is their means.
    pub steps: u64,
    pub rows: f64,
    /// The mean of the steps' slices.
    pub step_us: f64,
    /// From when the first kernel was ready until the last had ended; of several stages, all of them.
    pub kernels_us: f64,
    /// From the end of the last kernel to the turn that collected the step, handing over the times included.
    pub handover_us: f64,
    /// Steps that were left untimed, and the mean of their slices: less than `step_us` by what timing adds.
    pub untimed_steps: u64,
    pub untimed_step_us: Option<f64>,
    pub operations: Vec<Operation>,
}

/// An operation, over all layers that have it; operations that are done by the same kernels are one.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    pub operation: String,
    /// How often a step has it.
    pub per_step: f64,
    pub us_each: f64,
    pub us_per_step: f64,
    /// What has to come from memory, as the plan counts: every sequence at the mean context, routing even.
    pub bytes_per_step: f64,
    /// Floating-point operations by the plan.
    pub flops_per_step: f64,
    pub floor_us_per_step: Option<f64>,
    /// Floor over time.
    pub fraction: Option<f64>,
    /// The kernels that do it; none on the CPU.
    pub kernels: Vec<Kernel>,
}

/// Launches of one kernel for one operation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernel {
    pub kernel: String,
    pub per_step: f64,
    pub us_each: f64,
    /// How long before its turn it stood ready on an SM, on average.
    pub early_us: f64,
}

impl Operation {
    /// FLOPs a byte; `None` where nothing has to come from memory.
    pub fn intensity(&self) -> Option<f64> {
        (self.bytes_per_step > 0.0).then(|| self.flops_per_step / self.bytes_per_step)
    }

    /// FLOPs a second that were reached, and bytes a second of those that have to come.
    pub fn rates(&self) -> [f64; 2] {
        [self.flops_per_step, self.bytes_per_step].map(|amount| amount / self.us_per_step * 1e6)
    }
}

/// The element of `all` that `is` says, made where there is none.
fn entry<T: Default>(all: &mut Vec<T>, is: impl Fn(&T) -> bool) -> &mut T {
    let at = all.iter().position(is).unwrap_or(all.len());
    if at == all.len() {
        all.push(T::default());
    }
    &mut all[at]
}

impl Kernels {
    /// `rates`: what is known of the device.
    pub(super) fn new(rates: Option<&Rates>) -> Self {
        Self {
            floor: rates.map(|rates| {
                format!(
                    "{}; bytes as the plan counts them, every sequence at the mean context, routing even",
                    rates.source
                )
            }),
            roofline: rates.map(|rates| Roofline {
                bytes_per_s: rates.bytes_per_s,
                flops_per_s: rates.flops_per_s,
            }),
            ..Self::default()
        }
    }

    /// A step that took from `from_ns` to `to_ns` came back with the times of all its stages, whose clock is `add_ns` behind. The
    /// sums that its parts go to; `None`: it was left untimed.
    pub(super) fn step(
        &mut self,
        step: &Flying,
        (from_ns, to_ns): (i128, i128),
        times: &[StepTimes],
        add_ns: i128,
    ) -> Option<&mut Bucket> {
        let (kind, bucket) = (step.shape.kind.name(), step.args.bucket);
        let is = |sum: &Bucket| sum.kind == kind && sum.bucket == bucket;
        let sum = entry(&mut self.buckets, is);
        sum.kind = kind.to_owned();
        sum.bucket = bucket;
        let step_us = (to_ns - from_ns) as f64 / 1e3;
        if times.iter().all(|times| times.at.is_empty()) {
            sum.untimed_steps += 1;
            *sum.untimed_step_us.get_or_insert(0.0) += step_us;
            return None;
        }
        self.steps += 1;
        sum.steps += 1;
        sum.rows += f64::from(step.args.rows);
        sum.step_us += step_us;
        let ends = times.iter().map(|times| times.end_ns).max();
        let end_ns = i128::from(ends.unwrap_or(0)) + add_ns;
        sum.handover_us += (to_ns - end_ns) as f64 / 1e3;
        for times in times {
            if let Some(first) = times.at.first() {
                sum.kernels_us += (times.end_ns - first.ready_ns) as f64 / 1e3;
            }
        }
        Some(sum)
    }

    /// The means of what has been sums.
    pub(super) fn means(mut self) -> Self {
        self.buckets.retain(|sum| sum.steps > 0);
        // The kinds' names stand in the order of the kinds.
        self.buckets
            .sort_by(|a, b| (&a.kind, a.bucket).cmp(&(&b.kind, b.bucket)));
        for bucket in &mut self.buckets {
            bucket.means(self.roofline.is_some());
        }
        self
    }
}

impl Bucket {
    /// A part of a timed step, which took `us`.
    pub(super) fn part(&mut self, part: &Part, us: f64, early_us: f64, least: &Least) {
        let name = part.operation();
        let sum = entry(&mut self.operations, |of| of.operation == name);
        sum.us_per_step += us;
        if part.index == 0 {
            sum.per_step += 1.0;
            sum.bytes_per_step += least.bytes;
            sum.flops_per_step += least.flops;
            *sum.floor_us_per_step.get_or_insert(0.0) += least.us();
        }
        if let Some(launch) = &part.kernel {
            let kernel = entry(&mut sum.kernels, |of| of.kernel == launch.name);
            kernel.per_step += 1.0;
            kernel.us_each += us;
            kernel.early_us += early_us;
            kernel.kernel.clone_from(&launch.name);
        }
        sum.operation = name;
    }

    /// `floors`: something is known of the device.
    fn means(&mut self, floors: bool) {
        let steps = self.steps as f64;
        for of in [
            &mut self.rows,
            &mut self.step_us,
            &mut self.kernels_us,
            &mut self.handover_us,
        ] {
            *of = rounded(*of / steps);
        }
        let untimed = self.untimed_steps as f64;
        self.untimed_step_us = self.untimed_step_us.map(|us| rounded(us / untimed));
        for sum in &mut self.operations {
            sum.us_each = rounded(sum.us_per_step / sum.per_step);
            let floor_us = sum.floor_us_per_step.filter(|_| floors);
            sum.fraction = floor_us.map(|us| rounded(us / sum.us_per_step));
            sum.floor_us_per_step = floor_us.map(|us| rounded(us / steps));
            sum.us_per_step = rounded(sum.us_per_step / steps);
            sum.per_step = rounded(sum.per_step / steps);
            sum.bytes_per_step = (sum.bytes_per_step / steps).round();
            sum.flops_per_step = (sum.flops_per_step / steps).round();
            for kernel in &mut sum.kernels {
                kernel.us_each = rounded(kernel.us_each / kernel.per_step);
                kernel.early_us = rounded(kernel.early_us / kernel.per_step);
                kernel.per_step = rounded(kernel.per_step / steps);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::timing::{KernelLaunch, PartTime};
    use crate::plan::{Op, OpKind, StepKind, StepShape};
    use crate::trace::step::StepArgs;
    use serde_json::json;

    fn part(kind: OpKind, name: &str, index: u32, count: u32) -> Part {
        Part {
            ops: vec![Op {
                layer: Some(0),
                kind,
            }],
            index,
            count,
            kernel: Some(KernelLaunch {
                name: name.to_owned(),
                grid: (1, 1, 1),
                threads: 32,
            }),
        }
    }

    #[test]
    fn operations_and_their_kernels_add_up() {
        let step = Flying {
            shape: StepShape {
                kind: StepKind::Decode,
                rows: 5,
                context: 1,
            },
            composed_ns: 0,
            args: StepArgs {
                bucket: 8,
                rows: 5,
                ..StepArgs::default()
            },
        };
        let parts = [
            (part(OpKind::Router, "scores", 0, 2), 10.0),
            (part(OpKind::Router, "sort", 1, 2), 5.0),
            (part(OpKind::ExpertDown, "down", 0, 1), 20.0),
        ];
        // From 3 to 73 us of a step of 100, by a clock that is half a microsecond behind.
        let times = StepTimes {
            at: vec![PartTime {
                waits_ns: 500,
                ready_ns: 2500,
            }],
            end_ns: 72_500,
            ..StepTimes::default()
        };
        let least = Least {
            bytes: 1000.0,
            flops: 50.0,
            memory_us: 3.0,
            compute_us: 0.0,
        };
        let mut kernels = Kernels::new(Some(&Rates::unlimited()));
        for _ in 0..4 {
            let times = std::slice::from_ref(&times);
            let sum = kernels.step(&step, (0, 100_000), times, 500).unwrap();
            // Two layers.
            for (part, us) in parts.iter().chain(&parts) {
                sum.part(part, *us, 2.0, &least);
            }
        }
        assert!(kernels.step(&step, (0, 98_000), &[], 500).is_none());
        let found = serde_json::to_value(kernels.means()).unwrap();
        // An operation's floor counts once, however many kernels it has; times between turns are by the scheduler's clock.
        let expected = json!([{
            "kind": "decode", "bucket": 8, "steps": 4, "rows": 5.0, "step_us": 100.0, "kernels_us": 70.0, "handover_us": 27.0,
            "untimed_steps": 1, "untimed_step_us": 98.0,
            "operations": [
                {
                    "operation": "router", "per_step": 2.0, "us_each": 15.0, "us_per_step": 30.0, "bytes_per_step": 2000.0,
                    "flops_per_step": 100.0, "floor_us_per_step": 6.0, "fraction": 0.2,
                    "kernels": [
                        {"kernel": "scores", "per_step": 2.0, "us_each": 10.0, "early_us": 2.0},
                        {"kernel": "sort", "per_step": 2.0, "us_each": 5.0, "early_us": 2.0},
                    ],
                },
                {
                    "operation": "expert_down", "per_step": 2.0, "us_each": 20.0, "us_per_step": 40.0, "bytes_per_step": 2000.0,
                    "flops_per_step": 100.0, "floor_us_per_step": 6.0, "fraction": 0.15,
                    "kernels": [{"kernel": "down", "per_step": 2.0, "us_each": 20.0, "early_us": 2.0}],
                },
            ],
        }]);
        assert_eq!((&found["steps"], &found["buckets"]), (&json!(4), &expected));
    }
}
