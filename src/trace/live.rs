//! A run that is going on, as a trace. What the job's thread hands over goes through a channel to a thread that runs the
//! core beside it and writes: the host pays for a message, not for the file.

use super::About;
use super::json::{Out, Track};
use super::parts::Costs;
use super::stages::timed;
use super::writer::{Begin, During, Ended, HostSlice, Item, JOB, PHASES, write};
use crate::backend::StageBackend;
use crate::backend::timing::{StageTimes, StepTimes};
use crate::error::{Error, Result};
use crate::files::Unfinished;
use crate::io::record::{Header, Line, Turn};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

/// Messages that may wait for the writer; a job that is ahead by more waits too.
const AHEAD: usize = 1 << 16;

/// What the job's thread is at, until it is at something else: waiting for events, or working through those that it took.
struct Doing {
    from: Instant,
    to: Instant,
    /// Tokens and ends among the events; `None`: it waits.
    handled: Option<[u64; 2]>,
}

/// The job's end of a trace.
pub struct Live {
    send: Option<SyncSender<Item>>,
    writer: Option<JoinHandle<Result<Ended>>>,
    doing: Option<Doing>,
    serving: Option<Instant>,
    /// What ended the writer.
    failure: Option<String>,
}

impl Live {
    /// Makes the file. `began`: the earliest time that a host slice will have.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create(path: &Path, began: Instant) -> Result<Self> {
        let out = Out::create(path, Unfinished::Kept)?;
        let (send, items) = sync_channel(AHEAD);
        let writer = std::thread::Builder::new()
            .name("trace".to_owned())
            .spawn(move || write(out, began, &items))
            .map_err(|error| Error::thread(&error))?;
        Ok(Self {
            send: Some(send),
            writer: Some(writer),
            doing: None,
            serving: None,
            failure: None,
        })
    }

    /// Stages that work side by side, each with a clock.
    pub fn timed(&self, stages: Vec<Box<dyn StageBackend>>) -> Vec<Box<dyn StageBackend>> {
        match &self.send {
            Some(send) => timed(stages, send),
            None => stages,
        }
    }

    /// The engine is launched. `parts`: its steps are timed part by part; what against, and when the clock of the parts
    /// was at 0, where that is the host's. `stages`: names of those that are timed one by one.
    ///
    /// # Errors
    /// The trace cannot be written, as of all that follows.
    pub fn begin(
        &mut self,
        header: Header,
        clock_zero: Option<Instant>,
        parts: Option<(Costs, Option<Instant>)>,
        stages: Vec<String>,
    ) -> Result<()> {
        self.serving = Some(Instant::now());
        self.put(Item::Begin(Box::new(Begin {
            header,
            clock_zero,
            parts,
            stages,
        })))
    }

    /// The parts of a step were timed; `lost` steps have been lost so far. Before the turn that collects the step.
    pub fn times(&mut self, times: StepTimes, lost: u64) -> Result<()> {
        self.put(Item::Times(Box::new(times), lost))
    }

    /// A stage that has a clock of its own had a step.
    pub fn stage_times(&mut self, times: StageTimes) -> Result<()> {
        self.put(Item::StageTimes(times))
    }

    /// Something that the whole run did.
    pub fn phase(&mut self, name: &'static str, during: During) -> Result<()> {
        self.host(PHASES, name, during, json!({}))
    }

    /// A request was handed over.
    pub fn submitted(&mut self, number: u64, line: Line, during: During) -> Result<()> {
        self.handed("submit", number, line, during)
    }

    /// A request was asked to end early.
    pub fn cancelled(&mut self, number: u64, line: Line, during: During) -> Result<()> {
        self.handed("cancel", number, line, during)
    }

    fn handed(&mut self, name: &'static str, of: u64, line: Line, during: During) -> Result<()> {
        self.other(during.0, None)?;
        self.put(Item::Line(line, during))?;
        self.host(JOB, name, during, json!({ "request": of }))
    }

    /// The host looked for an event, and found `line` or none. Looks one after the other make one slice of waiting;
    /// events one after the other make one of handling them, up to the next wait or the next request.
    pub fn looked(&mut self, line: Option<Line>, during: During) -> Result<()> {
        let handles = self.doing.as_ref().is_some_and(|d| d.handled.is_some());
        if line.is_none() || !handles {
            match &mut self.doing {
                Some(Doing { to, handled, .. }) if handled.is_none() => *to = during.1,
                _ => self.other(during.0, Some(Doing::new(during, None)))?,
            }
        }
        let Some(line) = line else {
            return Ok(());
        };
        if !handles {
            let now = (during.1, during.1);
            self.other(during.1, Some(Doing::new(now, Some([0, 0]))))?;
        }
        let is_token = matches!(line, Line::Token(_));
        if let Some([tokens, ends]) = self.doing.as_mut().and_then(|d| d.handled.as_mut()) {
            *tokens += u64::from(is_token);
            *ends += u64::from(!is_token);
        }
        self.put(Item::Line(line, during))
    }

    /// Something else begins at `at`: what was going on has ended.
    fn other(&mut self, at: Instant, next: Option<Doing>) -> Result<()> {
        let Some(Doing { from, to, handled }) = std::mem::replace(&mut self.doing, next) else {
            return Ok(());
        };
        match handled {
            None => self.host(JOB, "wait", (from, to), json!({})),
            Some([tokens, ends]) => {
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
        self.other(now, None)?;
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
        self.other(now, None)?;
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

    /// The writer's last word; if that is an error, the same one again however often it is asked for.
    fn end(&mut self) -> Result<Ended> {
        self.send = None;
        let ended = match (self.writer.take().map(JoinHandle::join), &self.failure) {
            (Some(Ok(ended)), _) => ended,
            (None, Some(failure)) => Err(Error::Runtime(failure.clone())),
            _ => Err(Error::Runtime(
                "the thread that writes the trace ended early: this is a bug in tailgraph".into(),
            )),
        };
        if let Err(error) = &ended {
            self.failure.get_or_insert_with(|| error.to_string());
        }
        ended
    }
}

impl Doing {
    fn new((from, to): During, handled: Option<[u64; 2]>) -> Self {
        Self { from, to, handled }
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
