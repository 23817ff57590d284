//! The thread that writes a trace while its run goes on: what came through the channel, put where it belongs in time.

use super::About;
use super::about::HostClock;
use super::clock::{Difference, ns_between};
use super::json::{Out, Track};
use super::parts::{Costs, Parts};
use super::timeline::{Run, Timeline};
use crate::backend::timing::{StageTimes, StepTimes};
use crate::error::{Error, Result};
use crate::files;
use crate::io::record::{Header, Line};
use serde_json::Value;
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// The process of the host.
const HOST: u32 = 3;
/// What the whole run is doing: load, serve, drain.
pub(super) const PHASES: Track = Track {
    process: HOST,
    thread: 300,
};
/// What the thread does that hands requests over and takes events.
pub(super) const JOB: Track = Track {
    process: HOST,
    thread: 301,
};

/// From and to, on the host's clock.
pub type During = (Instant, Instant);

/// What the threads of a run hand to the one that writes its trace.
pub(super) enum Item {
    Begin(Box<Begin>),
    /// A line, and when the host began and ended to hand it over or to take it.
    Line(Line, During),
    Host(HostSlice),
    /// A stage's run of a step.
    Stage(u32, u64, During),
    /// By the stage's own clock.
    StageTimes(StageTimes),
    /// A step's parts, and how many steps have been lost so far.
    Times(Box<StepTimes>, u64),
}

pub(super) struct Begin {
    pub header: Header,
    /// 0 of the scheduler's clock, where that is the host's.
    pub clock_zero: Option<Instant>,
    /// Where steps are timed part by part: what against, and 0 of their clock, where that is the host's.
    pub parts: Option<(Costs, Option<Instant>)>,
    /// Names of stages that are timed one by one.
    pub stages: Vec<String>,
}

pub(super) struct HostSlice {
    pub track: Track,
    pub name: &'static str,
    pub during: During,
    pub args: Value,
}

/// The host's clock beside the scheduler's.
enum Clock {
    /// One clock; the scheduler's is at 0 when the host's is at this, in ns since the run began.
    Same(i128),
    Measured(Box<Difference>),
}

/// The writer's state once the engine runs.
struct Writing {
    timeline: Timeline,
    clock: Clock,
    began: Instant,
    /// The trace's 0 is set.
    zero_known: bool,
    /// Host slices whose place is not known yet.
    pending: Vec<HostSlice>,
    stages: Vec<(u32, u64, During)>,
    /// No host slice of a track begins before the one ahead of it ended, to the last nanosecond of rounding.
    last_ns: [i128; 2],
}

/// What a trace says of itself, and its file, which has yet to be given its name.
pub(super) type Ended = (About, files::Out);

pub(super) fn write(out: Out, began: Instant, items: &Receiver<Item>) -> Result<Ended> {
    let mut early = vec![];
    for item in items {
        match item {
            Item::Begin(begin) => {
                let mut writing = Writing::new(out, began, *begin, early)?;
                items.iter().try_for_each(|item| writing.item(item))?;
                return writing.finish();
            }
            Item::Host(slice) => early.push(slice),
            _ => {}
        }
    }
    Err(Error::Runtime(
        "the run ended before its engine began: there is nothing to trace".into(),
    ))
}

impl Writing {
    fn new(out: Out, began: Instant, begin: Begin, early: Vec<HostSlice>) -> Result<Self> {
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
        let clock = match begin.clock_zero {
            Some(zero) => Clock::Same(ns_between(began, zero).into()),
            None => Clock::Measured(Box::default()),
        };
        Ok(Self {
            timeline,
            clock,
            began,
            zero_known: false,
            pending: early,
            stages: vec![],
            last_ns: [i128::MIN; 2],
        })
    }

    fn item(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Begin(_) => {}
            Item::Host(slice) => self.pending.push(slice),
            Item::Stage(stage, step, during) => self.stages.push((stage, step, during)),
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
        if self.zero_known {
            let now = self.began.elapsed().as_nanos() as i64;
            self.place(now, false)?;
        }
        Ok(())
    }

    /// What the line says of the clocks.
    fn exchange(&mut self, line: &Line, during: During) {
        let (before, after) = (
            ns_between(self.began, during.0),
            ns_between(self.began, during.1),
        );
        if let Clock::Measured(difference) = &mut self.clock {
            match line {
                Line::Request(_) => difference.request(before),
                Line::Turn(turn) => difference.record(turn, before, after),
                _ => {}
            }
        }
        if let Line::Turn(turn) = line
            && !self.zero_known
        {
            // The run began no later than this: the record was read after its turn had ended.
            let zero = match self.clock {
                Clock::Same(offset) => -offset,
                Clock::Measured(_) => i128::from(turn.end_ns) - i128::from(after),
            };
            self.timeline.set_zero(zero.min(turn.now_ns.into()));
            self.zero_known = true;
        }
    }

    /// Writes what has come from the host, once it is known where it belongs.
    fn place(&mut self, now_ns: i64, last: bool) -> Result<()> {
        if self.pending.is_empty() && self.stages.is_empty() && !last {
            return Ok(());
        }
        let offset = match &mut self.clock {
            Clock::Same(offset) => Some(-*offset),
            Clock::Measured(difference) => difference.offset(now_ns, last),
        };
        let Some(offset) = offset else {
            return Ok(());
        };
        let began = self.began;
        let at = |instant| i128::from(ns_between(began, instant)) + offset;
        for slice in self.pending.drain(..) {
            let ended = &mut self.last_ns[usize::from(slice.track == JOB)];
            let from = at(slice.during.0).max(*ended);
            let to = at(slice.during.1).max(from);
            *ended = to;
            let out = &mut self.timeline.out;
            out.slice(slice.track, slice.name, (from, to), slice.args)?;
        }
        for (stage, step, (from, to)) in self.stages.drain(..) {
            let run = Run::Known(at(from), at(to));
            self.timeline.stage_run(stage, step, run)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Ended> {
        let now = self.began.elapsed().as_nanos() as i64;
        self.place(now, true)?;
        let clock = match &self.clock {
            Clock::Same(_) => HostClock::Same,
            Clock::Measured(difference) => difference.about(self.pending.len() as u64),
        };
        self.timeline.host_clock = clock;
        self.timeline.end()
    }
}
