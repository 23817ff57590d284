//! What each way to launch adds to the bare graph, and what of it is launching, gaps and the scheduler. Steps are held
//! against each other kernel by kernel, by the stamps that their kernels leave (`kernels/common/stamps.cuh`), in runs apart
//! from those that are timed.
//!
//! A step lasts from one turn of the scheduler to the next, by the scheduler's clock. The bare graph runs a step once, and then
//! again and again in a row; a step's time there is that of the row. Against it
//! - `first_run` is what kernels of the bare graph took longer as the step ran for the first time: predictions of experts are
//!   right and caches warm where a step is repeated;
//! - `gap` is what kernels took longer, against that first run, whose successor came only after they had ended: the GPU had
//!   nothing to do. Kernels that the host launches one by one are never as close together as in a graph: for these it is also
//!   the median, over steps, of what each one took longer;
//! - `kernels` is what the others took longer, or less long, although their successor stood ready: they are the same kernels,
//!   so what differs is the state of the caches and the clocks, which a GPU at its power limit lowers;
//! - `scheduler` is the turn that composed the next step, as far as it lies between the two steps;
//! - `launch` is what else lies between them;
//! - `unexplained` is what the scheduler's clock has beyond all of these, which are by the stamps.

use super::drive;
use super::stats::{sorted, summary};
use super::workload::Arrival;
use crate::backend::LaunchWay;
use crate::backend::timing::{PartTime, StepClock, StepTimes};
use crate::error::{Error, Result};
use crate::model::fingerprint;
use crate::plan::StepKind;
use crate::runtime::Engine;
use crate::sys::abi;
#[cfg(test)]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Runs of each point: the spread between them is what can be told apart.
pub const RUNS: u64 = 3;
/// A kernel that waited for less than this found the kernels before it ended.
const LATE_NS: u64 = 1000;
/// A step's launches in the order of [`super::bare`]: one by the engine and two that prepare the row come first, and one that
/// puts the step right comes last.
const BEFORE_ROW: usize = 3;
const AFTER_ROW: usize = 1;

/// What a way adds to the bare graph in a decode step, in microseconds: means of the steps of all runs. Null where no
/// bare graph was measured beside it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(JsonSchema))]
pub struct OverBare {
    /// What a step takes by the scheduler's clock beyond the bare graph's, and so the sum of the six below.
    pub over_bare_us: Option<f64>,
    pub over_bare_launch_us: Option<f64>,
    pub over_bare_gap_us: Option<f64>,
    pub over_bare_scheduler_us: Option<f64>,
    pub over_bare_first_run_us: Option<f64>,
    pub over_bare_kernels_us: Option<f64>,
    pub over_bare_unexplained_us: Option<f64>,
    /// Between the means of runs, the largest less the smallest.
    pub over_bare_spread_us: Option<f64>,
    /// Whether `over_bare_us` is larger than its spread.
    pub over_bare_measurable: Option<bool>,
    pub over_bare_steps: Option<usize>,
    /// SHA-256 of the kernel calls of a step in their order: kernels, grids, threads and operations.
    pub calls_sha256: Option<String>,
}

/// A step and how long it was until the next one; of the bare graph its first run.
#[derive(Debug, Clone, PartialEq)]
pub struct Lap {
    step: StepTimes,
    /// What each kernel took in the row, on average; of the bare graph alone.
    row_ns: Vec<f64>,
    /// From the last kernel's end until the next step's first kernel could begin.
    between_ns: f64,
    /// The scheduler's turn, as a part of that.
    turn_ns: f64,
    /// From the turn that composed the step to the next one; of the bare graph what a step of the row took.
    period_ns: f64,
}

/// A step against the bare graph's.
struct Against<'a> {
    lap: &'a Lap,
    bare: &'a Lap,
    first_run_ns: f64,
    /// What each kernel took longer than in the first run.
    longer_ns: Vec<f64>,
}

impl Lap {
    fn against<'a>(&'a self, bare: &'a Self) -> Option<Against<'a>> {
        if self.step.at.len() != bare.step.at.len() {
            return None;
        }
        let (took_ns, first_ns) = (took_ns(&self.step), took_ns(&bare.step));
        let kernels = took_ns.iter().zip(&first_ns);
        Some(Against {
            lap: self,
            bare,
            first_run_ns: first_ns.iter().sum::<f64>() - bare.row_ns.iter().sum::<f64>(),
            longer_ns: kernels.map(|(took, first)| took - first).collect(),
        })
    }

    /// Whether each kernel's successor came when it had ended.
    fn idle_after(&self) -> impl Iterator<Item = bool> {
        let later = self.step.at.iter().skip(1);
        let late = later.map(|next| next.ready_ns - next.waits_ns < LATE_NS);
        late.chain([false])
    }
}

/// What each kernel took until its successor could begin or, of the last one, until its end.
fn took_ns(step: &StepTimes) -> Vec<f64> {
    let took = |(at, end_ns): (&PartTime, u64)| end_ns as f64 - at.ready_ns as f64;
    step.spans().map(took).collect()
}

/// From the end of a step's last kernel until the first one of the next could begin.
fn between_ns(step: &StepTimes, next: &StepTimes) -> f64 {
    next.at[0].ready_ns as f64 - step.end_ns as f64
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    Some(summary(&values.collect::<Vec<_>>())?.mean)
}

/// A run's decode steps of the whole batch, by their place in the run.
pub type Laps = BTreeMap<u64, Lap>;

/// What a stamped run came to.
pub struct Stamped {
    /// When the turn that composed each step of the kind and rows asked for began and ended, by the scheduler's clock and the
    /// step's place in the run.
    turns: BTreeMap<u64, (u64, u64)>,
    /// The kernels' times of all steps in the order in which they ran. Numbers are places in the run.
    times: Vec<StepTimes>,
}

impl Stamped {
    /// Runs `arrivals` on an engine whose kernels leave stamps, to look at steps of a kind and so many rows.
    ///
    /// # Errors
    /// [`drive::run`] failed, or stamps were lost.
    pub fn run(
        engine: &mut dyn Engine,
        clock: &mut dyn StepClock,
        arrivals: &[Arrival],
        beside: &drive::Beside<'_>,
        (kind, rows): (StepKind, u32),
    ) -> Result<Self> {
        let (mut turns, mut times, mut first) = (BTreeMap::new(), vec![], None);
        let mut read = || -> Result<()> {
            while let Some(step) = clock.next()? {
                times.push(step);
            }
            match clock.lost() {
                0 => Ok(()),
                lost => Err(Error::Runtime(format!(
                    "{lost} steps' stamps were lost: expected a host that reads 1,024 steps before they are written over"
                ))),
            }
        };
        let mut all_read = Ok(());
        drive::run(engine, arrivals, beside, &mut |record| {
            if all_read.is_ok() {
                all_read = read();
            }
            let outcome = &record.outcome;
            if outcome.action == abi::TG_ACTION_STEP {
                let first = *first.get_or_insert(outcome.step);
                if (outcome.kind, outcome.rows) == (kind as u32, rows) {
                    let turn = (record.inputs.now_ns, record.end_ns);
                    turns.insert(outcome.step - first, turn);
                }
            }
        })?;
        all_read.and_then(|()| read())?;
        let first = first.unwrap_or(0);
        // Those before it are of an earlier run.
        times.retain(|times| times.step >= first);
        times.iter_mut().for_each(|times| times.step -= first);
        Ok(Self { turns, times })
    }

    /// The steps of the kind and rows asked for, without those that were left untimed.
    pub fn steps(&self) -> impl Iterator<Item = &StepTimes> {
        let asked = |step| self.turns.contains_key(&step);
        let times = self.times.iter();
        times.filter(move |times| asked(times.step) && !times.at.is_empty())
    }

    /// Steps of `way`: those whose next one is asked for too.
    pub fn laps(&self, way: LaunchWay) -> Laps {
        let by_step: BTreeMap<u64, &StepTimes> = self.steps().map(|t| (t.step, t)).collect();
        let lap = |(&number, step): (&u64, &&StepTimes)| {
            let next = by_step.get(&(number + 1))?;
            let (composed_ns, _) = self.turns[&number];
            let (from_ns, to_ns) = self.turns[&(number + 1)];
            // A GPU that schedules itself tells both by one clock. The turn of a host that waits for each step lies between two
            // of them; that of one that runs ahead at most as far as there is room.
            let turn_ns = if way.is_device() {
                let to_ns = to_ns.min(next.at[0].ready_ns);
                to_ns.saturating_sub(from_ns.max(step.end_ns))
            } else {
                to_ns - from_ns
            };
            let lap = Lap {
                step: (*step).clone(),
                row_ns: vec![],
                between_ns: between_ns(step, next),
                turn_ns: turn_ns as f64,
                period_ns: from_ns as f64 - composed_ns as f64,
            };
            Some((number, lap))
        };
        by_step.iter().filter_map(lap).collect()
    }

    /// Steps of the bare graph.
    pub fn bare_laps(&self) -> Laps {
        let mut launches: BTreeMap<u64, Vec<&StepTimes>> = BTreeMap::new();
        for times in &self.times {
            launches.entry(times.step).or_default().push(times);
        }
        let lap = |(number, all): (u64, Vec<&StepTimes>)| {
            let row = all.get(BEFORE_ROW..all.len().checked_sub(AFTER_ROW)?)?;
            let timed = row.iter().chain(all.first()).all(|t| !t.at.is_empty());
            if !timed || !self.turns.contains_key(&number) {
                return None;
            }
            let between = row.windows(2).map(|pair| between_ns(pair[0], pair[1]));
            let in_row: Vec<_> = row.iter().map(|step| took_ns(step)).collect();
            let kernels = 0..in_row.iter().map(Vec::len).min()?;
            let of_kernel = |kernel: usize| mean(in_row.iter().map(|took_ns| took_ns[kernel]));
            let row_ns: Vec<f64> = kernels.map(of_kernel).collect::<Option<_>>()?;
            let between_ns = mean(between)?;
            let lap = Lap {
                step: all[0].clone(),
                period_ns: row_ns.iter().sum::<f64>() + between_ns,
                row_ns,
                between_ns,
                turn_ns: 0.0,
            };
            Some((number, lap))
        };
        launches.into_iter().filter_map(lap).collect()
    }

    /// [`OverBare::calls_sha256`] of a step that was asked for.
    pub fn calls_sha256(&self) -> Option<String> {
        let parts = self.steps().next()?.parts.iter();
        Some(fingerprint::of_parts(
            parts.map(|part| format!("{part:?}\n")),
        ))
    }
}

/// What the runs of `way` add to the bare graph's runs of the same requests; `None` where they have no step in common.
pub fn over_bare(way: LaunchWay, laps: &[Laps], bare: &[Laps]) -> Option<OverBare> {
    let runs = laps.iter().zip(bare).map(|(laps, bare)| {
        let both = laps.iter();
        both.filter_map(|(number, lap)| lap.against(bare.get(number)?))
            .collect()
    });
    let runs: Vec<Vec<Against<'_>>> = runs.collect();
    let mut usual_ns = vec![0.0; runs.iter().flatten().next()?.longer_ns.len()];
    if way == LaunchWay::HostKernels {
        for (kernel, usual_ns) in usual_ns.iter_mut().enumerate() {
            let steps = runs.iter().flatten();
            let each: Vec<f64> = steps.map(|step| step.longer_ns[kernel]).collect();
            *usual_ns = summary(&each)?.median;
        }
    }
    // A step's launch, gap, scheduler, first run, kernels, and what is left.
    let parts_us = |step: &Against<'_>| {
        let Against { lap, bare, .. } = step;
        let kernels = step.longer_ns.iter().zip(&usual_ns).zip(lap.idle_after());
        let gap_ns: f64 = kernels
            .map(|((longer, usual), idle)| if idle { longer } else { usual })
            .sum();
        let between_ns = lap.between_ns - bare.between_ns;
        let turn_ns = lap.turn_ns.min(between_ns.max(0.0));
        let launch_ns = between_ns - turn_ns;
        let kernels_ns = step.longer_ns.iter().sum::<f64>() - gap_ns;
        let stamped = [launch_ns, gap_ns, turn_ns, step.first_run_ns, kernels_ns];
        let rest_ns = lap.period_ns - bare.period_ns - stamped.iter().sum::<f64>();
        let [launch, gap, turn, first_run, kernels] = stamped;
        [launch, gap, turn, first_run, kernels, rest_ns].map(|ns| ns / 1e3)
    };
    let runs = runs.iter().map(|run| run.iter().map(parts_us).collect());
    let runs: Vec<Vec<[f64; 6]>> = runs.collect();
    let sums = |steps: &[[f64; 6]]| mean(steps.iter().map(|parts| parts.iter().sum()));
    let means = sorted(&Vec::from_iter(runs.iter().filter_map(|run| sums(run))));
    let spread_us = (means.len() > 1).then(|| means[means.len() - 1] - means[0]);
    let steps = runs.concat();
    let over_us = sums(&steps)?;
    let part = |part: usize| mean(steps.iter().map(|parts| parts[part]));
    Some(OverBare {
        over_bare_us: Some(over_us),
        over_bare_launch_us: part(0),
        over_bare_gap_us: part(1),
        over_bare_scheduler_us: part(2),
        over_bare_first_run_us: part(3),
        over_bare_kernels_us: part(4),
        over_bare_unexplained_us: part(5),
        over_bare_spread_us: spread_us,
        over_bare_measurable: spread_us.map(|spread_us| over_us.abs() > spread_us),
        over_bare_steps: Some(steps.len()),
        calls_sha256: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW_NS: [u64; 4] = [10_000, 20_000, 30_000, 40_000];
    const FIRST_NS: [u64; 4] = [11_000, 20_000, 30_000, 40_000];

    /// Four kernels of so many ns, the second of which had waited for `waited_ns`, and the others for long.
    fn launch(step: u64, from_ns: u64, kernels_ns: [u64; 4], waited_ns: u64) -> StepTimes {
        let mut ready_ns = from_ns;
        let at = kernels_ns.iter().enumerate().map(|(index, took_ns)| {
            let waits_ns = if index == 1 { waited_ns } else { 5_000 };
            let at = PartTime {
                waits_ns: ready_ns.saturating_sub(waits_ns),
                ready_ns,
            };
            ready_ns += took_ns;
            at
        });
        StepTimes {
            step,
            at: at.collect(),
            end_ns: ready_ns,
            ..StepTimes::default()
        }
    }

    /// A bare step of kernels of 10, 20, 30 and 40 us with 2 us to the next one in a row of three; its first run took 1 us more.
    fn bare() -> Laps {
        let other = |from_ns| launch(0, from_ns, [50_000; 4], 5_000);
        let row = |from_ns| launch(0, from_ns, ROW_NS, 5_000);
        let first = launch(0, 100_000, FIRST_NS, 5_000);
        let (turns, before) = (
            BTreeMap::from([(0, (0, 0))]),
            [first, other(300_000), other(600_000)],
        );
        let row = [row(1_000_000), row(1_102_000), row(1_204_000)];
        let times = [&before[..], &row, &[other(2_000_000)]].concat();
        Stamped { turns, times }.bare_laps()
    }

    /// A step beside [`bare`] that begins 20 us after it was composed, and the next one, which `turn` composed and which begins at
    /// `next_ns`; all after the step's begin.
    fn laps(
        way: LaunchWay,
        kernels_ns: [u64; 4],
        waited_ns: u64,
        turn: (u64, u64),
        next_ns: u64,
    ) -> Laps {
        const BEGIN_NS: u64 = 1_000_000;
        let composed = (BEGIN_NS - 20_000, BEGIN_NS - 10_000);
        let turn = (BEGIN_NS + turn.0, BEGIN_NS + turn.1);
        let turns = BTreeMap::from([(0, composed), (1, turn)]);
        let first = launch(0, BEGIN_NS, kernels_ns, waited_ns);
        let times = vec![first, launch(1, BEGIN_NS + next_ns, ROW_NS, 5_000)];
        Stamped { turns, times }.laps(way)
    }

    #[test]
    fn a_step_is_divided_without_a_rest() {
        // The second kernel came late, 7 us after it could have; it took 1 us more. Between the steps are 14 us, of which the
        // turn has 4: its 3 first ones lie before the step's end.
        let late = [18_000, 21_000, 30_000, 40_000];
        let by = |way| {
            let laps = laps(way, late, 50, (105_000, 113_000), 123_000);
            over_bare(way, &[laps], &[bare()]).unwrap()
        };
        let found = by(LaunchWay::DeviceGraph);
        let parts = |found: &OverBare| {
            [
                found.over_bare_launch_us,
                found.over_bare_gap_us,
                found.over_bare_scheduler_us,
                found.over_bare_first_run_us,
                found.over_bare_kernels_us,
                found.over_bare_unexplained_us,
            ]
            .map(Option::unwrap)
        };
        // The turns are 125 us apart, and the steps 123.
        assert_eq!(parts(&found), [8.0, 7.0, 4.0, 1.0, 1.0, 2.0]);
        let all = (found.over_bare_us, found.over_bare_steps);
        assert_eq!(all, (Some(23.0), Some(1)));
        // By a clock of the host's all of the turn counts; one by one, what a kernel usually takes longer is a gap too.
        let found = by(LaunchWay::HostKernels);
        assert_eq!(parts(&found), [4.0, 8.0, 8.0, 1.0, 0.0, 2.0]);
        // A host that runs ahead is not waited for: its turn counts as far as there is room.
        let way = LaunchWay::HostGraphAhead;
        let laps = laps(way, FIRST_NS, 5_000, (83_500, 92_500), 103_500);
        let found = over_bare(way, &[laps], &[bare()]).unwrap();
        assert_eq!(parts(&found), [0.0, 0.0, 0.5, 1.0, 0.0, 0.0]);
    }

    #[test]
    fn what_repeats_spread_by_cannot_be_measured() {
        let way = LaunchWay::DeviceGraph;
        let run = |next_ns| {
            let turn_ns = next_ns - 20_000;
            laps(way, ROW_NS, 5_000, (turn_ns, turn_ns), next_ns)
        };
        let over = |ways: [Laps; 2]| over_bare(way, &ways, &[bare(), bare()]).unwrap();
        let steady = over([run(110_000), run(111_000)]);
        let sum = (steady.over_bare_us, steady.over_bare_spread_us);
        assert_eq!(sum, (Some(8.5), Some(1.0)));
        assert_eq!(steady.over_bare_measurable, Some(true));
        let apart = over([run(101_000), run(111_000)]);
        assert_eq!(apart.over_bare_measurable, Some(false), "{apart:?}");
        assert_eq!(over_bare(way, &[], &[]), None);
    }
}
