//! A run that is going on, as a trace. What the job's thread hands over goes through a channel to a thread that runs the
//! core beside it and writes: the host pays for a message, not for the file.

use super::About;
use super::about::HostClock;
use super::clock::Windows;
use super::json::{Out, Track};
use super::stages::{StageRun, timed};
use super::timeline::{StepArgs, Timeline};
use crate::backend::StageBackend;
use crate::error::{Error, Result};
use crate::io::record::{Header, Line, Turn};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// Messages that may wait for the writer; a job that is ahead by more waits too.
const AHEAD: usize = 1 << 16;
/// The process of the host.
const HOST: u32 = 3;
/// What the whole run is doing: load, serve, drain.
const PHASES: Track = Track {
    process: HOST,
    thread: 300,
};
/// What the thread does that hands requests over and takes events.
const JOB: Track = Track {
    process: HOST,
    thread: 301,
};

/// From and to, on the host's clock.
pub type During = (Instant, Instant);

pub(super) enum Item {
    Begin(Box<Begin>),
    /// A line, and when the host began and ended to hand it over or to take it.
    Line(Line, During),
    Host(HostSlice),
    Stage(StageRun),
}

pub(super) struct Begin {
    header: Header,
    /// 0 of the scheduler's clock, where that is the host's.
    clock_zero: Option<Instant>,
}

pub(super) struct HostSlice {
    track: Track,
    name: &'static str,
    during: During,
    args: Value,
}

/// What the job's thread is at, until it is at something else.
enum Doing {
    Waiting(During),
    /// Taking events and working through them.
    Handling {
        from: Instant,
        tokens: u64,
        ends: u64,
    },
}

/// The job's end of a trace.
pub struct Live {
    send: Option<SyncSender<Item>>,
    writer: Option<JoinHandle<Result<About>>>,
    doing: Option<Doing>,
    serving: Option<Instant>,
}

impl Live {
    /// Makes the file. `began`: the earliest time that a host slice will have.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(path: &Path, began: Instant) -> Result<Self> {
        let out = Out::create(path)?;
        let (send, items) = sync_channel(AHEAD);
        let writer = std::thread::Builder::new()
            .name("trace".to_owned())
            .spawn(move || write(out, began, &items))
            .map_err(|error| Error::Runtime(format!("the system refused a thread: {error}")))?;
        Ok(Self {
            send: Some(send),
            writer: Some(writer),
            doing: None,
            serving: None,
        })
    }

    /// Stages that work side by side, each with a clock.
    pub fn timed(&self, stages: Vec<Box<dyn StageBackend>>) -> Vec<Box<dyn StageBackend>> {
        match &self.send {
            Some(send) => timed(stages, send),
            None => stages,
        }
    }

    /// The engine is launched.
    ///
    /// # Errors
    /// The trace cannot be written, as of all that follows.
    pub fn begin(&mut self, header: Header, clock_zero: Option<Instant>) -> Result<()> {
        self.serving = Some(Instant::now());
        self.put(Item::Begin(Box::new(Begin { header, clock_zero })))
    }

    /// Something that the whole run did.
    pub fn phase(&mut self, name: &'static str, during: During) -> Result<()> {
        self.host(PHASES, name, during, json!({}))
    }

    /// A request was handed over.
    pub fn submitted(&mut self, number: u64, line: Line, during: During) -> Result<()> {
        self.other(during.0)?;
        self.put(Item::Line(line, during))?;
        self.host(JOB, "submit", during, json!({ "request": number }))
    }

    /// A request was asked to end early.
    pub fn cancelled(&mut self, number: u64, line: Line, during: During) -> Result<()> {
        self.other(during.0)?;
        self.put(Item::Line(line, during))?;
        self.host(JOB, "cancel", during, json!({ "request": number }))
    }

    /// The host looked for an event, and found `line` or none. Looks one after the other make one slice of waiting;
    /// events one after the other make one of handling them, up to the next wait or the next request.
    pub fn looked(&mut self, line: Option<Line>, during: During) -> Result<()> {
        let Some(line) = line else {
            return match &mut self.doing {
                Some(Doing::Waiting((_, to))) => {
                    *to = during.1;
                    Ok(())
                }
                _ => self.wait(during),
            };
        };
        let (tokens, ends) = match line {
            Line::Token(_) => (1, 0),
            _ => (0, 1),
        };
        match &mut self.doing {
            Some(Doing::Handling {
                tokens: so_far,
                ends: ended,
                ..
            }) => {
                *so_far += tokens;
                *ended += ends;
            }
            _ => {
                self.wait(during)?;
                self.other(during.1)?;
                self.doing = Some(Doing::Handling {
                    from: during.1,
                    tokens,
                    ends,
                });
            }
        }
        self.put(Item::Line(line, during))
    }

    fn wait(&mut self, during: During) -> Result<()> {
        match &mut self.doing {
            Some(Doing::Waiting((_, to))) => *to = during.1,
            _ => {
                self.other(during.0)?;
                self.doing = Some(Doing::Waiting(during));
            }
        }
        Ok(())
    }

    /// Something else begins at `at`: what was going on has ended.
    fn other(&mut self, at: Instant) -> Result<()> {
        match self.doing.take() {
            None => Ok(()),
            Some(Doing::Waiting(during)) => self.host(JOB, "wait", during, json!({})),
            Some(Doing::Handling { from, tokens, ends }) => {
                let args = json!({ "tokens": tokens, "ends": ends });
                self.host(JOB, "handle events", (from, at), args)
            }
        }
    }

    /// A turn's record was read.
    pub fn turn(&mut self, turn: Turn, during: During) -> Result<()> {
        self.put(Item::Line(Line::Turn(Box::new(turn)), during))
    }

    /// No more requests come.
    pub fn draining(&mut self) -> Result<()> {
        let now = Instant::now();
        self.other(now)?;
        match self.serving.replace(now) {
            Some(from) => self.phase("serve", (from, now)),
            None => Ok(()),
        }
    }

    fn host(
        &mut self,
        track: Track,
        name: &'static str,
        during: During,
        args: Value,
    ) -> Result<()> {
        self.put(Item::Host(HostSlice {
            track,
            name,
            during,
            args,
        }))
    }

    fn put(&mut self, item: Item) -> Result<()> {
        let sent = self
            .send
            .as_ref()
            .is_some_and(|send| send.send(item).is_ok());
        if sent {
            return Ok(());
        }
        // Only an error ends the writer while there is something to write.
        self.end().map(drop)
    }

    /// The run came to its end: `done` is its last line.
    ///
    /// # Errors
    /// The trace cannot be written, or its core disagrees with the run.
    pub fn finish(mut self, done: Line) -> Result<About> {
        let now = Instant::now();
        self.other(now)?;
        if let Some(from) = self.serving.take() {
            self.phase("drain", (from, now))?;
        }
        self.put(Item::Line(done, (now, now)))?;
        self.end()
    }

    fn end(&mut self) -> Result<About> {
        self.send = None;
        let ended = self.writer.take().map(JoinHandle::join);
        match ended {
            Some(Ok(result)) => result,
            _ => Err(Error::Runtime(
                "the thread that writes the trace ended early: this is a bug in tailgraph".into(),
            )),
        }
    }
}

impl Drop for Live {
    /// A run that failed leaves what there is of its trace; the failure is told elsewhere.
    fn drop(&mut self) {
        if self.writer.is_some() {
            let _ = self.end();
        }
    }
}

/// The host's clock beside the scheduler's.
enum Clock {
    /// One clock; the scheduler's is at 0 when the host's is at this, in ns since the run began.
    Same(i128),
    Measured(Box<Windows>),
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
    stages: Vec<StageRun>,
    /// No host slice of a track begins before the one ahead of it ended, to the last nanosecond of rounding.
    last_ns: [i128; 2],
    left_out: u64,
}

fn write(out: Out, began: Instant, items: &Receiver<Item>) -> Result<About> {
    let mut early = vec![];
    for item in items {
        let begin = match item {
            Item::Begin(begin) => begin,
            Item::Host(slice) => {
                early.push(slice);
                continue;
            }
            Item::Line(..) | Item::Stage(_) => continue,
        };
        let mut writing = Writing::new(out, began, &begin)?;
        writing.pending = early;
        for item in items {
            writing.item(item)?;
        }
        return writing.finish();
    }
    Err(Error::Runtime(
        "the run ended before its engine began: there is nothing to trace".into(),
    ))
}

impl Writing {
    fn new(out: Out, began: Instant, begin: &Begin) -> Result<Self> {
        let mut timeline = Timeline::new(out, &begin.header, "run".to_owned())?;
        if begin.header.engine.stages > 1 {
            timeline.name_stages()?;
        }
        let out = timeline.out();
        out.process(HOST, "host", 3)?;
        out.thread(PHASES, "the run")?;
        out.thread(JOB, "job: requests in, events out")?;
        let clock = match begin.clock_zero {
            Some(zero) => Clock::Same(since(began, zero).into()),
            None => Clock::Measured(Box::default()),
        };
        Ok(Self {
            timeline,
            clock,
            began,
            zero_known: false,
            pending: vec![],
            stages: vec![],
            last_ns: [i128::MIN; 2],
            left_out: 0,
        })
    }

    fn item(&mut self, item: Item) -> Result<()> {
        match item {
            Item::Begin(_) => {}
            Item::Host(slice) => self.pending.push(slice),
            Item::Stage(run) => self.stages.push(run),
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
        let (before, after) = (since(self.began, during.0), since(self.began, during.1));
        if let Clock::Measured(windows) = &mut self.clock {
            match line {
                Line::Request(_) => windows.exchanges.request(before),
                Line::Turn(turn) => windows.exchanges.record(turn, before, after),
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
            Clock::Measured(windows) => match windows.offset(now_ns, last) {
                None => return Ok(()),
                Some(offset) => offset,
            },
        };
        let Some(offset) = offset else {
            self.left_out += self.pending.len() as u64;
            self.pending.clear();
            return Ok(());
        };
        let began = self.began;
        let at = |instant| i128::from(since(began, instant)) + offset;
        for slice in self.pending.drain(..) {
            let ended = &mut self.last_ns[usize::from(slice.track == JOB)];
            let from = at(slice.during.0).max(*ended);
            let to = at(slice.during.1).max(from);
            *ended = to;
            let out = self.timeline.out();
            out.slice(slice.track, slice.name, (from, to), slice.args)?;
        }
        for run in self.stages.drain(..) {
            let args = StepArgs::new(
                run.step,
                run.bucket_rows,
                run.rows,
                run.sequences,
                run.sample_rows,
            );
            let times = (at(run.from), at(run.to));
            self.timeline.stage_run(run.stage, run.kind, times, args)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<About> {
        let now = self.began.elapsed().as_nanos() as i64;
        self.place(now, true)?;
        let clock = match &self.clock {
            Clock::Same(_) => HostClock::Same,
            Clock::Measured(windows) => windows.about(self.left_out),
        };
        self.timeline.set_host_clock(clock);
        self.timeline.finish()
    }
}

/// In ns; below 0 where `instant` is the earlier.
fn since(began: Instant, instant: Instant) -> i64 {
    match instant.checked_duration_since(began) {
        Some(after) => after.as_nanos() as i64,
        None => -(began.duration_since(instant).as_nanos() as i64),
    }
}
