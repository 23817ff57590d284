//! Sums over the kernels of all timed steps, and what timing them costs.

mod sums;

use super::kernels::{Bucket, Kernels, Roofline};
use crate::backend::timing::StepTimes;
use crate::plan::StepKind;
use std::collections::VecDeque;
use sums::{BucketSum, Differences, entry};

/// A step as its slice has it.
#[derive(Debug, Clone, Copy)]
pub struct Ran {
    pub step: u64,
    pub kind: StepKind,
    pub bucket: u32,
    pub rows: u32,
    pub from_ns: i128,
    pub to_ns: i128,
    /// Another one did not run beside it.
    pub alone: bool,
}

impl Ran {
    fn us(&self) -> f64 {
        (self.to_ns - self.from_ns) as f64 / 1e3
    }

    fn alike(&self, other: &Self) -> bool {
        (self.kind, self.bucket, self.rows) == (other.kind, other.bucket, other.rows)
            && self.alone
            && other.alone
    }
}

/// What the roofline says of a part's operations together.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Least {
    pub bytes: f64,
    pub flops: f64,
    pub floor_us: Option<f64>,
}

/// Sums in the making. It grows with the buckets and operations there are, not with the run.
#[derive(Default)]
pub struct Tally {
    steps: u64,
    buckets: Vec<BucketSum>,
    /// The last three steps, and whether they were timed.
    last: VecDeque<(Ran, bool)>,
}

impl Tally {
    fn bucket(&mut self, ran: &Ran) -> &mut BucketSum {
        let is = |sum: &BucketSum| (sum.kind, sum.bucket) == (ran.kind, ran.bucket);
        entry(&mut self.buckets, is, || BucketSum {
            kind: ran.kind,
            bucket: ran.bucket,
            steps: 0,
            rows: 0,
            step_us: 0.0,
            kernels_us: 0.0,
            handover_us: 0.0,
            differences: Differences::default(),
            operations: vec![],
        })
    }

    /// A step came back with the times of all its stages, whose clock is `add_ns` behind that of `ran`; none: it was left
    /// untimed. `least`: of each part, by stage.
    pub fn step(&mut self, ran: Ran, times: &[StepTimes], add_ns: i128, least: &[Vec<Least>]) {
        let timed = times.iter().any(|times| !times.at.is_empty());
        self.compare(ran, timed);
        if !timed {
            return;
        }
        self.steps += 1;
        let sum = self.bucket(&ran);
        sum.steps += 1;
        sum.rows += u64::from(ran.rows);
        sum.step_us += ran.us();
        let ends = times.iter().map(|times| times.end_ns).max();
        let end_ns = i128::from(ends.unwrap_or(0)) + add_ns;
        sum.handover_us += (ran.to_ns - end_ns) as f64 / 1e3;
        for (times, least) in times.iter().zip(least) {
            sum.stage(times, least);
        }
    }

    /// An untimed step between two timed ones shows what timing costs.
    fn compare(&mut self, ran: Ran, timed: bool) {
        self.last.push_back((ran, timed));
        if self.last.len() > 3 {
            self.last.pop_front();
        }
        let [before, between, after] = self.last.make_contiguous() else {
            return;
        };
        let ((before, true), (between, false), (after, true)) = (*before, *between, *after) else {
            return;
        };
        let follow = before.step + 1 == between.step && between.step + 1 == after.step;
        if !follow || !before.alike(&between) || !between.alike(&after) {
            return;
        }
        let difference = (before.us() + after.us()) / 2.0 - between.us();
        let sum = &mut self.bucket(&between).differences;
        sum.count += 1;
        sum.us += difference;
        sum.squares += difference * difference;
        sum.untimed_us += between.us();
    }

    /// All of it, for the file.
    pub fn finish(
        &self,
        untimed_every: u64,
        lost: u64,
        floor: Option<(String, Roofline)>,
    ) -> Kernels {
        let (floor, roofline) = floor.unzip();
        let mut buckets: Vec<Bucket> = self.buckets.iter().filter_map(BucketSum::finish).collect();
        let order = |bucket: &Bucket| {
            let kind = StepKind::ALL
                .iter()
                .position(|kind| kind.name() == bucket.kind);
            (kind, bucket.bucket)
        };
        buckets.sort_by_key(order);
        Kernels {
            steps: self.steps,
            untimed_every,
            lost,
            floor,
            roofline,
            buckets,
        }
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
            floor_us: Some(3.0),
        };
        vec![vec![one; 6]]
    }

    #[test]
    fn operations_and_their_kernels_add_up() {
        let mut tally = Tally::default();
        for number in 0..4 {
            tally.step(ran(number, 0), &[times(number)], 500, &least());
        }
        let found = tally.finish(8, 0, None);
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

    #[test]
    fn untimed_steps_show_what_timing_costs() {
        let mut tally = Tally::default();
        for number in 0..16 {
            let timed = number % 4 != 3;
            let times: Vec<_> = timed.then(|| times(number)).into_iter().collect();
            let least = if timed { least() } else { vec![] };
            // Steps get longer as the run goes on, whether timed or not.
            let more_us = 2 * u64::from(timed) + number;
            tally.step(ran(number, more_us), &times, 500, &least);
        }
        let overhead = tally.finish(4, 0, None).buckets[0]
            .overhead
            .clone()
            .unwrap();
        assert_eq!((overhead.untimed_steps, overhead.us), (3, 2.0));
        assert_eq!(overhead.us_error, 0.0);
        assert_eq!(overhead.share, (2.0_f64 / 107.0 * 1e5).round() / 1e5);
    }

    #[test]
    fn steps_that_are_not_alike_are_not_compared() {
        let mut tally = Tally::default();
        for number in 0..40 {
            let timed = number % 4 != 3;
            let times: Vec<_> = timed.then(|| times(number)).into_iter().collect();
            let rows = if timed { 5 } else { 4 };
            let ran = Ran {
                rows,
                ..ran(number, 0)
            };
            tally.step(ran, &times, 500, &least());
        }
        assert_eq!(tally.finish(4, 0, None).buckets[0].overhead, None);
    }
}
