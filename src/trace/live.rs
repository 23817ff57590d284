//! A run that is going on, as a trace. What the job's thread hands over goes through a channel to a thread that runs the
//! core beside it and writes: the host pays for a message, not for the file.

use super::About;
use super::item::{Begin, During, HostSlice, Item};
use super::json::{Out, Track};
use super::parts::Costs;
use super::stages::timed;
use super::writer::{Ended, JOB, PHASES, write};
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

    /// The run came to its end: `done` is its last line. The file gets its name.
    ///
    /// # Errors
    /// The trace cannot be written, or its core disagrees with the run.
    pub fn finish(self, done: Line) -> Result<About> {
        let (about, out) = self.last(done)?;
        out.finish()?;
        Ok(about)
    }

    /// The run was asked to end early: the trace stays in FILE.partial.
    ///
    /// # Errors
    /// As [`Live::finish`].
    pub fn leave(self, done: Line) -> Result<About> {
        self.last(done).map(|(about, _)| about)
    }

    fn last(mut self, done: Line) -> Result<Ended> {
        let now = Instant::now();
        self.other(now)?;
        if let Some(from) = self.serving.take() {
            self.phase("drain", (from, now))?;
        }
        self.put(Item::Line(done, (now, now)))?;
        self.end()
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

impl Drop for Live {
    /// A run that failed leaves what there is of its trace; the failure is told elsewhere.
    fn drop(&mut self) {
        if self.writer.is_some() {
            let _ = self.end();
        }
    }
}
