//! The kernels of each step, or the CPU's operations, as slices under the step's own.

use super::clock::ns_between;
use super::json::{DEVICE, Out, Track};
use super::kernels::Kernels;
use super::step::{Flying, rounded};
use crate::backend::cuda::tuning::gpu::{Least, Rates};
use crate::backend::timing::{Part, StepTimes};
use crate::error::Result;
use crate::model::ModelConfig;
use crate::plan::cost::op_cost;
use crate::plan::{Op, Precision, StepShape};
use serde::Serialize;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

/// What the parts of a run's steps are measured against.
#[derive(Clone)]
pub struct Costs {
    pub config: Arc<ModelConfig>,
    pub precision: Precision,
    /// `None`: nothing is known of the device, and nothing has a floor.
    pub rates: Option<Rates>,
}

impl Costs {
    /// What the operations of each part take at least. One in which parts with others have a share counts with the first of them.
    fn least_of(&self, parts: &[Part], shape: &StepShape) -> Vec<Least> {
        let rates = self.rates.clone().unwrap_or_else(Rates::unlimited);
        let mut counts = FirstOf::default();
        let mut least = Least::default();
        let of = |part: &Part| {
            // Kernels of the same operations have one cost together.
            if part.index == 0 {
                let ops = counts.new_in(part).into_iter();
                let cost = |op: Op| op_cost(&self.config, &op, shape, self.precision);
                least = rates.least(ops.map(cost));
            }
            least
        };
        parts.iter().map(of).collect()
    }
}

/// Which of a step's operations have been counted.
#[derive(Default)]
pub struct FirstOf(HashSet<Op>);

impl FirstOf {
    /// The operations of `part` in which no part before it had a share.
    pub fn new_in(&mut self, part: &Part) -> Vec<Op> {
        let ops = part.ops.iter().copied();
        ops.filter(|&op| self.0.insert(op)).collect()
    }
}

/// The clock of parts beside that of the scheduler.
enum Clock {
    /// Known to be so many ns behind it.
    Behind(i128),
    /// A GPU's, and the scheduler's is the host's: each step bounds the difference, as its kernels ran between the turns
    /// that composed and collected it. The offset moves no further than these bounds ask for; `None` before the first.
    Apart(Option<i128>),
}

/// The parts of all steps.
pub struct Parts {
    costs: Costs,
    clock: Clock,
    /// The times of steps that are not collected yet, by step and stage.
    waiting: BTreeMap<(u64, u32), StepTimes>,
    /// What they come to; until the end, sums.
    pub(super) kernels: Kernels,
    named: HashSet<u32>,
}

#[derive(Serialize)]
struct PartArgs<'a> {
    step: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<usize>,
    #[serde(flatten)]
    launch: Option<LaunchArgs<'a>>,
    /// The part, such as `2 of 3`, where its operation has several.
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<String>,
    /// The bytes of its operation as a whole, as is the floor.
    bytes: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    floor_us: Option<f64>,
}

/// What is known of a kernel, and not of an operation on the CPU.
#[derive(Serialize)]
struct LaunchArgs<'a> {
    kernel: &'a str,
    grid: String,
    threads: u32,
    early_us: f64,
}

impl Parts {
    /// `zero`: when the parts' clock was 0, if it is the host's; `scheduler_zero`: when the scheduler's was.
    pub fn new(costs: Costs, zero: Option<Instant>, scheduler_zero: Option<Instant>) -> Self {
        let clock = match (zero, scheduler_zero) {
            (Some(zero), Some(scheduler)) => Clock::Behind(ns_between(scheduler, zero).into()),
            (None, None) => Clock::Behind(0),
            _ => Clock::Apart(None),
        };
        Self {
            kernels: Kernels::new(costs.rates.as_ref()),
            costs,
            clock,
            waiting: BTreeMap::new(),
            named: HashSet::new(),
        }
    }

    /// Keeps the times of a step that is not collected yet; `lost` steps were lost until now.
    pub fn put(&mut self, times: StepTimes, lost: u64) {
        self.waiting.insert((times.step, times.stage), times);
        self.kernels.lost = lost;
    }

    /// The step has been collected; its slice is `during`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn collected(&mut self, out: &mut Out, step: &Flying, during: (i128, i128)) -> Result<()> {
        let number = step.args.step;
        let later = self.waiting.split_off(&(number + 1, 0));
        let now = std::mem::replace(&mut self.waiting, later).into_values();
        let now: Vec<StepTimes> = now.filter(|times| times.step == number).collect();
        if now.is_empty() {
            return Ok(());
        }
        let add_ns = self.clock.behind(&now, step.composed_ns.into(), during.1);
        let Some(sum) = self.kernels.step(step, during, &now, add_ns) else {
            return Ok(());
        };
        let floors = self.costs.rates.is_some();
        for times in &now {
            let track = Track(DEVICE, 130 + times.stage);
            if self.named.insert(times.stage) {
                let name = if times.parts.iter().any(|part| part.kernel.is_some()) {
                    "kernels".to_owned()
                } else {
                    format!("operations of stage {}", times.stage)
                };
                out.thread(track, &name)?;
            }
            let least = self.costs.least_of(&times.parts, &step.shape);
            let parts = times.parts.iter().zip(times.spans()).zip(least);
            for ((part, (at, end_ns)), least) in parts {
                let early_us = (at.ready_ns - at.waits_ns) as f64 / 1e3;
                let launch = part.kernel.as_ref().map(|kernel| LaunchArgs {
                    kernel: &kernel.name,
                    grid: format!("{}x{}x{}", kernel.grid.0, kernel.grid.1, kernel.grid.2),
                    threads: kernel.threads,
                    early_us,
                });
                let args = PartArgs {
                    step: number,
                    layer: part.ops.iter().find_map(|op| op.layer),
                    launch,
                    part: (part.count > 1).then(|| format!("{} of {}", part.index + 1, part.count)),
                    bytes: least.bytes.round(),
                    floor_us: floors.then(|| rounded(least.us())),
                };
                let from_ns = i128::from(at.ready_ns) + add_ns;
                let to_ns = i128::from(end_ns) + add_ns;
                out.slice(track, &part.operation(), (from_ns, to_ns), args)?;
                let us = (end_ns - at.ready_ns) as f64 / 1e3;
                sum.part(part, us, early_us, &least);
            }
        }
        Ok(())
    }
}

impl Clock {
    /// What to add to a step's times, whose kernels ran between the two turns.
    fn behind(&mut self, times: &[StepTimes], composed_ns: i128, collected_ns: i128) -> i128 {
        let known = match self {
            Self::Behind(add) => return *add,
            Self::Apart(known) => known,
        };
        let firsts = times.iter().filter_map(|times| times.at.first());
        let Some(first) = firsts.map(|at| i128::from(at.waits_ns)).min() else {
            return known.unwrap_or(0);
        };
        let ends = times.iter().map(|times| i128::from(times.end_ns));
        let least = composed_ns - first;
        let most = collected_ns - ends.max().unwrap_or(first);
        // The clocks' rates differ by too little for a step to turn its bounds over; if one did, its middle is off by that.
        let add = match *known {
            Some(old) if least <= most => old.clamp(least, most),
            _ => least + (most - least) / 2,
        };
        *known = Some(add);
        add
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::timing::PartTime;

    /// A GPU whose clock is 1,000,000 ahead of the scheduler's, and drifts.
    #[test]
    fn steps_stay_between_their_turns() {
        let mut clock = Clock::Apart(None);
        let mut behind = |first_ns, end_ns, composed_ns, collected_ns| {
            let times = StepTimes {
                at: vec![PartTime {
                    waits_ns: first_ns,
                    ready_ns: first_ns,
                }],
                end_ns,
                ..StepTimes::default()
            };
            clock.behind(&[times], composed_ns, collected_ns)
        };
        // Kernels run from 130 to 180 of the scheduler's clock: 30 and 20 to spare.
        assert_eq!(behind(1_000_130, 1_000_180, 100, 200), -1_000_005);
        // Room on both sides: the offset stays.
        assert_eq!(behind(1_000_330, 1_000_380, 300, 400), -1_000_005);
        // Kernels at once, by a clock that has moved on by 3: it moves no further than there is room.
        assert_eq!(behind(1_000_503, 1_000_570, 500, 600), 500 - 1_000_503);
    }
}
