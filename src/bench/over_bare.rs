//! What each way to launch adds to the bare graph, and what of it is launching, gaps and the scheduler. Steps are held
//! against each other kernel by kernel, by the stamps that their kernels leave (`kernels/common/stamps.cuh`), in runs apart
//! from those that are timed.
//!
//! A step lasts from when its first kernel could begin until the next step's could. The bare graph runs a step once, and then
//! again and again in a row; a step's time there is that of the row. Against it
//! - `first_run` is what the bare graph's own kernels took longer as the step ran for the first time: predictions of experts
//!   are right and caches warm where a step is repeated;
//! - `gap` is what kernels took longer, against that first run, whose successor came only after they had ended: the GPU had
//!   nothing to do. Kernels that the host launches one by one are never as close together as in a graph: for these it is also
//!   the median, over steps, of what each one took longer;
//! - `scheduler` is the turn that composed the next step, as far as it lies between the two steps;
//! - `launch` is what else lies between them;
//! - `unexplained` is what is left: kernels that took longer although their successor stood ready.

use super::drive::{self, Driven};
use super::stats::{quantile, sorted, summary};
use super::workload::Arrival;
use crate::backend::LaunchWay;
use crate::backend::timing::{StepClock, StepTimes};
use crate::error::{Error, Result};
use crate::model::fingerprint;
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
    /// The sum of the five below.
    pub over_bare_us: Option<f64>,
    pub over_bare_launch_us: Option<f64>,
    pub over_bare_gap_us: Option<f64>,
    pub over_bare_scheduler_us: Option<f64>,
    pub over_bare_first_run_us: Option<f64>,
    pub over_bare_unexplained_us: Option<f64>,
    /// Between the means of runs, the largest less the smallest.
    pub over_bare_spread_us: Option<f64>,
    /// Whether `over_bare_us` is larger than its spread.
    pub over_bare_measurable: Option<bool>,
    pub over_bare_steps: Option<usize>,
    /// SHA-256 of the kernel calls of a step in their order: kernels, grids, threads and operations.
    pub calls_sha256: Option<String>,
}

/// A step, in nanoseconds.
#[derive(Debug, Clone, PartialEq)]
struct Lap {
    /// Each kernel's time until its successor could begin, the last one's until its end; of the bare graph that of the
    /// first run.
    kernels_ns: Vec<f64>,
    /// Whether each kernel's successor came when it had ended.
    idle_after: Vec<bool>,
    /// What the first run took longer than the row; of the bare graph alone.
    first_run_ns: f64,
    /// From the last kernel's end until the next step's first kernel could begin.
    between_ns: f64,
    /// The scheduler's turn, as a part of that.
    turn_ns: f64,
}

impl Lap {
    fn new(step: &StepTimes, between_ns: f64, turn_ns: f64) -> Self {
        let later = || step.at.iter().skip(1);
        let ends = later().map(|next| next.ready_ns).chain([step.end_ns]);
        let late = later().map(|next| next.ready_ns - next.waits_ns < LATE_NS);
        Self {
            kernels_ns: (step.at.iter().zip(ends))
                .map(|(at, end_ns)| end_ns as f64 - at.ready_ns as f64)
                .collect(),
            idle_after: late.chain([false]).collect(),
            first_run_ns: 0.0,
            between_ns,
            turn_ns,
        }
    }

    fn span_ns(&self) -> f64 {
        self.kernels_ns.iter().sum()
    }
}

/// From the end of a step's last kernel until the first one of the next could begin.
fn between_ns(step: &StepTimes, next: &StepTimes) -> f64 {
    next.at[0].ready_ns as f64 - step.end_ns as f64
}

/// A run's decode steps of the whole batch, by their place in the run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Laps(BTreeMap<u64, Lap>);

/// What a stamped run came to.
pub struct Stamped {
    /// When the turn that composed each step began and ended, by the scheduler's clock and the step's place in the run.
    turns: BTreeMap<u64, (u64, u64)>,
    /// The kernels' times in the order in which steps ran. Numbers are places in the run.
    times: Vec<StepTimes>,
}

impl Stamped {
    /// Runs `arrivals` on an engine whose kernels leave stamps.
    ///
    /// # Errors
    /// As [`drive::run`]; stamps were lost.
    pub fn run(
        engine: &mut dyn Driven,
        clock: &mut dyn StepClock,
        arrivals: &[Arrival],
        beside: &drive::Beside<'_>,
        batch: u32,
    ) -> Result<Self> {
        let mut stamped = Self {
            turns: BTreeMap::new(),
            times: vec![],
        };
        let mut first = None;
        let mut read = |stamped: &mut Self| -> Result<()> {
            while let Some(times) = clock.next()? {
                stamped.times.push(times);
            }
            match clock.lost() {
                0 => Ok(()),
                lost => Err(Error::Runtime(format!(
                    "{lost} steps' stamps were lost: expected a host that reads 1,024 steps before they are written over"
                ))),
            }
        };
        read(&mut stamped)?;
        stamped.times.clear();
        let mut failed = Ok(());
        drive::run(engine, arrivals, beside, &mut |record| {
            if failed.is_ok() {
                failed = read(&mut stamped);
            }
            let outcome = &record.outcome;
            if outcome.action != abi::TG_ACTION_STEP {
                return;
            }
            let first = *first.get_or_insert(outcome.step);
            if (outcome.kind, outcome.rows) == (abi::TG_KIND_DECODE, batch) {
                let turn = (record.inputs.now_ns, record.end_ns);
                stamped.turns.insert(outcome.step - first, turn);
            }
        })?;
        failed.and_then(|()| read(&mut stamped))?;
        let first = first.unwrap_or(0);
        stamped.times.retain(|times| times.step >= first);
        for times in &mut stamped.times {
            times.step -= first;
        }
        Ok(stamped)
    }

    /// Steps of `way`: those whose next one is of the whole batch too.
    pub fn laps(&self, way: LaunchWay) -> Laps {
        let times = self.times.iter().filter(|times| !times.at.is_empty());
        let by_step: BTreeMap<u64, &StepTimes> = times.map(|times| (times.step, times)).collect();
        let whole = self.turns.keys().filter_map(|&number| {
            let &(from_ns, to_ns) = self.turns.get(&(number + 1))?;
            let (step, next) = (by_step.get(&number)?, by_step.get(&(number + 1))?);
            // A GPU that schedules itself tells both by one clock. The turn of a host that waits for each step lies between two
            // of them; that of one that runs ahead at most as far as there is room.
            let turn_ns = if way.is_device() {
                to_ns
                    .min(next.at[0].ready_ns)
                    .saturating_sub(from_ns.max(step.end_ns))
            } else {
                to_ns - from_ns
            };
            Some((
                number,
                Lap::new(step, between_ns(step, next), turn_ns as f64),
            ))
        });
        Laps(whole.collect())
    }

    /// Steps of the bare graph.
    pub fn bare_laps(&self) -> Laps {
        let mut launches: BTreeMap<u64, Vec<&StepTimes>> = BTreeMap::new();
        for times in &self.times {
            launches.entry(times.step).or_default().push(times);
        }
        let laps = launches.into_iter().filter_map(|(number, all)| {
            let row = all.get(BEFORE_ROW..all.len().checked_sub(AFTER_ROW)?)?;
            let timed = row
                .iter()
                .chain(all.first())
                .all(|times| !times.at.is_empty());
            if !timed || !self.turns.contains_key(&number) {
                return None;
            }
            let spans: Vec<f64> = row
                .iter()
                .map(|times| Lap::new(times, 0.0, 0.0).span_ns())
                .collect();
            let between: Vec<f64> = row
                .windows(2)
                .map(|pair| between_ns(pair[0], pair[1]))
                .collect();
            let mut lap = Lap::new(all[0], summary(&between)?.mean, 0.0);
            lap.first_run_ns = lap.span_ns() - summary(&spans)?.mean;
            Some((number, lap))
        });
        Laps(laps.collect())
    }

    /// [`OverBare::calls_sha256`] of a step of the whole batch.
    pub fn calls_sha256(&self) -> Option<String> {
        let mut times = self.times.iter();
        let whole = times.find(|times| self.turns.contains_key(&times.step))?;
        Some(fingerprint::of_parts(
            whole.parts.iter().map(|part| format!("{part:?}\n")),
        ))
    }
}

/// What the runs of `way` add to the bare graph's runs of the same requests; nothing where they have no step in common.
pub fn over_bare(way: LaunchWay, laps: &[Laps], bare: &[Laps]) -> OverBare {
    over(way, laps, bare).unwrap_or_default()
}

fn over(way: LaunchWay, laps: &[Laps], bare: &[Laps]) -> Option<OverBare> {
    let runs: Vec<Vec<(&Lap, &Lap)>> = (laps.iter().zip(bare))
        .map(|(laps, bare)| {
            let both = laps.0.iter();
            both.filter_map(|(number, lap)| Some((lap, bare.0.get(number)?)))
                .filter(|(way, bare)| way.kernels_ns.len() == bare.kernels_ns.len())
                .collect()
        })
        .collect();
    let pairs = runs.concat();
    let mean_us = |value: &dyn Fn(&Lap, &Lap) -> f64| {
        let values: Vec<f64> = pairs
            .iter()
            .map(|(way, bare)| value(way, bare) / 1e3)
            .collect();
        Some(summary(&values)?.mean)
    };
    let kernels = pairs.first()?.0.kernels_ns.len();
    let usual_ns: Vec<f64> = (0..kernels)
        .map(|kernel| {
            if way != LaunchWay::HostKernels {
                return 0.0;
            }
            let longer = pairs
                .iter()
                .map(|(way, bare)| way.kernels_ns[kernel] - bare.kernels_ns[kernel]);
            quantile(&sorted(&longer.collect::<Vec<_>>()), 0.5)
        })
        .collect();
    let gap_ns = |way: &Lap, bare: &Lap| {
        let longer = way
            .kernels_ns
            .iter()
            .zip(&bare.kernels_ns)
            .map(|(way, bare)| way - bare);
        let kernels = longer.zip(&usual_ns).zip(&way.idle_after);
        kernels
            .map(|((longer, &usual), &idle)| if idle { longer } else { usual })
            .sum::<f64>()
    };
    let scheduler_ns =
        |way: &Lap, bare: &Lap| way.turn_ns.min((way.between_ns - bare.between_ns).max(0.0));
    let over_ns = |way: &Lap, bare: &Lap| {
        way.span_ns() - bare.span_ns() + bare.first_run_ns + way.between_ns - bare.between_ns
    };
    let of_run = |run: &Vec<(&Lap, &Lap)>| {
        let each: Vec<f64> = run
            .iter()
            .map(|(way, bare)| over_ns(way, bare) / 1e3)
            .collect();
        Some(summary(&each)?.mean)
    };
    let means = sorted(&runs.iter().filter_map(of_run).collect::<Vec<f64>>());
    let over_us = mean_us(&over_ns)?;
    let spread_us = (means.len() > 1).then(|| means[means.len() - 1] - means[0]);
    Some(OverBare {
        over_bare_us: Some(over_us),
        over_bare_launch_us: mean_us(&|way, bare| {
            way.between_ns - bare.between_ns - scheduler_ns(way, bare)
        }),
        over_bare_gap_us: mean_us(&gap_ns),
        over_bare_scheduler_us: mean_us(&scheduler_ns),
        over_bare_first_run_us: mean_us(&|_, bare| bare.first_run_ns),
        over_bare_unexplained_us: mean_us(&|way, bare| {
            way.span_ns() - bare.span_ns() - gap_ns(way, bare)
        }),
        over_bare_spread_us: spread_us,
        over_bare_measurable: spread_us.map(|spread_us| over_us.abs() > spread_us),
        over_bare_steps: Some(pairs.len()),
        calls_sha256: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::timing::PartTime;
    use std::sync::Arc;

    /// Kernels by when they were ready and how long they had waited, and the end of the last.
    fn times(step: u64, at: &[(u64, u64)], end_ns: u64) -> StepTimes {
        let at = at.iter().map(|&(ready_ns, waited_ns)| PartTime {
            waits_ns: ready_ns - waited_ns,
            ready_ns,
        });
        StepTimes {
            stage: 0,
            step,
            parts: Arc::from([]),
            at: at.collect(),
            end_ns,
        }
    }

    /// Two kernels: one after the other had waited for 5 us.
    fn launch(step: u64, from_ns: u64, first_ns: u64, second_ns: u64) -> StepTimes {
        let second = from_ns + first_ns;
        times(step, &[(from_ns, 0), (second, 5_000)], second + second_ns)
    }

    /// A bare step of kernels of 10 and 20 us with 2 us to the next one in a row of three; its first run took 1 us more.
    fn bare() -> Laps {
        let in_order = [
            launch(0, 100_000, 11_000, 20_000),
            launch(0, 200_000, 50_000, 50_000),
            launch(0, 400_000, 50_000, 50_000),
            launch(0, 1_000_000, 10_000, 20_000),
            launch(0, 1_032_000, 10_000, 20_000),
            launch(0, 1_064_000, 10_000, 20_000),
            launch(0, 2_000_000, 50_000, 50_000),
        ];
        let turns = BTreeMap::from([(0, (0, 0))]);
        let times = in_order.to_vec();
        Stamped { turns, times }.bare_laps()
    }

    #[test]
    fn a_step_is_divided_without_a_rest() {
        // The second kernel came late, 7 us after it could have; it took 1 us more. Between the steps are 14 us, of which the
        // turn has 4: its 3 first ones lie before the step's end.
        let way = Stamped {
            turns: BTreeMap::from([(0, (0, 1)), (1, (35_000, 43_000))]),
            times: vec![
                times(0, &[(0, 0), (18_000, 50)], 39_000),
                launch(1, 53_000, 10_000, 20_000),
            ],
        };
        let by = |launched| over_bare(launched, &[way.laps(launched)], &[bare()]);
        let found = by(LaunchWay::DeviceGraph);
        assert_eq!(found.over_bare_gap_us, Some(7.0));
        assert_eq!(found.over_bare_scheduler_us, Some(4.0));
        assert_eq!(
            found.over_bare_launch_us,
            Some(8.0),
            "14 less the bare graph's 2 and the turn"
        );
        assert_eq!(found.over_bare_first_run_us, Some(1.0));
        assert_eq!(found.over_bare_unexplained_us, Some(1.0));
        assert_eq!(found.over_bare_us, Some(21.0));
        assert_eq!(found.over_bare_steps, Some(1));
        // By a clock of the host's all of the turn counts; one by one, what a kernel usually takes longer is a gap too.
        let found = by(LaunchWay::HostKernels);
        let parts = (
            found.over_bare_scheduler_us,
            found.over_bare_launch_us,
            found.over_bare_gap_us,
        );
        assert_eq!(parts, (Some(8.0), Some(4.0), Some(8.0)));
        assert_eq!(found.over_bare_unexplained_us, Some(0.0));
    }

    #[test]
    fn a_host_that_runs_ahead_is_not_waited_for() {
        let way = Stamped {
            turns: BTreeMap::from([(0, (0, 1)), (1, (500, 9_500))]),
            times: vec![
                launch(0, 0, 10_000, 20_000),
                launch(1, 32_500, 10_000, 20_000),
            ],
        };
        let ahead = LaunchWay::HostGraphAhead;
        let found = over_bare(ahead, &[way.laps(ahead)], &[bare()]);
        assert_eq!(
            (found.over_bare_scheduler_us, found.over_bare_launch_us),
            (Some(0.5), Some(0.0))
        );
    }

    #[test]
    fn what_repeats_spread_by_cannot_be_measured() {
        let way = LaunchWay::DeviceGraph;
        let run = |next_ns| {
            let turns = BTreeMap::from([(0, (0, 1)), (1, (30_000, 30_000))]);
            let times = vec![
                launch(0, 0, 10_000, 20_000),
                launch(1, next_ns, 10_000, 20_000),
            ];
            Stamped { turns, times }.laps(way)
        };
        let over = |ways: &[Laps]| over_bare(way, ways, &vec![bare(); ways.len()]);
        let steady = over(&[run(40_000), run(41_000)]);
        assert_eq!(
            (steady.over_bare_us, steady.over_bare_spread_us),
            (Some(8.5), Some(1.0))
        );
        assert_eq!(steady.over_bare_measurable, Some(true));
        let apart = over(&[run(31_000), run(41_000)]);
        assert_eq!(apart.over_bare_measurable, Some(false), "{apart:?}");
        assert_eq!(over(&[]), OverBare::default());
    }
}
