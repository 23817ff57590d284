//! An engine as the loops use it, with everything that goes in and comes out kept where `--record` or `trace` asks for
//! it.

use super::any_engine::AnyEngine;
use crate::backend::timing::{StageClock, StepClock};
use crate::error::{Error, Result};
use crate::io::record::{Done, Header, Line, Turn, Writer, record_paths};
use crate::runtime::{Engine, EngineStatus, Event, Request};
use crate::sys::abi;
use crate::trace::parts::Costs;
use crate::trace::{About, Begin, Item, Live};
use std::path::Path;
use std::time::{Duration, Instant};

pub(super) const EVENT_POLL: Duration = Duration::from_millis(1);
/// With all requests ended a scheduler ends with its next turn.
pub(super) const END_LIMIT: Duration = Duration::from_secs(20);
/// A stage tells of a step as soon as it has ended.
const LAST_TIMES_LIMIT: Duration = Duration::from_secs(1);

/// Where a run is kept, if anywhere.
#[derive(Default)]
pub struct Keep {
    /// One for each replica.
    pub records: Vec<Writer>,
    pub trace: Option<Live>,
    /// The trace has each step's kernels, or operations.
    pub parts: bool,
}

impl Keep {
    /// Makes the file of a recording, or those of so many replicas, where there are to be any.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn recording(path: Option<&Path>, replicas: usize) -> Result<Self> {
        let records = path.map(|path| record_paths(path, replicas));
        let records = records.into_iter().flatten();
        Ok(Self {
            records: records
                .map(|path| Writer::create(&path))
                .collect::<Result<_>>()?,
            ..Self::default()
        })
    }

    /// All of a run's turns are wanted.
    pub fn turns(&self) -> bool {
        !self.records.is_empty() || self.trace.is_some()
    }
}

/// Where the times of an engine's steps come out, if they are timed.
#[derive(Default)]
pub struct Timed {
    /// Part by part, and what these are measured against.
    pub parts: Option<(Box<dyn StepClock>, Costs)>,
    /// Of stages that have clocks of their own.
    pub stages: Option<Box<dyn StageClock>>,
    /// Of stages that are timed one by one, whatever their clock.
    pub names: Vec<String>,
}

/// A started engine, and what is kept of its run.
pub struct Recorded {
    engine: Engine,
    record: Option<Recorder>,
}

struct Recorder {
    keep: Keep,
    clock: Option<Box<dyn StepClock>>,
    stage_clock: Option<Box<dyn StageClock>>,
    done: Done,
    /// Composed so far.
    steps: u64,
    /// The scheduler's last turn is on record.
    ended: bool,
    /// What a cancel could not write, for the next call that can fail.
    unwritten: Option<Error>,
}

impl Recorder {
    /// Is all written that was to be?
    fn written(&mut self) -> Result<()> {
        self.unwritten.take().map_or(Ok(()), Err)
    }

    fn put(&mut self, line: &Line) -> Result<()> {
        self.keep
            .records
            .iter_mut()
            .try_for_each(|out| out.put(line))
    }

    /// Takes all trace records that are there.
    fn turns(&mut self, engine: &mut Engine) -> Result<()> {
        loop {
            let before = Instant::now();
            let Some(record) = engine.next_trace() else {
                return Ok(());
            };
            let turn = Turn::from(&record);
            self.times()?;
            self.stage_times()?;
            let line = Line::Turn(Box::new(turn));
            if let Some(trace) = &mut self.keep.trace {
                trace.put(Item::Line(line.clone(), (before, Instant::now())))?;
            }
            self.put(&line)?;
            self.done.turns += 1;
            self.steps += u64::from(record.outcome.action == abi::TG_ACTION_STEP);
            self.ended |= record.outcome.action == abi::TG_ACTION_DONE;
        }
    }

    /// Takes all timed steps that are there: what a turn collected is among them.
    fn times(&mut self) -> Result<()> {
        let (Some(clock), Some(trace)) = (&mut self.clock, &mut self.keep.trace) else {
            return Ok(());
        };
        while let Some(times) = clock.next()? {
            trace.put(Item::Times(Box::new(times), clock.lost()))?;
        }
        Ok(())
    }

    /// Takes all times of stages that are there.
    fn stage_times(&mut self) -> Result<()> {
        let (Some(clock), Some(trace)) = (&mut self.stage_clock, &mut self.keep.trace) else {
            return Ok(());
        };
        while let Some(times) = clock.next() {
            trace.put(Item::StageTimes(times))?;
        }
        Ok(())
    }

    /// With the scheduler's last turn on record: stages may tell of their last steps a moment later.
    fn last_stage_times(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            self.stage_times()?;
            let through = self.stage_clock.as_ref().map(|clock| clock.through());
            let ended = through.is_none_or(|through| through >= self.steps);
            if ended || start.elapsed() > LAST_TIMES_LIMIT {
                return Ok(());
            }
            std::thread::sleep(EVENT_POLL);
        }
    }

    fn request(&mut self, number: u64, request: &Request, before: Instant) -> Result<()> {
        let line = Line::Request(Box::new(request.clone()));
        self.put(&line)?;
        match &mut self.keep.trace {
            Some(trace) => trace.handed("submit", number, line, (before, Instant::now())),
            None => Ok(()),
        }
    }

    fn cancel(&mut self, request: u64, before: Instant) -> Result<()> {
        let line = Line::Cancel(request);
        self.put(&line)?;
        match &mut self.keep.trace {
            Some(trace) => trace.handed("cancel", request, line, (before, Instant::now())),
            None => Ok(()),
        }
    }

    /// The host looked for an event since `before`.
    fn looked(&mut self, event: Option<&Event>, before: Instant) -> Result<()> {
        let line = event.map(Line::from);
        self.done.tokens += u64::from(matches!(line, Some(Line::Token(_))));
        if let Some(line) = &line {
            self.put(line)?;
        }
        match &mut self.keep.trace {
            Some(trace) => trace.looked(line, (before, Instant::now())),
            None => Ok(()),
        }
    }

    /// The run is over. What its trace says of itself, where there is one. Files of a run that is not `whole` keep the
    /// names of unfinished ones.
    fn finish(self, whole: bool) -> Result<Option<About>> {
        let Self { keep, done, .. } = self;
        let done = Line::Done(done);
        for mut out in keep.records {
            out.put(&done)?;
            out.finish(whole)?;
        }
        let finish = |trace: Live| trace.finish(done, whole);
        keep.trace.map(finish).transpose()
    }
}

impl Recorded {
    /// `header`, of what is kept: `None` where nothing is. `engine` was started with
    /// [`crate::plan::EngineOptions::record`] where turns are kept.
    pub fn new(
        header: Option<Header>,
        engine: Engine,
        mut keep: Keep,
        timed: Timed,
    ) -> Result<Self> {
        let Some(header) = header else {
            return Ok(Self {
                engine,
                record: None,
            });
        };
        for out in &mut keep.records {
            out.put(&Line::Header(Box::new(header.clone())))?;
        }
        if let Some(trace) = &mut keep.trace {
            let parts = timed.parts.as_ref();
            let parts = parts.map(|(clock, costs)| (costs.clone(), clock.zero()));
            trace.begin(Begin {
                header,
                clock_zero: engine.clock_zero(),
                parts,
                stages: timed.names,
            })?;
        }
        let record = Recorder {
            keep,
            clock: timed.parts.map(|(clock, _)| clock),
            stage_clock: timed.stages,
            steps: 0,
            done: Done {
                turns: 0,
                tokens: 0,
            },
            ended: false,
            unwritten: None,
        };
        Ok(Self {
            engine,
            record: Some(record),
        })
    }

    /// With every request ended: drains the engine, waits for the scheduler's end where that is kept, and ends it. `whole`:
    /// the run did what it was asked to.
    ///
    /// # Errors
    /// What is kept cannot be written, or the scheduler does not end.
    pub fn finish(self, whole: bool) -> Result<Option<About>> {
        let Self { engine, record } = self;
        let mut record = record;
        // Dropped before the record, also where what follows fails: a trace ends once the stages have let go of it.
        let mut engine = engine;
        let Some(recorder) = &mut record else {
            engine.drain();
            return Ok(None);
        };
        recorder.written()?;
        if let Some(trace) = &mut recorder.keep.trace {
            trace.draining()?;
        }
        engine.drain();
        let start = Instant::now();
        while !recorder.ended {
            let before = Instant::now();
            let event = engine.next_event(EVENT_POLL)?;
            recorder.looked(event.as_ref(), before)?;
            recorder.turns(&mut engine)?;
            if start.elapsed() > END_LIMIT {
                return Err(does_not_end());
            }
        }
        record.map_or(Ok(None), |mut record| {
            record.last_stage_times()?;
            record.finish(whole)
        })
    }
}

/// A scheduler has not ended within [`END_LIMIT`].
pub(super) fn does_not_end() -> Error {
    Error::Runtime(format!(
        "the scheduler did not end {END_LIMIT:?} after its last request: its recording lacks the end"
    ))
}

impl AnyEngine for Recorded {
    fn try_submit(&mut self, request: &Request) -> Result<Option<u64>> {
        let before = Instant::now();
        let number = self.engine.try_submit(request)?;
        if let (Some(record), Some(number)) = (&mut self.record, number) {
            record.request(number, request, before)?;
        }
        Ok(number)
    }

    fn cancel(&mut self, request: u64) -> bool {
        let before = Instant::now();
        let taken = self.engine.cancel(request);
        match &mut self.record {
            Some(record) if taken => {
                if let Err(error) = record.cancel(request, before) {
                    record.unwritten.get_or_insert(error);
                }
                true
            }
            _ => taken,
        }
    }

    fn next_event(&mut self, wait: Duration) -> Result<Option<Event>> {
        let before = Instant::now();
        let event = self.engine.next_event(wait);
        if let Some(record) = &mut self.record {
            record.written()?;
            if let Ok(event) = &event {
                record.looked(event.as_ref(), before)?;
            }
            record.turns(&mut self.engine)?;
        }
        event
    }

    fn status(&self) -> EngineStatus {
        self.engine.status()
    }
}
