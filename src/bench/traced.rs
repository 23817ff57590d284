//! A run's steps as a trace of it has them: the same records, read by other code, so that one can be held against the
//! other.

use super::drive::Heard;
use super::workload::Arrival;
use crate::error::{Error, Result};
use crate::files::Unfinished;
use crate::io::record::{Done, Header, Line, Turn};
use crate::quote;
use crate::runtime::Engine;
use crate::sys::abi;
use crate::trace::Timeline;
use crate::trace::json::Out;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

const EVENT_POLL: Duration = Duration::from_millis(1);
/// With all requests ended a scheduler ends with its next turn.
const END_LIMIT: Duration = Duration::from_secs(20);

/// What an engine went through from its start on, line by line as a recording has it.
#[derive(Default)]
pub struct Life {
    lines: Vec<Line>,
    next_step: u64,
    turns: u64,
    tokens: u64,
    ended: bool,
}

impl Life {
    /// Before they are sent.
    pub fn requests(&mut self, arrivals: &[Arrival]) {
        let line = |arrival: &Arrival| Line::Request(Box::new(arrival.request.clone()));
        self.lines.extend(arrivals.iter().map(line));
    }

    pub fn heard(&mut self, heard: &Heard<'_>) {
        match heard {
            Heard::Turn(record) => {
                let turn = Turn::from(*record);
                self.turns += 1;
                self.next_step = turn.step.map_or(self.next_step, |step| step + 1);
                self.ended |= turn.action == abi::TG_ACTION_DONE;
                self.lines.push(Line::Turn(Box::new(turn)));
            }
            Heard::Event(event) => {
                let line = Line::from(*event);
                self.tokens += u64::from(matches!(line, Line::Token(_)));
                self.lines.push(line);
            }
        }
    }

    /// Steps that were composed so far: the number of the next.
    pub fn next_step(&self) -> u64 {
        self.next_step
    }

    /// With every request ended: ends the engine's schedule, whose last turns belong to its life.
    ///
    /// # Errors
    /// The engine failed, or does not end.
    pub fn drain(&mut self, engine: &mut Engine) -> Result<()> {
        engine.drain();
        let start = Instant::now();
        while !self.ended {
            if let Some(event) = engine.next_event(EVENT_POLL)? {
                self.heard(&Heard::Event(&event));
            }
            while let Some(record) = engine.next_trace() {
                self.heard(&Heard::Turn(&record));
            }
            if start.elapsed() > END_LIMIT {
                return Err(Error::Runtime(format!(
                    "the scheduler did not end {END_LIMIT:?} after its last request: its trace lacks the end"
                )));
            }
        }
        Ok(())
    }

    /// Writes the trace, and reads the steps that stand in it.
    ///
    /// # Errors
    /// It cannot be written, or its core disagrees with the run.
    pub fn write(self, header: &Header, path: &Path) -> Result<Steps> {
        let out = Out::create(path, Unfinished::Removed)?;
        let mut timeline = Timeline::new(out, header, "bench".to_owned())?;
        for line in self.lines {
            timeline.line(line)?;
        }
        timeline.line(Line::Done(Done {
            turns: self.turns,
            tokens: self.tokens,
        }))?;
        timeline.finish()?;
        Steps::read(path)
    }
}

/// The decode steps of a trace by their numbers: rows, and when the slice begins, in us.
pub struct Steps(BTreeMap<u64, (u32, f64)>);

#[derive(Deserialize)]
struct File {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    ph: String,
    name: String,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    args: Args,
}

#[derive(Default, Deserialize)]
struct Args {
    step: Option<u64>,
    rows: Option<u32>,
}

impl Steps {
    fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read(path).map_err(|error| Error::io(path, error))?;
        let file: File = serde_json::from_slice(&text).map_err(|error| {
            Error::file(path, format!("{}, expected a trace", quote::message(error)))
        })?;
        let step = |event: Event| {
            let decode = event.ph == "X" && event.name.starts_with("decode ");
            let (step, rows) = (event.args.step?, event.args.rows?);
            decode.then_some((step, (rows, event.ts)))
        };
        Ok(Self(file.events.into_iter().filter_map(step).collect()))
    }

    /// Of the steps with these numbers: milliseconds from where the slice of a decode step of `batch` rows begins to where
    /// that of the next step does, if that is such a step too.
    pub fn whole_ms(&self, batch: u32, numbers: Range<u64>) -> Vec<f64> {
        let whole = self
            .0
            .range(numbers)
            .filter(|(_, (rows, _))| *rows == batch);
        let whole: Vec<(u64, f64)> = whole
            .map(|(&number, &(_, at_us))| (number, at_us))
            .collect();
        let pairs = whole.windows(2).filter(|pair| pair[0].0 + 1 == pair[1].0);
        pairs.map(|pair| (pair[1].1 - pair[0].1) / 1e3).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_steps_follow_each_other_and_lie_in_the_run() {
        let steps = [
            (3, (2, 1000.0)),
            (4, (2, 3000.0)),
            (5, (2, 6000.0)),
            (6, (1, 10_000.0)),
            (7, (2, 15_000.0)),
            (9, (2, 21_000.0)),
            (10, (2, 28_000.0)),
        ];
        let steps = Steps(BTreeMap::from(steps));
        assert_eq!(steps.whole_ms(2, 0..20), [2.0, 3.0, 7.0]);
        assert_eq!(steps.whole_ms(2, 4..10), [3.0]);
        assert!(steps.whole_ms(1, 0..20).is_empty());
    }
}
