//! Replicas as the loops use them, with a recording of each where `--record` asks for them.

use super::any_engine::AnyEngine;
use super::recording::{END_LIMIT, EVENT_POLL, Keep, does_not_end};
use crate::error::Result;
use crate::io::record::{Done, Header, Line, Turn, Writer};
use crate::runtime::{EngineStatus, Event, Part, Replicas, Request};
use crate::sys::abi;
use std::time::{Duration, Instant};

/// Started replicas, and what is kept of their runs.
pub struct RecordedReplicas {
    replicas: Replicas,
    /// One for each, or none.
    recorders: Vec<Recorder>,
}

/// A replica's recording, in its own numbers of requests.
struct Recorder {
    out: Writer,
    done: Done,
    /// The scheduler's last turn is on record.
    ended: bool,
}

impl Recorder {
    fn new(mut out: Writer, header: Header) -> Result<Self> {
        out.put(&Line::Header(Box::new(header)))?;
        Ok(Self {
            out,
            done: Done {
                turns: 0,
                tokens: 0,
            },
            ended: false,
        })
    }

    fn part(&mut self, part: Part) -> Result<()> {
        let line = match part {
            Part::Request(request) => Line::Request(Box::new(request)),
            Part::Cancel(request) => Line::Cancel(request),
            Part::Turn(turn) => {
                self.done.turns += 1;
                self.ended |= turn.outcome.action == abi::TG_ACTION_DONE;
                Line::Turn(Box::new(Turn::from(&*turn)))
            }
            Part::Event(event) => {
                self.done.tokens += u64::from(matches!(event, Event::Token { .. }));
                Line::from(&event)
            }
        };
        self.out.put(&line)
    }

    fn finish(mut self, whole: bool) -> Result<()> {
        self.out.put(&Line::Done(self.done))?;
        self.out.finish(whole)
    }
}

impl RecordedReplicas {
    /// `headers`: one for each recording of `keep`.
    ///
    /// # Errors
    /// What is kept cannot be written.
    pub fn new(headers: Vec<Header>, replicas: Replicas, keep: Keep) -> Result<Self> {
        let files = keep.records.into_iter().zip(headers);
        let recorders = files.map(|(out, header)| Recorder::new(out, header));
        Ok(Self {
            replicas,
            recorders: recorders.collect::<Result<_>>()?,
        })
    }

    /// With every request ended: drains the replicas, waits for their schedulers' ends where these are kept, and ends them.
    /// `whole`: the run did what it was asked to.
    ///
    /// # Errors
    /// What is kept cannot be written, or a scheduler does not end.
    pub fn finish(mut self, whole: bool) -> Result<()> {
        self.replicas.drain();
        let start = Instant::now();
        while self.recorders.iter().any(|recorder| !recorder.ended) {
            self.replicas.next_event(EVENT_POLL)?;
            self.parts()?;
            if start.elapsed() > END_LIMIT {
                return Err(does_not_end());
            }
        }
        let mut recorders = self.recorders.into_iter();
        recorders.try_for_each(|recorder| recorder.finish(whole))
    }

    /// Takes all that is to be kept and is there.
    fn parts(&mut self) -> Result<()> {
        for (replica, recorder) in self.recorders.iter_mut().enumerate() {
            while let Some(part) = self.replicas.next_part(replica) {
                recorder.part(part)?;
            }
        }
        Ok(())
    }
}

impl AnyEngine for RecordedReplicas {
    fn try_submit(&mut self, request: &Request) -> Result<Option<u64>> {
        self.replicas.try_submit(request)
    }

    fn cancel(&mut self, request: u64) -> bool {
        self.replicas.cancel(request)
    }

    fn next_event(&mut self, wait: Duration) -> Result<Option<Event>> {
        let event = self.replicas.next_event(wait);
        self.parts()?;
        event
    }

    fn status(&self) -> EngineStatus {
        self.replicas.status()
    }
}
