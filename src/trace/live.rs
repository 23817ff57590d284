//! A run that is going on, as a trace. What the job's thread hands over goes through a channel to a thread that runs the
//! core beside it and writes, each thing where it belongs in time: the host pays for a message, not for the file.

use super::About;
use super::about::HostClock;
use super::clock::{Difference, ns_between};
use super::json::{Out, Track};
use super::parts::{Costs, Parts};
use super::timeline::{Run, Timeline};
use crate::backend::timing::{StageTimes, StepTimes};
use crate::backend::{StageBackend, StepView};
use crate::error::{Error, Result};
use crate::files::{self, Unfinished};
use crate::io::record::{Header, Line};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// The process of the host.
const HOST: u32 = 3;
/// What the whole run is doing: load, serve, drain.
const PHASES: Track = Track(HOST, 300);
/// What the thread does that hands requests over and takes events.
const JOB: Track = Track(HOST, 301);

/// From and to, on the host's clock.
pub type During = (Instant, Instant);

/// What the threads of a run hand to the one that writes its trace.
pub enum Item {
    /// A line, and when the host began and ended to hand it over or to take it.
    Line(Line, During),
    /// A slice in a track of the host: its name, when, and arguments.
    Host(Track, &'static str, During, Value),
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

/// Messages that may wait for the writer; a job that is ahead by more waits too.
const AHEAD: usize = 1 << 16;

/// The job's end of a trace.
pub struct Live {
    began: Instant,
    /// Until the writer begins: its file, and what it will read.
    waiting: Option<(Out, Receiver<Item>)>,
    send: Option<SyncSender<Item>>,
    writer: Option<JoinHandle<Result<Ended>>>,
    /// Since when the job's thread works through events, and how many tokens and ends these were.
    handling: Option<(Instant, [u64; 2])>,
    serving: Option<Instant>,
}

impl Live {
    /// Makes the file. `began`: the earliest time that a host slice will have.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(path: &Path, began: Instant) -> Result<Self> {
        let out = Out::create(path, Unfinished::Kept)?;
        let (send, items) = sync_channel(AHEAD);
        Ok(Self {
            began,
            waiting: Some((out, items)),
            send: Some(send),
            writer: None,
            handling: None,
            serving: None,
        })
    }

    /// Stages that work side by side, each with a clock; a single one needs none.
    pub fn timed(&self, stages: Vec<Box<dyn StageBackend>>) -> Vec<Box<dyn StageBackend>> {
        let Some(send) = self.send.as_ref().filter(|_| stages.len() > 1) else {
            return stages;
        };
        let timed = |(stage, inner)| {
            Box::new(Timed {
                inner,
                stage,
                send: send.clone(),
            }) as Box<dyn StageBackend>
        };
        (0..).zip(stages).map(timed).collect()
    }

    /// The engine is launched: what came until now, and all that follows, is written.
    ///
    /// # Errors
    /// The trace cannot be written, as of all that follows.
    pub fn begin(&mut self, begin: Begin) -> Result<()> {
        self.serving = Some(Instant::now());
        if let Some((out, items)) = self.waiting.take() {
            let began = self.began;
            let writer = std::thread::Builder::new()
                .name("trace".to_owned())
                .spawn(move || write(out, began, begin, &items))
                .map_err(|error| Error::thread(&error))?;
            self.writer = Some(writer);
        }
        Ok(())
    }

    /// Something that the whole run did.
    pub fn phase(&mut self, name: &'static str, during: During) -> Result<()> {
        self.put(Item::Host(PHASES, name, during, json!({})))
    }

    /// The job's thread did `name` with a request, for which the recording has `line`.
    pub fn handed(
        &mut self,
        name: &'static str,
        request: u64,
        line: Line,
        during: During,
    ) -> Result<()> {
        self.handled(during.0)?;
        self.put(Item::Line(line, during))?;
        self.put(Item::Host(JOB, name, during, json!({ "request": request })))
    }

    /// The host looked for an event, and found `line` or none. Events one after the other make one slice of handling them, up to
    /// the next look in vain or the next request.
    pub fn looked(&mut self, line: Option<Line>, during: During) -> Result<()> {
        let Some(line) = line else {
            return self.handled(during.0);
        };
        let (_, [tokens, ends]) = self.handling.get_or_insert((during.1, [0, 0]));
        let is_token = matches!(line, Line::Token(_));
        *tokens += u64::from(is_token);
        *ends += u64::from(!is_token);
        self.put(Item::Line(line, during))
    }

    /// Something else than handling events begins at `at`.
    fn handled(&mut self, at: Instant) -> Result<()> {
        let Some((from, [tokens, ends])) = self.handling.take() else {
            return Ok(());
        };
        let args = json!({ "tokens": tokens, "ends": ends });
        self.put(Item::Host(JOB, "handle events", (from, at), args))
    }

    /// No more requests come.
    pub fn draining(&mut self) -> Result<()> {
        let now = Instant::now();
        self.handled(now)?;
        match self.serving.replace(now) {
            Some(from) => self.phase("serve", (from, now)),
            None => Ok(()),
        }
    }

    /// Hands over what the writer is to know.
    pub fn put(&mut self, item: Item) -> Result<()> {
        if let Some(send) = &self.send
            && send.send(item).is_ok()
        {
            return Ok(());
        }
        // Only an error ends the writer while there is something to write.
        self.end().map(drop)
    }

    /// The run came to its end: `done` is its last line. The file of a `whole` one gets its name; else it stays FILE.partial.
    ///
    /// # Errors
    /// The trace cannot be written, or its core disagrees with the run.
    pub fn finish(mut self, done: Line, whole: bool) -> Result<About> {
        let now = Instant::now();
        self.handled(now)?;
        if let Some(from) = self.serving.take() {
            self.phase("drain", (from, now))?;
        }
        self.put(Item::Line(done, (now, now)))?;
        let (about, out) = self.end()?;
        if whole {
            out.finish()?;
        }
        Ok(about)
    }

    /// The writer's last word.
    fn end(&mut self) -> Result<Ended> {
        self.send = None;
        let ended = self.writer.take().map(JoinHandle::join);
        ended.and_then(std::result::Result::ok).unwrap_or_else(|| {
            Err(Error::Runtime(
                "the thread that writes the trace has ended: expected it to go on, or to have said why before".into(),
            ))
        })
    }
}

impl Drop for Live {
    /// A run that failed leaves what there is of its trace; the failure is told elsewhere.
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// A stage on a thread of the host, timed where it runs: the scheduler's records only say when a step set out and when it came
/// back.
struct Timed {
    inner: Box<dyn StageBackend>,
    stage: u32,
    send: SyncSender<Item>,
}

impl StageBackend for Timed {
    fn row_floats(&self) -> usize {
        self.inner.row_floats()
    }

    fn run(&mut self, step: &StepView<'_>) -> Result<()> {
        let number = step.header().number;
        let from = Instant::now();
        self.inner.run(step)?;
        // Nobody listens once the trace has failed; its own error says so.
        let during = (from, Instant::now());
        let _ = self.send.send(Item::Stage(self.stage, number, during));
        Ok(())
    }
}

/// The writer's state.
struct Writing {
    timeline: Timeline,
    clock: Difference,
    began: Instant,
    /// Host slices whose place is not known yet.
    pending: Vec<(Track, &'static str, During, Value)>,
    /// No host slice of a track begins before the one ahead of it ended, to the last nanosecond of rounding.
    last_ns: [i128; 2],
}

/// What a trace says of itself, and its file, which has yet to be given its name.
type Ended = (About, files::Out);

/// Writes all that comes. `began`: the earliest time that a host slice has.
fn write(out: Out, began: Instant, begin: Begin, items: &Receiver<Item>) -> Result<Ended> {
    let mut timeline = Timeline::new(out, &begin.header, "run".to_owned())?;
    timeline.name_stages(&begin.stages)?;
    let parts = begin.parts;
    timeline.parts = parts.map(|(costs, zero)| Parts::new(costs, zero, begin.clock_zero));
    let out = &mut timeline.out;
    out.process(HOST, "host", 3)?;
    out.thread(PHASES, "the run")?;
    out.thread(JOB, "job: requests in, events out")?;
    timeline.about.host_clock = HostClock::Unknown;
    let mut clock = Difference::default();
    if let Some(zero) = begin.clock_zero {
        timeline.about.host_clock = HostClock::Same;
        clock.know(ns_between(zero, began));
    }
    let mut writing = Writing {
        timeline,
        clock,
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
            Item::Host(track, name, during, args) => self.pending.push((track, name, during, args)),
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
        match line {
            Line::Request(_) => self.clock.request(before),
            Line::Turn(turn) => {
                let after = ns_between(self.began, during.1);
                self.clock.record(turn, before, after);
                // The run began no later than this: the record was read after its turn had ended.
                let zero = (turn.end_ns as i64 - after).min(turn.now_ns as i64);
                self.timeline.out.zero_ns.get_or_insert(zero.into());
            }
            _ => {}
        }
    }

    /// What to add to the host's time since the run began, where that is known.
    fn offset(&mut self, last: bool) -> Option<i64> {
        self.clock
            .offset(ns_between(self.began, Instant::now()), last)
    }

    fn at(&self, instant: Instant, offset: i64) -> i128 {
        i128::from(ns_between(self.began, instant)) + i128::from(offset)
    }

    /// Writes what has come from the host, once it is known where it belongs.
    fn place(&mut self, last: bool) -> Result<()> {
        let Some(offset) = self.offset(last) else {
            return Ok(());
        };
        for (track, name, (from, to), args) in std::mem::take(&mut self.pending) {
            let (from, to) = (self.at(from, offset), self.at(to, offset));
            let ended = &mut self.last_ns[usize::from(track == JOB)];
            let from = from.max(*ended);
            *ended = to.max(from);
            let times = (from, *ended);
            self.timeline.out.slice(track, name, times, args)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Ended> {
        self.place(true)?;
        if let Some(measured) = self.clock.about() {
            self.timeline.about.host_clock = measured;
        }
        self.timeline.end()
    }
}
