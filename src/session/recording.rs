//! An engine whose run is kept: everything that goes in and comes out, where `--record` or `trace` asks for it.

use crate::backend::device::Clocks;
use crate::error::{Error, Result};
use crate::io::record::{Done, Header, Line, Writer, record_paths};
use crate::plan::{BucketSizes, StepKind};
use crate::runtime::{Engine, EngineStatus, Event, Part, Request, Waker};
use crate::sys::abi::{self, tg_trace};
use crate::trace::{About, Begin, Item, Live};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

const EVENT_POLL: Duration = Duration::from_millis(1);
/// How long a scheduler may take to end once all requests have: it ends with its next turn.
const END_LIMIT: Duration = Duration::from_secs(20);
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
    /// Is told of each step that has come back, but for some where the scheduler was faster than its host.
    pub steps: Option<TellStep>,
}

/// A step that has come back.
#[derive(Debug, Clone, Copy)]
pub struct StepTime {
    pub kind: StepKind,
    /// Tokens.
    pub bucket: u32,
    /// From composed to collected, by the scheduler's clock.
    pub took: Duration,
}

pub type TellStep = Box<dyn FnMut(StepTime) + Send>;

/// Tells of the steps of one scheduler.
struct Steps {
    tell: TellStep,
    bucket_sizes: BucketSizes,
    /// Numbers, times of being composed in ns, kinds and buckets of those in flight.
    in_flight: Vec<VecDeque<(u64, u64, StepKind, u32)>>,
}

impl Steps {
    fn turn(&mut self, replica: usize, turn: &tg_trace) {
        let (outcome, in_flight) = (&turn.outcome, &mut self.in_flight[replica]);
        // Turns may be lost: steps before this one came back in one of those.
        while let Some((number, composed_ns, kind, bucket)) = in_flight.pop_front() {
            if outcome.returned_step == abi::TG_NO_STEP || number > outcome.returned_step {
                in_flight.push_front((number, composed_ns, kind, bucket));
                break;
            }
            if number == outcome.returned_step {
                let took = turn.inputs.now_ns.saturating_sub(composed_ns);
                let took = Duration::from_nanos(took);
                (self.tell)(StepTime { kind, bucket, took });
            }
        }
        let kind = StepKind::ALL.get(outcome.kind as usize);
        if let (abi::TG_ACTION_STEP, Some(&kind)) = (outcome.action, kind) {
            let sizes = self.bucket_sizes.of(kind);
            let bucket = sizes.get(outcome.bucket as usize).copied();
            in_flight.push_back((outcome.step, turn.end_ns, kind, bucket.unwrap_or(0)));
        }
    }
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

/// A started engine, and what is kept of its run.
pub struct Recorded {
    engine: Box<dyn Engine>,
    /// One for each replica; none where nothing is kept.
    recorders: Vec<Recorder>,
    steps: Option<Steps>,
    trace: Option<Traced>,
    /// What a cancel could not write, for the next call that can fail.
    unwritten: Option<Error>,
}

/// A scheduler's run as it goes into a file, if it does.
struct Recorder {
    out: Option<Writer>,
    done: Done,
    /// Composed so far.
    steps: u64,
    /// The scheduler's last turn is on record.
    ended: bool,
}

impl Recorder {
    fn put(&mut self, line: &Line) -> Result<()> {
        match line {
            Line::Turn(turn) => {
                self.done.turns += 1;
                self.steps += u64::from(turn.action == abi::TG_ACTION_STEP);
                self.ended |= turn.action == abi::TG_ACTION_DONE;
            }
            Line::Token(_) => self.done.tokens += 1,
            _ => {}
        }
        self.out.as_mut().map_or(Ok(()), |out| out.put(line))
    }
}

/// A trace of a single scheduler's run, and the clocks whose times it has.
struct Traced {
    trace: Live,
    clocks: Clocks,
}

impl Traced {
    /// Takes the times of steps that are there: what a turn collected is among them.
    fn times(&mut self) -> Result<()> {
        if let Some(clock) = &mut self.clocks.parts {
            while let Some(times) = clock.next()? {
                self.trace.put(Item::Times(Box::new(times), clock.lost()))?;
            }
        }
        if let Some(clock) = &mut self.clocks.stages {
            while let Some(times) = clock.next() {
                self.trace.put(Item::StageTimes(times))?;
            }
        }
        Ok(())
    }

    /// With the scheduler's last turn on record: stages may tell of the last of its steps a moment later.
    fn last_times(&mut self, steps: u64) -> Result<()> {
        let start = Instant::now();
        loop {
            self.times()?;
            let through = self.clocks.stages.as_ref().map(|clock| clock.through());
            let ended = through.is_none_or(|through| through >= steps);
            if ended || start.elapsed() > LAST_TIMES_LIMIT {
                return Ok(());
            }
            std::thread::sleep(EVENT_POLL);
        }
    }
}

impl Recorded {
    /// `headers`: one for each replica of the engine, which was started with
    /// [`crate::plan::EngineOptions::record`]; none where no turns are kept. `begin` comes with a trace.
    ///
    /// # Errors
    /// What is kept cannot be written.
    pub fn new(
        engine: Box<dyn Engine>,
        bucket_sizes: &BucketSizes,
        headers: Vec<Header>,
        keep: Keep,
        begin: Option<(Begin, Clocks)>,
    ) -> Result<Self> {
        let steps = keep.steps.map(|tell| Steps {
            tell,
            bucket_sizes: bucket_sizes.clone(),
            in_flight: vec![VecDeque::new(); engine.replicas()],
        });
        let mut outs = keep.records.into_iter();
        let recorder = |header| {
            let mut out = outs.next();
            if let Some(out) = &mut out {
                out.put(&Line::Header(Box::new(header)))?;
            }
            Ok(Recorder {
                out,
                done: Done {
                    turns: 0,
                    tokens: 0,
                },
                steps: 0,
                ended: false,
            })
        };
        let recorders = headers.into_iter().map(recorder).collect::<Result<_>>()?;
        let mut traced = None;
        if let Some((mut trace, (begin, clocks))) = keep.trace.zip(begin) {
            trace.begin(begin)?;
            traced = Some(Traced { trace, clocks });
        }
        Ok(Self {
            engine,
            recorders,
            steps,
            trace: traced,
            unwritten: None,
        })
    }

    /// Ends a run whose requests have all ended: drains the engine, waits for the schedulers' ends where these are kept, and ends
    /// it. Returns what the trace says of itself, where there is one. `whole`: the run did what it was asked to; files of one
    /// that did not keep the names of unfinished ones.
    ///
    /// # Errors
    /// What is kept cannot be written, or a scheduler does not end.
    pub fn finish(mut self, whole: bool) -> Result<Option<About>> {
        self.unwritten.take().map_or(Ok(()), Err)?;
        if let Some(traced) = &mut self.trace {
            traced.trace.draining()?;
        }
        self.engine.drain();
        let start = Instant::now();
        while self.recorders.iter().any(|recorder| !recorder.ended) {
            self.next_event(EVENT_POLL)?;
            if start.elapsed() > END_LIMIT {
                return Err(Error::Runtime(format!(
                    "the scheduler did not end {END_LIMIT:?} after its last request: its recording lacks the end"
                )));
            }
        }
        let mut about = None;
        for recorder in self.recorders {
            let done = Line::Done(recorder.done);
            if let Some(mut out) = recorder.out {
                out.put(&done)?;
                out.finish(whole)?;
            }
            if let Some(mut traced) = self.trace.take() {
                traced.last_times(recorder.steps)?;
                about = Some(traced.trace.finish(done, whole)?);
            }
        }
        Ok(about)
    }

    /// Keeps, and tells, all that has been recorded since.
    fn take_parts(&mut self) -> Result<()> {
        let replicas = match &self.steps {
            Some(_) => self.engine.replicas(),
            None => self.recorders.len(),
        };
        for replica in 0..replicas {
            loop {
                let before = Instant::now();
                let Some(part) = self.engine.next_part(replica) else {
                    break;
                };
                if let (Some(steps), Part::Turn(turn)) = (&mut self.steps, &part) {
                    steps.turn(replica, turn);
                }
                let Some(recorder) = self.recorders.get_mut(replica) else {
                    continue;
                };
                let line = Line::from(part);
                if let Some(traced) = &mut self.trace
                    && matches!(line, Line::Turn(_))
                {
                    traced.times()?;
                    let during = (before, Instant::now());
                    traced.trace.put(Item::Line(line.clone(), during))?;
                }
                recorder.put(&line)?;
            }
        }
        Ok(())
    }
}

impl Engine for Recorded {
    /// With a trace, which tells when each request was handed over, they are handed over one by one.
    fn try_submit_all(
        &mut self,
        requests: &mut dyn Iterator<Item = &Request>,
    ) -> Result<Range<u64>> {
        let Some(traced) = &mut self.trace else {
            return self.engine.try_submit_all(requests);
        };
        let mut numbers = 0..0;
        for request in requests {
            let before = Instant::now();
            let Some(number) = self.engine.try_submit(request)? else {
                break;
            };
            let line = Line::Request(Box::new(request.clone()));
            let during = (before, Instant::now());
            traced.trace.handed("submit", number, line, during)?;
            if numbers.is_empty() {
                numbers.start = number;
            }
            numbers.end = number + 1;
        }
        Ok(numbers)
    }

    fn cancel(&mut self, request: u64) -> bool {
        let before = Instant::now();
        let taken = self.engine.cancel(request);
        if let Some(traced) = self.trace.as_mut().filter(|_| taken) {
            let (line, during) = (Line::Cancel(request), (before, Instant::now()));
            let handed = traced.trace.handed("cancel", request, line, during);
            self.unwritten = self.unwritten.take().or(handed.err());
        }
        taken
    }

    fn next_stamped(&mut self, wait: Duration) -> Result<Option<(u64, Event)>> {
        let before = Instant::now();
        let next = self.engine.next_stamped(wait);
        self.unwritten.take().map_or(Ok(()), Err)?;
        if let (Some(traced), Ok(next)) = (&mut self.trace, &next) {
            let line = next.as_ref().map(|(_, event)| Line::from(event));
            traced.trace.looked(line, (before, Instant::now()))?;
        }
        self.take_parts()?;
        next
    }

    fn drain(&mut self) {
        self.engine.drain();
    }

    fn status(&self) -> EngineStatus {
        self.engine.status()
    }

    fn waker(&self) -> Waker {
        self.engine.waker()
    }

    fn replicas(&self) -> usize {
        self.engine.replicas()
    }

    fn traces_lost(&self) -> u64 {
        self.engine.traces_lost()
    }
}
