//! Steps on their way through stages that work side by side: a slice in each stage's track, and an arrow wherever a step is
//! handed over, from stage to stage and from the last one to the turn that collects it.

use super::{TURNS, stage_track};
use crate::backend::timing::StageTimes;
use crate::error::Result;
use crate::trace::about::GpuClocks;
use crate::trace::json::Out;
use crate::trace::step::{Flying, StepArgs};
use std::collections::BTreeMap;

/// Steps that may lack something; of more, what is missing of the oldest was lost.
const MOST_OPEN: usize = 1 << 14;

/// When a stage had a step.
#[derive(Debug, Clone, Copy)]
pub enum Run {
    /// From and to, by the scheduler's clock.
    Known(i128, i128),
    /// By the stage's own, which is a GPU's.
    Own(StageTimes),
}

#[derive(Default)]
pub(super) struct Step {
    pub composed: Option<Flying>,
    /// By stage.
    pub runs: Vec<Option<Run>>,
    /// The start of the turn that collected it.
    pub collected_ns: Option<i128>,
}

impl Step {
    fn is_whole(&self) -> bool {
        let there = self.composed.is_some() && self.collected_ns.is_some();
        there && self.runs.iter().all(Option::is_some)
    }

    /// All stages' times by their own clocks.
    fn own(&self) -> Option<Vec<StageTimes>> {
        let own = |run: &Option<Run>| match run {
            Some(Run::Own(own)) => Some(*own),
            _ => None,
        };
        self.runs.iter().map(own).collect()
    }
}

/// What is known of steps whose slices are not all drawn.
pub(super) struct Passing {
    steps: BTreeMap<u64, Step>,
    clocks: GpuClocks,
    /// By stage: the end of its last slice.
    ended_ns: Vec<i128>,
}

impl Passing {
    pub(super) fn new(stages: usize) -> Self {
        Self {
            steps: BTreeMap::new(),
            clocks: GpuClocks::default(),
            ended_ns: vec![i128::MIN; stages],
        }
    }

    /// A part of what there is to know of a step; its slices are drawn once all is known.
    pub(super) fn learn(
        &mut self,
        out: &mut Out,
        step: u64,
        what: impl FnOnce(&mut Step),
    ) -> Result<()> {
        let of = self.steps.entry(step).or_insert_with(|| Step {
            runs: vec![None; self.ended_ns.len()],
            ..Step::default()
        });
        what(of);
        if of.is_whole()
            && let Some(of) = self.steps.remove(&step)
        {
            self.draw(out, step, &of)?;
        }
        if self.steps.len() > MOST_OPEN
            && let Some((step, of)) = self.steps.pop_first()
        {
            self.clocks.left_out += 1;
            self.draw(out, step, &of)?;
        }
        Ok(())
    }

    /// Draws as much as is known of the step.
    fn draw(&mut self, out: &mut Out, step: u64, of: &Step) -> Result<()> {
        let Some(composed) = &of.composed else {
            return Ok(());
        };
        if let (Some(own), Some(collected_ns)) = (of.own(), of.collected_ns) {
            self.clocks.step(&own, collected_ns);
        }
        let name = composed.name();
        let args = StepArgs {
            prompt_rows: None,
            ..composed.args
        };
        // Track and times of each stage's slice, and of the turn that collects the step.
        let mut places = vec![];
        for (stage, run) in of.runs.iter().enumerate() {
            let run = run.as_ref();
            let times = run.and_then(|run| self.times(stage, run, composed.composed_ns.into()));
            let track = stage_track(stage as u32);
            if let Some(times) = times {
                out.slice(track, &name, times, args)?;
                self.ended_ns[stage] = times.1;
            }
            places.push((track, times));
        }
        let stages = places.len() as u64;
        places.push((TURNS, of.collected_ns.map(|at_ns| (at_ns, at_ns + 2))));
        for (stage, pair) in (0..).zip(places.windows(2)) {
            if let [(track, Some(from)), (to_track, Some(to))] = *pair {
                // Inside the slices, as viewers bind arrows to what is open at their ends.
                let (begin, end) = ((from.1 - 1).max(from.0), (to.0 + 1).min(to.1));
                out.arrow(step * stages + stage, (track, begin), (to_track, end))?;
            }
        }
        Ok(())
    }

    /// By the scheduler's clock: not before the stage's slice ahead has ended, to the last nanosecond of rounding.
    fn times(&self, stage: usize, run: &Run, composed_ns: i128) -> Option<(i128, i128)> {
        let (from, to) = match *run {
            Run::Known(from, to) => (from, to),
            Run::Own(StageTimes { came, left, .. }) => {
                let at = |time| self.clocks.at(stage, time, composed_ns);
                let from = came.map_or(Some(composed_ns), at)?;
                (from, at(left)?)
            }
        };
        let from = from.max(self.ended_ns[stage]);
        Some((from, to.max(from)))
    }

    /// Draws what is left, which is not whole, and says how the stages' clocks were brought together, where they have their
    /// own.
    pub(super) fn finish(mut self, out: &mut Out) -> Result<Option<GpuClocks>> {
        for (step, of) in std::mem::take(&mut self.steps) {
            self.clocks.left_out += u64::from(of.collected_ns.is_some());
            self.draw(out, step, &of)?;
        }
        Ok((!self.clocks.offsets_ns.is_empty()).then_some(self.clocks))
    }
}
