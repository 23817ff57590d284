//! What the kernels of a run came to, by bucket and operation: `kernels` of a trace's `otherData`, and the sums that become it.

use crate::backend::cuda::tuning::gpu::Least;
use crate::backend::timing::{StepTimes, UNTIMED_EVERY};
use crate::plan::StepKind;
use serde::{Deserialize, Serialize};

/// Fewer untimed steps than this say nothing.
const FEWEST_UNTIMED: u64 = 3;

/// All timed steps of a run.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Kernels {
    /// Steps whose kernels are in the file; the others were left untimed.
    pub steps: u64,
    /// Of so many steps the last was left untimed.
    pub untimed_every: u64,
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
    /// Of the run's type of products.
    pub flops_per_s: f64,
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
    /// As the step's slice has it.
    pub step_us: f64,
    /// From when the first kernel was ready until the last had ended; of several stages, all of them.
    pub kernels_us: f64,
    /// From the end of the last kernel to the turn that collected the step, handing over the times included.
    pub handover_us: f64,
    /// What timing adds to a step; `None` where too few untimed steps stand between timed ones of as many rows.
    pub overhead: Option<Overhead>,
    pub operations: Vec<Operation>,
}

/// Untimed steps, each against the mean of the timed steps before and after it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Overhead {
    pub untimed_steps: u64,
    pub us: f64,
    /// Standard error of `us`.
    pub us_error: f64,
    /// `us` over the mean of the untimed steps.
    pub share: f64,
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
    /// As the plan counts.
    pub flops_per_step: f64,
    pub floor_us_per_step: Option<f64>,
    /// Floor over time.
    pub fraction: Option<f64>,
    /// None on the CPU.
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

    /// FLOPs a second that were reached.
    pub fn flops_per_s(&self) -> Option<f64> {
        self.a_second(self.flops_per_step)
    }

    /// Bytes a second that were reached, of those that have to come.
    pub fn bytes_per_s(&self) -> Option<f64> {
        self.a_second(self.bytes_per_step)
    }

    fn a_second(&self, amount: f64) -> Option<f64> {
        (self.us_per_step > 0.0).then(|| amount / self.us_per_step * 1e6)
    }
}

/// A step as its slice has it.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    pub step: u64,
    pub kind: StepKind,
    pub bucket: u32,
    pub rows: u32,
    /// Positions of a sequence once the step is done, on average.
    pub context: u32,
    /// The end of the turn that composed it.
    pub composed_ns: i128,
    pub from_ns: i128,
    pub to_ns: i128,
    /// Another one did not run beside it.
    pub alone: bool,
}

impl Ran {
    fn us(&self) -> f64 {
        (self.to_ns - self.from_ns) as f64 / 1e3
    }

    /// Whether `next` follows it and does as much.
    fn alike(&self, next: &Self) -> bool {
        let of = |ran: &Self| (ran.kind, ran.bucket, ran.rows, ran.alone);
        self.alone && self.step + 1 == next.step && of(self) == of(next)
    }
}

/// Sums in the making. It grows with the buckets and operations there are, not with the run.
#[derive(Default)]
pub struct Tally {
    /// Until the end its means are sums over all steps.
    sums: Vec<(Bucket, Differences)>,
    /// The last two steps, and whether they were timed.
    last: [Option<(Ran, bool)>; 2],
}

/// How much longer timed steps took than untimed ones, as a sum, a sum of squares and a count.
#[derive(Debug, Default)]
struct Differences {
    count: u64,
    us: f64,
    squares: f64,
    untimed_us: f64,
}

/// The element of `all` that `is` says, made where there is none.
fn entry<T>(all: &mut Vec<T>, is: impl Fn(&T) -> bool, new: impl FnOnce() -> T) -> &mut T {
    let at = all.iter().position(is).unwrap_or_else(|| {
        all.push(new());
        all.len() - 1
    });
    &mut all[at]
}

/// Three digits after the point are what anyone reads.
pub(super) fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

impl Tally {
    fn bucket(&mut self, ran: &Ran) -> &mut (Bucket, Differences) {
        let kind = ran.kind.name();
        let is = |(sum, _): &(Bucket, _)| sum.kind == kind && sum.bucket == ran.bucket;
        entry(&mut self.sums, is, || {
            let sum = Bucket {
                kind: kind.to_owned(),
                bucket: ran.bucket,
                ..Bucket::default()
            };
            (sum, Differences::default())
        })
    }

    /// A step came back with the times of all its stages, whose clock is `add_ns` behind that of `ran`; none: it was left
    /// untimed. `least`: of each part, by stage; `floors`: it has times.
    pub fn step(
        &mut self,
        ran: Ran,
        times: &[StepTimes],
        add_ns: i128,
        least: &[Vec<Least>],
        floors: bool,
    ) {
        let timed = times.iter().any(|times| !times.at.is_empty());
        self.compare(ran, timed);
        if !timed {
            return;
        }
        let (sum, _) = self.bucket(&ran);
        sum.steps += 1;
        sum.rows += f64::from(ran.rows);
        sum.step_us += ran.us();
        let ends = times.iter().map(|times| times.end_ns).max();
        let end_ns = i128::from(ends.unwrap_or(0)) + add_ns;
        sum.handover_us += (ran.to_ns - end_ns) as f64 / 1e3;
        for (times, least) in times.iter().zip(least) {
            sum.add(times, least, floors);
        }
    }

    /// An untimed step between two timed ones shows what timing costs.
    fn compare(&mut self, after: Ran, timed: bool) {
        let [before, between] = self.last;
        self.last = [between, Some((after, timed))];
        let (Some((before, true)), Some((between, false)), true) = (before, between, timed) else {
            return;
        };
        if !before.alike(&between) || !between.alike(&after) {
            return;
        }
        let difference = (before.us() + after.us()) / 2.0 - between.us();
        let (_, sum) = self.bucket(&between);
        sum.count += 1;
        sum.us += difference;
        sum.squares += difference * difference;
        sum.untimed_us += between.us();
    }

    /// All of it, for the file.
    pub fn finish(mut self, lost: u64, floor: Option<(String, Roofline)>) -> Kernels {
        let (floor, roofline) = floor.unzip();
        self.sums.retain(|(sum, _)| sum.steps > 0);
        // The kinds' names stand in the order of the kinds.
        self.sums
            .sort_by(|(a, _), (b, _)| (&a.kind, a.bucket).cmp(&(&b.kind, b.bucket)));
        let buckets = self.sums.into_iter();
        let buckets: Vec<Bucket> = buckets.map(|(sum, of)| sum.means(&of)).collect();
        Kernels {
            steps: buckets.iter().map(|bucket| bucket.steps).sum(),
            untimed_every: UNTIMED_EVERY,
            lost,
            floor,
            roofline,
            buckets,
        }
    }
}

impl Bucket {
    fn add(&mut self, times: &StepTimes, least: &[Least], floors: bool) {
        let Some(first) = times.at.first() else {
            return;
        };
        self.kernels_us += (times.end_ns - first.ready_ns) as f64 / 1e3;
        let parts = times.parts.iter().zip(times.spans()).zip(least);
        for ((part, (at, end_ns)), least) in parts {
            let us = (end_ns - at.ready_ns) as f64 / 1e3;
            let name = part.operation();
            let operations = &mut self.operations;
            let sum = entry(operations, |of| of.operation == name, Operation::default);
            sum.us_per_step += us;
            if part.index == 0 {
                sum.per_step += 1.0;
                sum.bytes_per_step += least.bytes;
                sum.flops_per_step += least.flops;
                let floor_us = sum.floor_us_per_step.unwrap_or(0.0) + least.us();
                sum.floor_us_per_step = floors.then_some(floor_us);
            }
            if let Some(launch) = &part.kernel {
                let is = |of: &Kernel| of.kernel == launch.name;
                let kernel = entry(&mut sum.kernels, is, Kernel::default);
                kernel.per_step += 1.0;
                kernel.us_each += us;
                kernel.early_us += (at.ready_ns - at.waits_ns) as f64 / 1e3;
                kernel.kernel.clone_from(&launch.name);
            }
            sum.operation = name;
        }
    }

    /// The means of what has been sums.
    fn means(mut self, differences: &Differences) -> Self {
        let steps = self.steps as f64;
        for of in [&mut self.rows, &mut self.step_us, &mut self.kernels_us] {
            *of = rounded(*of / steps);
        }
        self.handover_us = rounded(self.handover_us / steps);
        self.overhead = differences.mean();
        for sum in &mut self.operations {
            sum.us_each = rounded(sum.us_per_step / sum.per_step);
            sum.fraction = sum
                .floor_us_per_step
                .map(|us| rounded(us / sum.us_per_step));
            sum.floor_us_per_step = sum.floor_us_per_step.map(|us| rounded(us / steps));
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
        self
    }
}

impl Differences {
    fn mean(&self) -> Option<Overhead> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::timing::{KernelLaunch, Part, PartTime};
    use crate::plan::{Op, OpKind};
    use std::sync::Arc;

    /// A step of 100 us that begins at `number` ms, `more_us` longer where it is timed.
    fn ran(number: u64, more_us: u64) -> Ran {
        let from_ns = i128::from(number) * 1_000_000;
        Ran {
            step: number,
            kind: StepKind::Decode,
            bucket: 8,
            rows: 5,
            context: 1,
            composed_ns: from_ns,
            from_ns,
            to_ns: from_ns + 100_000 + i128::from(more_us) * 1000,
            alone: true,
        }
    }

    /// Two layers of a router of two kernels, 10 and 5 us, and one of experts that takes 20; kernels begin 2 us early.
    fn times(number: u64) -> StepTimes {
        let part = |kind, name: &str, index, count| Part {
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
        };
        let layer = [
            part(OpKind::Router, "scores", 0, 2),
            part(OpKind::Router, "sort", 1, 2),
            part(OpKind::ExpertDown, "down", 0, 1),
        ];
        let start_ns = number * 1_000_000 + 3000 - 500;
        let ready = [0, 10, 15, 35, 45, 50].map(|us| start_ns + us * 1000);
        StepTimes {
            stage: 0,
            step: number,
            parts: Arc::from([&layer[..], &layer[..]].concat()),
            at: ready
                .map(|ready_ns| PartTime {
                    waits_ns: ready_ns - 2000,
                    ready_ns,
                })
                .to_vec(),
            end_ns: start_ns + 70_000,
        }
    }

    fn least() -> Vec<Vec<Least>> {
        let one = Least {
            bytes: 1000.0,
            flops: 50.0,
            memory_us: 3.0,
            compute_us: 0.0,
        };
        vec![vec![one; 6]]
    }

    #[test]
    fn operations_and_their_kernels_add_up() {
        let mut tally = Tally::default();
        for number in 0..4 {
            tally.step(ran(number, 0), &[times(number)], 500, &least(), true);
        }
        let found = tally.finish(0, None);
        assert_eq!((found.steps, found.buckets.len()), (4, 1));
        let bucket = &found.buckets[0];
        assert_eq!((bucket.kind.as_str(), bucket.bucket), ("decode", 8));
        assert_eq!((bucket.step_us, bucket.kernels_us), (100.0, 70.0));
        assert_eq!(bucket.handover_us, 27.0, "by the scheduler's clock");
        let [router, down] = &bucket.operations[..] else {
            panic!("{bucket:?}")
        };
        assert_eq!((router.per_step, router.us_each), (2.0, 15.0));
        assert_eq!((down.us_per_step, down.bytes_per_step), (40.0, 2000.0));
        assert_eq!(down.intensity(), Some(0.05));
        assert_eq!(
            (down.flops_per_s(), down.bytes_per_s()),
            (Some(2.5e6), Some(5e7))
        );
        assert_eq!(
            (router.floor_us_per_step, router.fraction),
            (Some(6.0), Some(0.2)),
            "an operation's floor counts once, however many kernels it has"
        );
        let kernels: Vec<_> = router
            .kernels
            .iter()
            .map(|k| (k.kernel.as_str(), k.per_step, k.us_each, k.early_us))
            .collect();
        assert_eq!(
            kernels,
            [("scores", 2.0, 10.0, 2.0), ("sort", 2.0, 5.0, 2.0)]
        );
        assert_eq!(bucket.overhead, None, "no step was left untimed");
    }

    /// What timing costs by 16 steps that get longer as the run goes on, of which every fourth is untimed.
    fn overhead(untimed_rows: u32) -> Option<Overhead> {
        let mut tally = Tally::default();
        for number in 0..16 {
            let timed = number % 4 != 3;
            let times: Vec<_> = timed.then(|| times(number)).into_iter().collect();
            let ran = Ran {
                rows: if timed { 5 } else { untimed_rows },
                ..ran(number, 2 * u64::from(timed) + number)
            };
            tally.step(ran, &times, 500, &least(), true);
        }
        tally.finish(0, None).buckets.remove(0).overhead
    }

    #[test]
    fn untimed_steps_show_what_timing_costs() {
        let found = overhead(5).unwrap();
        assert_eq!(
            (found.untimed_steps, found.us, found.us_error),
            (3, 2.0, 0.0)
        );
        assert_eq!(found.share, (2.0_f64 / 107.0 * 1e5).round() / 1e5);
        assert_eq!(
            overhead(4),
            None,
            "steps that are not alike are not compared"
        );
    }
}
