//! The loop of `generate`: rows in, requests to the device, events back, answers out.

mod asked;
mod intake;

use self::asked::{Asked, Came};
use super::failures::Failures;
use super::prefixes::Prefixes;
use super::progress::{Counts, Progress};
use super::sequences::{Change, Live, Sequences, Taken};
use crate::error::{Error, Result};
use crate::io::answer::{self, Finish, Label, Origin, Outcome};
use crate::io::codec::Codec;
use crate::io::output::{Answer, Output};
use crate::io::row::{Code, RowError, TIMED_OUT};
use crate::io::rows::Rows;
use crate::io::source::Work;
use crate::runtime::{EndReason, Engine, Event, Timing};
use crate::telemetry::warn;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How answers look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Style {
    Json,
    /// The text alone; errors go to standard error.
    Plain,
    /// The same, and the text of the first row without an answer as its tokens come.
    Live,
}

/// Everything a job needs besides its device.
pub struct Job<'a> {
    pub rows: Rows,
    pub codec: &'a Codec,
    pub output: Output,
    pub style: Style,
    pub origin: Origin,
    /// Rows taken in beyond the oldest one that is not written yet, at most; fewer while long answers wait for it.
    pub window: u64,
    /// What the engine shares of prompts; none where it finds out by itself.
    pub prefixes: Prefixes,
    /// Several replicas too get the rows in the input's order.
    pub in_order: bool,
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
    pub fn run(self, engine: &mut dyn Engine) -> Result<Summary> {
        let together = engine.replicas() > 1 && !self.in_order;
        let mut run = Run {
            job: self,
            sequences: Sequences::default(),
            rows: BTreeMap::new(),
            held: VecDeque::new(),
            together,
            alike: 0,
            behind: None,
            exhausted: false,
            cancelled: false,
            input_failure: None,
            counts: Counts::default(),
            failures: Failures::default(),
        };
        let failure = run.until_done(engine)?;
        let elapsed = run.job.progress.finish();
        run.job.output.finish(!run.cancelled && failure.is_none())?;
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
    sequences: Sequences<Part>,
    /// Rows that the device has, by their places.
    rows: BTreeMap<u64, Asked>,
    /// Taken from the input, not yet from us.
    held: VecDeque<Work>,
    /// Rows that begin alike go to one of several replicas.
    together: bool,
    /// The first so many of `held` begin alike.
    alike: usize,
    /// How many sequences the others of those have that are behind the row that was pulled last, if that was one.
    behind: Option<usize>,
    exhausted: bool,
    cancelled: bool,
    /// The input could not be read to its end.
    input_failure: Option<Error>,
    counts: Counts,
    failures: Failures,
}

/// A sequence that the device has: an answer of a row.
struct Part {
    row: u64,
    choice: usize,
}

/// Why the loop ends early.
enum Fault {
    /// Answers cannot be written: nothing more can be done.
    Output(Error),
    /// The device failed: what is done is still written.
    Device(Error),
}

const EVENT_POLL: Duration = Duration::from_millis(10);
/// Events that are taken in one go before rows, commands and interrupts have their turn: a device that is faster than its
/// host is fed all the same.
pub(super) const EVENTS_A_TURN: usize = 1024;

impl Run<'_> {
    /// `Some`: what ended it early.
    fn until_done(&mut self, engine: &mut dyn Engine) -> Result<Option<Error>> {
        loop {
            if self.interrupted_now() {
                self.cancelled = true;
                self.exhausted = true;
                for work in std::mem::take(&mut self.held) {
                    self.drop_rest(work)?;
                }
                self.sequences.cancel_all();
            }
            self.sequences.pass_cancels(engine);
            let turn = self.fill(engine).and_then(|()| self.events(engine));
            match turn {
                Ok(()) => {}
                Err(Fault::Output(error)) => return Err(error),
                Err(Fault::Device(error)) => {
                    self.last_events(engine)?;
                    self.fail_live(&error)?;
                    return Ok(Some(error));
                }
            }
            if self.exhausted {
                self.job.progress.input_ended();
            }
            self.job.progress.tick(&self.counts, &engine.status());
            if self.is_done() {
                return Ok(self.input_failure.take());
            }
        }
    }

    fn is_done(&self) -> bool {
        let any_left = self.exhausted && (self.cancelled || self.job.rows.none_overtaken());
        any_left && self.sequences.is_empty() && self.held.is_empty()
    }

    /// An interrupt that nothing has been done about yet.
    fn interrupted_now(&self) -> bool {
        !self.cancelled && self.job.interrupt.load(Ordering::SeqCst)
    }

    /// Takes the events that are there; waits a moment for the first.
    fn events(&mut self, engine: &mut dyn Engine) -> std::result::Result<(), Fault> {
        let mut wait = EVENT_POLL;
        for _ in 0..EVENTS_A_TURN {
            if self.sequences.is_empty() || self.interrupted_now() {
                break;
            }
            let Some(event) = engine.next_event(wait).map_err(Fault::Device)? else {
                break;
            };
            wait = Duration::ZERO;
            self.take(event).map_err(Fault::Output)?;
        }
        Ok(())
    }

    /// Takes the events that a device has left behind: rows that were done when it failed are served.
    fn last_events(&mut self, engine: &mut dyn Engine) -> Result<()> {
        while !self.sequences.is_empty()
            && let Ok(Some(event)) = engine.next_event(Duration::ZERO)
        {
            self.take(event)?;
        }
        Ok(())
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match self.sequences.take(event) {
            None => Ok(()),
            Some(Change::Token { with, live, taken }) => {
                self.counts.tokens += u64::from(!matches!(taken, Taken::Dropped | Taken::OfPrompt));
                let output = &mut self.job.output;
                if self.job.style == Style::Live && output.waits_for(with.row) {
                    output.show(&live.certain())?;
                }
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

    fn end(&mut self, part: Part, live: Live, reason: EndReason, timing: Timing) -> Result<()> {
        let Some(asked) = self.rows.get_mut(&part.row) else {
            return Ok(());
        };
        if self.cancelled && reason == EndReason::Cancelled && live.is_empty() {
            asked.never_began(1);
        } else {
            let ended = live.end(reason, timing);
            self.counts.tokens -= ended.dropped_tokens as u64;
            if asked.ended(part.choice, ended.outcome) {
                for &request in &asked.requests {
                    self.sequences.cancel(request);
                }
            }
        }
        self.close_if_over(part.row)
    }

    /// Answers a row of which no sequence is left.
    fn close_if_over(&mut self, row: u64) -> Result<()> {
        if !self.rows.get(&row).is_some_and(Asked::is_over) {
            return Ok(());
        }
        let Some(asked) = self.rows.remove(&row) else {
            return Ok(());
        };
        let (input, label) = (asked.input, asked.label.clone());
        match asked.came() {
            Came::Nothing => Ok(()),
            Came::Failed(error) => self.fail(row, input, &label, &error),
            Came::To(outcomes) => self.serve(row, input, &label, outcomes),
        }
    }

    fn serve(
        &mut self,
        row: u64,
        input: u64,
        label: &Label,
        mut outcomes: Vec<Outcome>,
    ) -> Result<()> {
        let prompt_tokens = outcomes.iter().map(|outcome| outcome.prompt_tokens as u64);
        self.counts.prompt_tokens += prompt_tokens.sum::<u64>();
        let shared = outcomes.iter().map(|outcome| outcome.timing.cached_tokens);
        self.counts.shared_tokens += shared.map(u64::from).sum::<u64>();
        let last = outcomes.iter().all(|outcome| outcome.finish.is_final());
        let at_limit = outcomes
            .iter()
            .any(|outcome| outcome.finish == Finish::Length);
        self.counts.at_limit += u64::from(at_limit);
        let recomputed = outcomes.iter().any(|outcome| outcome.timing.recomputed > 0);
        self.counts.recomputed += u64::from(recomputed);
        if !last {
            self.counts.failed += 1;
            self.failures.add(Code::Timeout, label.line, TIMED_OUT);
        }
        let text = match self.job.style {
            Style::Json => answer::served(label, &outcomes, self.job.codec, &self.job.origin),
            Style::Plain | Style::Live => outcomes.swap_remove(0).text,
        };
        self.put(row, input, last, text)
    }

    fn fail(&mut self, row: u64, input: u64, label: &Label, error: &RowError) -> Result<()> {
        self.counts.failed += 1;
        self.failures.add(error.code, label.line, &error.message);
        let text = match self.job.style {
            Style::Json => answer::failed(label, error),
            Style::Plain | Style::Live => {
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
        self.sequences.abandon();
        for (row, asked) in std::mem::take(&mut self.rows) {
            self.fail(row, asked.input, &asked.label, &error)?;
        }
        Ok(())
    }
}

/// What a row is told that a failed device had not done.
pub fn lost(error: &Error) -> RowError {
    Code::Device.error(format!("the run failed before this row was done: {error}"))
}
