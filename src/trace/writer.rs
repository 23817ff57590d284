//! The thread that writes a trace while its run goes on: what came through the channel, put where it belongs in time.

use super::About;
use super::about::HostClock;
use super::clock::{Difference, ns_between};
use super::json::{Out, Track};
use super::parts::{Costs, Parts};
use super::timeline::{Run, Timeline};
use crate::backend::timing::{StageTimes, StepTimes};
use crate::error::Result;
use crate::files;
use crate::io::record::{Header, Line};
use serde_json::Value;
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// The process of the host.
const HOST: u32 = 3;
/// What the whole run is doing: load, serve, drain.
pub(super) const PHASES: Track = Track(HOST, 300);
/// What the thread does that hands requests over and takes events.
pub(super) const JOB: Track = Track(HOST, 301);

/// From and to, on the host's clock.
pub type During = (Instant, Instant);

/// What the threads of a run hand to the one that writes its trace.
pub enum Item {
    /// A line, and when the host began and ended to hand it over or to take it.
    Line(Line, During),
    Host(HostSlice),
    /// A stage's run of a step.
    Stage(u32, u64, During),
    /// By the stage's own clock.
    StageTimes(StageTimes),
    /// A step's parts, and how many steps have been lost so far. Before the turn that collects the step.
    Times(Box<StepTimes>, u64),
}

/// What is known of a run once its engine is launched.
pub struct Begin {
    pub header: Header,
    /// 0 of the scheduler's clock, where that is the host's.
    pub clock_zero: Option<Instant>,
    /// Where steps are timed part by part: what against, and 0 of their clock, where that is the host's.
    pub parts: Option<(Costs, Option<Instant>)>,
    /// Names of stages that are timed one by one.
    pub stages: Vec<String>,
}

pub struct HostSlice {
    pub(super) track: Track,
    pub(super) name: &'static str,
    pub(super) during: During,
    pub(super) args: Value,
}

/// The host's clock beside the scheduler's.
enum Clock {
    /// One clock; the scheduler's is ahead by this, in ns, of the time since the run began.
    Same(i64),
    Measured(Box<Difference>),
}

/// The writer's state.
struct Writing {
    timeline: Timeline,
    clock: Clock,
    began: Instant,
    /// Host slices whose place is not known yet.
    pending: Vec<HostSlice>,
    /// No host slice of a track begins before the one ahead of it ended, to the last nanosecond of rounding.
    last_ns: [i128; 2],
}

/// What a trace says of itself, and its file, which has yet to be given its name.
pub(super) type Ended = (About, files::Out);

/// Writes all that comes. `began`: the earliest time that a host slice has.
pub(super) fn write(
    out: Out,
    began: Instant,
    begin: Begin,
    items: &Receiver<Item>,
) -> Result<Ended> {
    let mut timeline = Timeline::new(out, &begin.header, "run".to_owned())?;
    if !begin.stages.is_empty() {
        timeline.name_stages(&begin.stages)?;
    }
    let parts = begin.parts;
    timeline.parts = parts.map(|(costs, zero)| Parts::new(costs, zero, begin.clock_zero));
    let out = &mut timeline.out;
    out.process(HOST, "host", 3)?;
    out.thread(PHASES, "the run")?;
    out.thread(JOB, "job: requests in, events out")?;
    let mut writing = Writing {
        timeline,
        clock: match begin.clock_zero {
            Some(zero) => Clock::Same(ns_between(zero, began)),
            None => Clock::Measured(Box::default()),
        },
        began,
        pending: vec![],
        last_ns: [i128::MIN; 2],
    };
    items.iter().try_for_each(|item| writing.item(item))?;
    writing.finish()
}

impl Writing {
    fn item(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Host(slice) => self.pending.push(slice),
            Item::Stage(stage, step, (from, to)) => {
                // Stages that the host's threads run go with a scheduler of the host.
                if let Some(offset) = self.offset(false) {
                    let run = Run::Known(self.at(from, offset), self.at(to, offset));
                    self.timeline.stage_run(stage, step, run)?;
                }
            }
            Item::StageTimes(times) => {
                let (stage, step) = (times.stage, times.step);
                self.timeline.stage_run(stage, step, Run::Own(times))?;
            }
            Item::Times(times, lost) => {
                if let Some(parts) = &mut self.timeline.parts {
                    parts.put(*times, lost);
                }
            }
            Item::Line(line, during) => {
                self.exchange(&line, during);
                self.timeline.line(line)?;
            }
        }
        if self.timeline.out.zero_ns.is_some() && !self.pending.is_empty() {
            self.place(false)?;
        }
        Ok(())
    }

    /// What the line says of the clocks.
    fn exchange(&mut self, line: &Line, during: During) {
        let before = ns_between(self.began, during.0);
        let after = ns_between(self.began, during.1);
        if let Clock::Measured(difference) = &mut self.clock {
            match line {
                Line::Request(_) => difference.request(before),
                Line::Turn(turn) => difference.record(turn, before, after),
                _ => {}
            }
        }
        if let Line::Turn(turn) = line {
            // The run began no later than this: the record was read after its turn had ended.
            let zero = match self.clock {
                Clock::Same(offset) => offset.into(),
                Clock::Measured(_) => i128::from(turn.end_ns) - i128::from(after),
            };
            let zero = zero.min(turn.now_ns.into());
            self.timeline.out.zero_ns.get_or_insert(zero);
        }
    }

    /// What to add to the host's time since the run began, where that is known.
    fn offset(&mut self, last: bool) -> Option<i64> {
        match &mut self.clock {
            Clock::Same(offset) => Some(*offset),
            Clock::Measured(difference) => {
                difference.offset(ns_between(self.began, Instant::now()), last)
            }
        }
    }

    fn at(&self, instant: Instant, offset: i64) -> i128 {
        i128::from(ns_between(self.began, instant)) + i128::from(offset)
    }

    /// Writes what has come from the host, once it is known where it belongs.
    fn place(&mut self, last: bool) -> Result<()> {
        let Some(offset) = self.offset(last) else {
            return Ok(());
        };
        for slice in std::mem::take(&mut self.pending) {
            let (from, to) = slice.during;
            let (from, to) = (self.at(from, offset), self.at(to, offset));
            let ended = &mut self.last_ns[usize::from(slice.track == JOB)];
            let from = from.max(*ended);
            *ended = to.max(from);
            let out = &mut self.timeline.out;
            out.slice(slice.track, slice.name, (from, *ended), slice.args)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Ended> {
        self.place(true)?;
        self.timeline.about.host_clock = match &self.clock {
            Clock::Same(_) => HostClock::Same,
            Clock::Measured(difference) => difference.about(self.pending.len() as u64),
        };
        self.timeline.end()
    }
}
