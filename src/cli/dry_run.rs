//! `--dry-run` of `generate` and `score`: all of the input is read and checked as a run would do it, and what that run would
//! take is printed. Nothing is written.

use super::doctor::memory_text;
use super::summary::counted;
use super::{Exit, print};
use crate::backend::UnreadLogits;
use crate::error::{Error, Result};
use crate::io::row::RowError;
use crate::io::rows::Rows;
use crate::io::source::{Todo, Work};
use crate::quote;
use crate::session::Opened;
use crate::session::forecast::{Forecast, Planned};
use crate::session::sizes::memory;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

const ROW_POLL: Duration = Duration::from_millis(50);
/// Rows in error that are shown, at most.
const SHOWN: u64 = 8;

/// What an input asks for.
#[derive(Default)]
pub(super) struct DryRun {
    pub planned: Planned,
    pub rows: u64,
    failed: u64,
    shown: String,
    /// Sequences that something but their limit may end.
    open_ended: u64,
}

impl DryRun {
    /// Reads all rows of `generate`.
    pub fn of(rows: &Rows, opened: &Opened) -> Result<Self> {
        let mut found = Self::default();
        let mut ended = false;
        while !ended || !rows.none_overtaken() {
            if let Some(work) = rows.overtaken() {
                found.take(work, opened);
            } else if ended {
                std::thread::sleep(ROW_POLL);
            } else if let Ok(next) = rows.next(ROW_POLL) {
                match next? {
                    Some(work) => found.take(work, opened),
                    None => ended = true,
                }
            }
        }
        Ok(found)
    }

    fn take(&mut self, work: Work, opened: &Opened) {
        self.rows += 1;
        match work.todo {
            Todo::Fail(error) => self.fail(work.label.line, &error),
            Todo::Run(mut waiting) => {
                while let Some(prepared) = waiting.peek() {
                    let request = &prepared.request;
                    let ends = !request.stop_ids.is_empty() || request.timeout.is_some();
                    self.open_ended += u64::from(ends || !prepared.stop.is_empty());
                    opened.plan_to_run(&mut self.planned, request);
                    waiting.take();
                }
            }
            Todo::Kept(_) => unreachable!("a dry run goes on from no other"),
        }
    }

    /// A row that would fail.
    pub fn fail(&mut self, line: u64, error: &RowError) {
        if self.failed < SHOWN {
            let error = error.to_string();
            let _ = writeln!(self.shown, "  line {line}: {}", quote::visible(&error));
        }
        self.failed += 1;
    }

    /// Prints what a run would take.
    pub fn report(self, opened: &Opened) -> Result<Exit> {
        let memory = memory(&opened.spec, &opened.target, &opened.plan, opened.delivers)?;
        let sequences = &self.planned.sequences;
        let prompts = sequences.iter().map(|&(prompt, _)| u64::from(prompt));
        let new = sequences.iter().map(|&(_, new)| u64::from(new)).sum();
        let rows = counted(self.rows, "row");
        let mut text = format!("{rows}, {} would fail\n{}", self.failed, self.shown);
        if let more @ 1.. = self.failed.saturating_sub(SHOWN) {
            let _ = writeln!(text, "  and {more} more");
        }
        let _ = writeln!(
            text,
            "{} in {}, at most {} in one; at most {}",
            counted(prompts.clone().sum(), "prompt token"),
            counted(sequences.len() as u64, "sequence"),
            prompts.max().unwrap_or(0),
            counted(new, "new token"),
        );
        let mut text = text.into_bytes();
        memory_text(&memory, &mut text).map_err(|error| Error::io("standard output", error))?;
        // Before the weights are loaded, which may take a while.
        print(&text)?;
        if !sequences.is_empty() {
            let sink = opened.delivers.then(|| Arc::new(UnreadLogits) as _);
            print(
                self.time(&opened.forecast(&self.planned, &sink)?)
                    .as_bytes(),
            )?;
        }
        Ok(match self.failed {
            0 => Exit::Done,
            _ => Exit::RowsFailed,
        })
    }

    fn time(&self, found: &Forecast) -> String {
        let (seconds, prompts) = (found.seconds, counted(found.prompt_tokens, "prompt token"));
        let decoded: Vec<String> = found.decoded.iter().map(u32::to_string).collect();
        let steps = match decoded.len() {
            0 => String::new(),
            _ => format!(" and decode steps of {} sequences", decoded.join(", ")),
        };
        let bound = match self.open_ended {
            0 => String::new(),
            open => format!(
                "; an upper bound, since {} may end before the limit",
                counted(open, "sequence")
            ),
        };
        format!(
            "time {seconds:.2} s once the model is loaded: extrapolated from {prompts}{steps}, timed here{bound}\n"
        )
    }
}
