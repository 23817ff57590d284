//! An engine as the loops use it, with everything that goes in and comes out kept where `--record` asks for it.

use super::args::RecordArg;
use super::device::Device;
use super::generate::keep_apart;
use crate::error::{Error, Result};
use crate::io::record::{Done, Header, Line, Turn, Writer};
use crate::runtime::{Engine, EngineStatus, Event, Request};
use crate::sys::abi;
use std::path::Path;
use std::time::{Duration, Instant};

const EVENT_POLL: Duration = Duration::from_millis(1);
/// With all requests ended a scheduler ends with its next turn.
const END_LIMIT: Duration = Duration::from_secs(20);

impl RecordArg {
    /// Makes the file.
    pub fn create(&self) -> Result<Option<Writer>> {
        self.record.as_deref().map(Writer::create).transpose()
    }

    /// Refuses to write over the other files of a run.
    pub fn keep_apart(&self, files: &[Option<&Path>]) -> Result<()> {
        let Some(record) = &self.record else {
            return Ok(());
        };
        for file in files.iter().flatten() {
            keep_apart("--record", record, file, "run's own")?;
        }
        Ok(())
    }
}

/// A started engine, and its recording where there is one.
pub struct Serving {
    engine: Engine,
    record: Option<Recorder>,
}

struct Recorder {
    out: Writer,
    done: Done,
    /// The scheduler's last turn is on record.
    ended: bool,
}

impl Recorder {
    /// Takes all trace records that are there.
    fn turns(&mut self, engine: &mut Engine) -> Result<()> {
        while let Some(record) = engine.next_trace() {
            self.out.put(&Line::Turn(Box::new(Turn::from(&record))))?;
            self.done.turns += 1;
            self.ended |= record.outcome.action == abi::TG_ACTION_DONE;
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<()> {
        self.done.tokens += u64::from(matches!(event, Event::Token { .. }));
        self.out.put(&Line::from(event))
    }
}

impl Serving {
    pub fn plain(engine: Engine) -> Self {
        Self {
            engine,
            record: None,
        }
    }

    /// `engine` was started with [`crate::plan::EngineOptions::record`].
    pub fn recorded(header: Header, engine: Engine, mut out: Writer) -> Result<Self> {
        out.put(&Line::Header(Box::new(header)))?;
        let record = Recorder {
            out,
            done: Done {
                turns: 0,
                tokens: 0,
            },
            ended: false,
        };
        Ok(Self {
            engine,
            record: Some(record),
        })
    }

    /// With every request ended: waits for the scheduler's end where that is recorded, and ends the engine.
    ///
    /// # Errors
    /// The recording cannot be written, or the scheduler does not end.
    pub fn finish(mut self) -> Result<()> {
        let Some(mut record) = self.record.take() else {
            return Ok(());
        };
        self.engine.drain();
        let start = Instant::now();
        while !record.ended {
            if let Some(event) = self.engine.next_event(EVENT_POLL)? {
                record.event(&event)?;
            }
            record.turns(&mut self.engine)?;
            if start.elapsed() > END_LIMIT {
                return Err(Error::Runtime(format!(
                    "the scheduler did not end {END_LIMIT:?} after its last request: its recording lacks the end"
                )));
            }
        }
        record.out.put(&Line::Done(record.done.clone()))?;
        record.out.flush()
    }
}

impl Device for Serving {
    fn try_submit(&mut self, request: &Request) -> Result<Option<u64>> {
        let number = self.engine.try_submit(request)?;
        if let (Some(record), Some(_)) = (&mut self.record, number) {
            record.out.put(&Line::Request(Box::new(request.clone())))?;
        }
        Ok(number)
    }

    fn cancel(&mut self, request: u64) -> bool {
        if let Some(record) = &mut self.record {
            // A file that cannot be written says so with its next line; a cancel may come twice.
            return self.engine.cancel(request) && record.out.put(&Line::Cancel(request)).is_ok();
        }
        self.engine.cancel(request)
    }

    fn next_event(&mut self, wait: Duration) -> Result<Option<Event>> {
        let event = self.engine.next_event(wait);
        if let Some(record) = &mut self.record {
            if let Ok(Some(event)) = &event {
                record.event(event)?;
            }
            record.turns(&mut self.engine)?;
        }
        event
    }

    fn status(&self) -> EngineStatus {
        self.engine.status()
    }
}
