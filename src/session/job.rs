//! The loop of `generate`: rows in, requests to the device, events back, answers out.

use super::device::Device;
use super::failures::Failures;
use super::progress::{Counts, Progress};
use super::sequences::{Change, Live, Sequences, Taken};
use crate::error::{Error, Result};
use crate::io::answer::{self, Finish, Label, Origin};
use crate::io::codec::Codec;
use crate::io::output::{Answer, End, Output};
use crate::io::row::{Code, RowError, TIMED_OUT};
use crate::io::source::{Todo, Work};
use crate::runtime::{EndReason, Event, Timing};
use crate::telemetry::warn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

/// How answers look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Json,
    /// The text alone; errors go to standard error.
    Plain,
}

/// Everything a job needs besides its device.
pub struct Job<'a> {
    /// Ends with `None`: a reader that goes away without it has failed.
    pub rows: Receiver<Result<Option<Work>>>,
    pub codec: &'a dyn Codec,
    pub output: Output,
    pub style: Style,
    pub origin: Origin,
    /// Rows taken in beyond the oldest one that is not written yet, at most.
    pub window: u64,
    pub progress: Progress,
    pub interrupt: &'a AtomicBool,
}

/// How a job went. Its output has been ended accordingly.
#[derive(Debug)]
pub struct Summary {
    pub counts: Counts,
    pub failures: Failures,
    pub interrupted: bool,
    /// Why the device or the input ended early.
    pub failure: Option<Error>,
    pub elapsed: Duration,
}

impl Job<'_> {
    /// Runs until every row has an answer, an interrupt or a failure. Errors are those of the output.
    pub fn run(self, device: &mut dyn Device) -> Result<Summary> {
        let mut run = Run {
            job: self,
            sequences: Sequences::default(),
            held: None,
            exhausted: false,
            cancelled: false,
            retry: false,
            input_failure: None,
            counts: Counts::default(),
            failures: Failures::default(),
        };
        let failure = run.until_done(device)?;
        let elapsed = run.job.progress.finish();
        let end = match (run.cancelled || failure.is_some(), run.retry) {
            (true, _) => End::Early,
            (false, true) => End::Retry,
            (false, false) => End::Whole,
        };
        run.job.output.finish(end)?;
        Ok(Summary {
            counts: run.counts,
            failures: run.failures,
            interrupted: run.cancelled,
            failure,
            elapsed,
        })
    }
}

struct Run<'a> {
    job: Job<'a>,
    sequences: Sequences<Asked>,
    /// Taken from the input, not yet from us.
    held: Option<Work>,
    exhausted: bool,
    cancelled: bool,
    /// Some row may succeed when tried again.
    retry: bool,
    /// The input could not be read to its end.
    input_failure: Option<Error>,
    counts: Counts,
    failures: Failures,
}

/// A row that the device has.
struct Asked {
    row: u64,
    input: u64,
    label: Label,
}

/// Why the loop ends early.
enum Fault {
    /// Answers cannot be written: nothing more can be done.
    Output(Error),
    /// The device failed: what is done is still written.
    Device(Error),
}

const INPUT_POLL: Duration = Duration::from_millis(50);
const EVENT_POLL: Duration = Duration::from_millis(10);
/// Rows handed over in one go before events, interrupts and progress have their turn.
const ROWS_A_TURN: usize = 256;
/// Likewise for events: a device that is faster than its host is fed all the same.
const EVENTS_A_TURN: usize = 1024;

impl Run<'_> {
    /// `Some`: what ended it early.
    fn until_done(&mut self, device: &mut dyn Device) -> Result<Option<Error>> {
        loop {
            if self.interrupted_now() {
                self.cancelled = true;
                self.exhausted = true;
                self.held = None;
                self.sequences.cancel_all();
            }
            self.sequences.pass_cancels(device);
            let turn = self.fill(device).and_then(|()| self.events(device));
            match turn {
                Ok(()) => {}
                Err(Fault::Output(error)) => return Err(error),
                Err(Fault::Device(error)) => {
                    self.last_events(device)?;
                    self.fail_live(&error)?;
                    return Ok(Some(error));
                }
            }
            if self.exhausted {
                self.job.progress.input_ended();
            }
            self.job.progress.tick(&self.counts, &device.status());
            if self.sequences.is_empty() && self.held.is_none() && self.exhausted {
                return Ok(self.input_failure.take());
            }
        }
    }

    /// Hands rows to the device while both have room.
    fn fill(&mut self, device: &mut dyn Device) -> std::result::Result<(), Fault> {
        for _ in 0..ROWS_A_TURN {
            let Some(work) = self.pull() else { break };
            let room = match self.job.output.written() {
                Some(written) => work.row < written + self.job.window,
                None => (self.sequences.len() as u64) < self.job.window,
            };
            if !room {
                self.held = Some(work);
                break;
            }
            let Todo::Run(prepared) = &work.todo else {
                self.settle(work).map_err(Fault::Output)?;
                continue;
            };
            match device.try_submit(&prepared.request) {
                Ok(Some(request)) => self.enter(request, work),
                Ok(None) => {
                    self.held = Some(work);
                    break;
                }
                Err(error) => {
                    // Taken from the input, so it is among the rows that the device failed.
                    self.fail(work.row, work.input, &work.label, &lost(&error))
                        .map_err(Fault::Output)?;
                    return Err(Fault::Device(error));
                }
            }
        }
        Ok(())
    }

    /// The next row, if one is there. Waits for one only while nothing else is going on.
    fn pull(&mut self) -> Option<Work> {
        if let Some(work) = self.held.take() {
            return Some(work);
        }
        if self.exhausted {
            return None;
        }
        let received = if self.sequences.is_empty() {
            self.job.rows.recv_timeout(INPUT_POLL)
        } else {
            self.job.rows.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            })
        };
        match received {
            Ok(Ok(Some(work))) => Some(work),
            Ok(Ok(None)) => {
                self.exhausted = true;
                None
            }
            Ok(Err(error)) => {
                self.input_failure = Some(error);
                self.exhausted = true;
                None
            }
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                self.input_failure = Some(Error::Runtime(
                    "the thread that reads rows ended before the input did: this is a bug in tailgraph".to_owned(),
                ));
                self.exhausted = true;
                None
            }
        }
    }

    /// A row that needs no device.
    fn settle(&mut self, work: Work) -> Result<()> {
        match work.todo {
            Todo::Kept(place) => {
                self.counts.rows += 1;
                self.counts.kept += 1;
                self.job.output.keep(work.row, place);
                Ok(())
            }
            Todo::Fail(error) => self.fail(work.row, work.input, &work.label, &error),
            Todo::Run(_) => unreachable!("rows to run go to the device"),
        }
    }

    fn enter(&mut self, request: u64, work: Work) {
        let Todo::Run(prepared) = work.todo else {
            return;
        };
        let asked = Asked {
            row: work.row,
            input: work.input,
            label: work.label,
        };
        self.sequences
            .enter(request, *prepared, self.job.codec, asked);
    }

    /// An interrupt that nothing has been done about yet.
    fn interrupted_now(&self) -> bool {
        !self.cancelled && self.job.interrupt.load(Ordering::SeqCst)
    }

    /// Takes the events that are there; waits a moment for the first.
    fn events(&mut self, device: &mut dyn Device) -> std::result::Result<(), Fault> {
        let mut wait = EVENT_POLL;
        for _ in 0..EVENTS_A_TURN {
            if self.sequences.is_empty() || self.interrupted_now() {
                break;
            }
            let Some(event) = device.next_event(wait).map_err(Fault::Device)? else {
                break;
            };
            wait = Duration::ZERO;
            self.take(event).map_err(Fault::Output)?;
        }
        Ok(())
    }

    /// Takes the events that a device has left behind: rows that were done when it failed are served.
    fn last_events(&mut self, device: &mut dyn Device) -> Result<()> {
        while !self.sequences.is_empty()
            && let Ok(Some(event)) = device.next_event(Duration::ZERO)
        {
            self.take(event)?;
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match self.sequences.take(event) {
            None => Ok(()),
            Some(Change::Token { taken, .. }) => {
                self.counts.tokens += u64::from(taken != Taken::Dropped);
                Ok(())
            }
            Some(Change::End {
                with,
                reason,
                live,
                timing,
            }) => self.end(with, live, reason, timing),
        }
    }

    fn end(&mut self, asked: Asked, live: Live, reason: EndReason, timing: Timing) -> Result<()> {
        if self.cancelled && reason == EndReason::Cancelled && live.is_empty() {
            // Interrupted before it began: like the rows that were not read, it has no answer yet.
            return Ok(());
        }
        let Asked { row, input, label } = asked;
        let ended = live.end(reason, timing);
        self.counts.tokens -= ended.dropped_tokens as u64;
        let outcome = match ended.outcome {
            Ok(outcome) => outcome,
            Err(error) => return self.fail(row, input, &label, &error),
        };
        self.counts.prompt_tokens += outcome.prompt_tokens as u64;
        let last = outcome.finish.is_final();
        self.counts.at_limit += u64::from(outcome.finish == Finish::Length);
        if !last {
            self.counts.failed += 1;
            self.failures.add(Code::Timeout, label.line, TIMED_OUT);
            self.retry = true;
        }
        let text = match self.job.style {
            Style::Json => answer::served(&label, &outcome, self.job.codec, &self.job.origin),
            Style::Plain => outcome.text,
        };
        self.put(row, input, last, text)
    }

    fn fail(&mut self, row: u64, input: u64, label: &Label, error: &RowError) -> Result<()> {
        self.counts.failed += 1;
        self.failures.add(error.code, label.line, &error.message);
        self.retry |= error.code.may_succeed_later();
        let text = match self.job.style {
            Style::Json => answer::failed(label, error),
            Style::Plain => {
                warn(&format!("prompt {}: {error}", label.line));
                String::new()
            }
        };
        // Never final: `--resume` comes to the same error without a device, or to a better end.
        self.put(row, input, false, text)
    }

    fn put(&mut self, row: u64, input: u64, done: bool, text: String) -> Result<()> {
        self.counts.rows += 1;
        self.job.output.put(Answer {
            row,
            input,
            done,
            text,
        })
    }

    /// The device failed with these rows on it.
    fn fail_live(&mut self, error: &Error) -> Result<()> {
        let error = lost(error);
        for asked in self.sequences.abandon() {
            self.fail(asked.row, asked.input, &asked.label, &error)?;
        }
        Ok(())
    }
}

/// What a row is told that a failed device had not done.
pub fn lost(error: &Error) -> RowError {
    RowError::new(
        Code::Device,
        format!("the run failed before this row was done: {error}"),
    )
}
