//! Rows one at a time: a question, already answered, or in error.

use super::answer::Label;
use super::hash::Fnv64;
use super::kept::{Found, Kept, Place};
use super::lines::{Ids, Lines};
use super::once::{Once, strict};
use super::prepare::Waiting;
use super::row::{Ask, Row, RowError};
use super::shard::Picker;
use crate::error::{Error, Result};
use crate::text::Doubt;
use std::collections::VecDeque;

/// One row of the input.
#[derive(Debug)]
pub struct Work {
    /// Place in the input, counted from 0; blank lines are no rows.
    pub row: u64,
    /// Hash of the line, its number and the run's settings.
    pub input: u64,
    pub label: Label,
    pub todo: Todo,
}

#[derive(Debug)]
pub enum Todo {
    /// Its sequences; none before its text is tokens.
    Run(Waiting),
    /// An earlier run has answered it.
    Kept(Place),
    Fail(RowError),
}

/// Rows that a message names, at most.
const NAMED: usize = 16;
/// Rows that are looked at, at most, for one that the earlier run had too.
const LOOKED_AT: usize = 1024;

/// What turns lines into work.
pub struct Source {
    lines: Lines,
    next_row: u64,
    kept: Kept,
    /// Hash of the settings that answers depend on.
    settings: u64,
    ids: Ids,
    /// Takes the rows of a shard: no others are work.
    pub picker: Option<Picker>,
    /// Rows with fields that nothing reads are in error.
    pub strict: bool,
    /// Rows that were read to see whether the input is the earlier run's.
    ahead: VecDeque<(Row, Fnv64)>,
    /// Lines of rows that the earlier run's answers are no longer to: the first few, and how many there are.
    changed: (Vec<u64>, u64),
    once: Once,
}

impl Source {
    /// `warn` is told once of each field name that nothing reads, of what a chat template does not show, and of earlier answers that are not kept.
    pub fn new(lines: Lines, kept: Kept, settings: u64, warn: Box<dyn FnMut(&str) + Send>) -> Self {
        Self {
            lines,
            next_row: 0,
            kept,
            settings,
            ids: Ids::default(),
            picker: None,
            strict: false,
            ahead: VecDeque::new(),
            changed: (Vec::new(), 0),
            once: Once::new(warn),
        }
    }

    /// Looks at the first rows for one that the earlier run had too.
    ///
    /// # Errors
    /// It had others in their places, or the input cannot be read.
    pub(super) fn check_input(&mut self) -> Result<()> {
        let mut others = 0;
        while !self.kept.by_row.is_empty() && self.ahead.len() < LOOKED_AT {
            let Some((row, text)) = self.lines.next_row()? else {
                break;
            };
            let place = self.next_row + self.ahead.len() as u64;
            let input = self.input(&row, text);
            let earlier = self.kept.by_row.get(&place).map(|(input, _)| *input);
            self.ahead.push_back((row, text));
            match earlier {
                Some(earlier) if earlier == input => return Ok(()),
                Some(_) => others += 1,
                None => {}
            }
        }
        if others == 0 {
            return Ok(());
        }
        Err(Error::file(
            self.lines.name(),
            format!(
                "found another input than the earlier run's: of the first {} rows none is in its place as it was: expected that run's input, to which rows may be added at the end; --overwrite starts afresh",
                self.ahead.len()
            ),
        ))
    }

    /// The next row, with its question where it has to be answered; `None` at the end of the input. Errors are the input's,
    /// not a row's.
    pub(super) fn next_row(&mut self) -> Result<Option<(Work, Option<Ask>)>> {
        loop {
            let next = match self.ahead.pop_front() {
                Some(next) => Some(next),
                None => self.lines.next_row()?,
            };
            let Some((row, text)) = next else {
                return self.end().map(|()| None);
            };
            let place = self.next_row;
            self.next_row += 1;
            if let Some(picker) = &mut self.picker
                && !picker.take(place, row.line, text.finish())
            {
                // In a run of all rows it would have its id: a later row that has it too is in error.
                let _ = self.ids.claim(&row);
                continue;
            }
            return Ok(Some(self.work(row, place, text)));
        }
    }

    /// There are no more rows.
    fn end(&mut self) -> Result<()> {
        if let Some(picker) = &mut self.picker {
            picker.end();
        }
        let (lines, count) = std::mem::take(&mut self.changed);
        if count > 0 {
            let lines: Vec<String> = lines.iter().map(u64::to_string).collect();
            let more = if count > lines.len() as u64 {
                ", ..."
            } else {
                ""
            };
            let what = match count {
                1 => {
                    "1 row is not as the earlier run had it, and is answered again: line".to_owned()
                }
                _ => format!(
                    "{count} rows are not as the earlier run had them, and are answered again: lines"
                ),
            };
            let input = self.lines.name().display();
            self.once
                .warn(&format!("{input}: {what} {}{more}", lines.join(", ")));
        }
        match self.kept.behind(self.next_row) {
            0 => Ok(()),
            more => Err(Error::file(
                self.lines.name(),
                format!(
                    "found {} rows, and the earlier run has answers to {more} behind these: expected that run's input, to which rows may be added at the end; --overwrite starts afresh",
                    self.next_row
                ),
            )),
        }
    }

    /// Hash of everything that the answer to a row depends on.
    fn input(&self, row: &Row, text: Fnv64) -> u64 {
        text.with(&row.line.to_le_bytes())
            .with(&self.settings.to_le_bytes())
            .finish()
    }

    fn work(&mut self, row: Row, place: u64, text: Fnv64) -> (Work, Option<Ask>) {
        let input = self.input(&row, text);
        if !self.strict {
            self.once
                .ignored(format_args!("line {}", row.line), &row.ignored);
        }
        let todo = self.todo(&row, place, input);
        let ask = row.ask.ok().filter(|_| matches!(todo, Todo::Run(_)));
        let work = Work {
            row: place,
            input,
            label: Label {
                line: row.line,
                id: row.id,
                format: row.format,
            },
            todo,
        };
        (work, ask)
    }

    fn todo(&mut self, row: &Row, place: u64, input: u64) -> Todo {
        let id = row.id.as_str();
        if let Err(error) = self.ids.claim(row) {
            return Todo::Fail(error);
        }
        if let Err(error) = &row.ask {
            return Todo::Fail(error.clone());
        }
        if self.strict
            && let Some(error) = strict(&row.ignored)
        {
            return Todo::Fail(error);
        }
        // After the checks that need no tokenizer: a million rows done already are passed over quickly.
        match self.kept.find(place, input, id) {
            Found::Answer(place) => return Todo::Kept(place),
            Found::Other => {
                self.changed.1 += 1;
                if self.changed.0.len() < NAMED {
                    self.changed.0.push(row.line);
                }
            }
            Found::Nothing => {}
        }
        Todo::Run(Waiting::default())
    }

    /// Warns of what the chat template may not show of the row on this line.
    pub(super) fn warn_doubts(&mut self, line: u64, doubts: Vec<Doubt>) {
        self.once.doubts(format_args!("line {line}"), doubts);
    }
}
