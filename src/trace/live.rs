//! A run that is going on, as a trace. What the job's thread hands over goes through a channel to a thread that runs the
//! core beside it and writes: the host pays for a message, not for the file.

use super::About;
use super::json::{Out, Track};
use super::writer::{Begin, During, Ended, HostSlice, Item, JOB, PHASES, write};
use crate::backend::{StageBackend, StepView};
use crate::error::{Error, Result};
use crate::files::Unfinished;
use crate::io::record::Line;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Instant;

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
        self.host(PHASES, name, during, json!({}))
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
        self.host(JOB, name, during, json!({ "request": request }))
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
        self.host(JOB, "handle events", (from, at), args)
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
        if self.writer.is_some() {
            let _ = self.end();
        }
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
