//! Rows one at a time: a question, already answered, or in error.

use super::answer::Label;
use super::hash::Fnv64;
use super::kept::{Found, Kept, Place};
use super::lines::{Ids, Lines};
use super::prepare::Waiting;
use super::row::{Ask, Code, Row, RowError};
use super::shard::Picker;
use crate::error::Result;
use crate::quote;
use crate::text::Doubt;
use std::collections::HashSet;

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

/// Names are warned of once, as long as they are few.
const NAMES_AT_MOST: usize = 32;

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
    ignored: HashSet<String>,
    /// What a chat template does not show.
    doubted: HashSet<String>,
    /// That an earlier answer was to something else.
    others_said: bool,
    warn: Box<dyn FnMut(&str) + Send>,
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
            ignored: HashSet::new(),
            doubted: HashSet::new(),
            others_said: false,
            warn,
        }
    }

    /// The next row, with its question where it has to be answered; `None` at the end of the input. Errors are the input's,
    /// not a row's.
    pub(super) fn next_row(&mut self) -> Result<Option<(Work, Option<Ask>)>> {
        while let Some((row, text)) = self.lines.next_row()? {
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
        if let Some(picker) = &mut self.picker {
            picker.end();
        }
        Ok(None)
    }

    fn work(&mut self, row: Row, place: u64, text: Fnv64) -> (Work, Option<Ask>) {
        let input = text
            .with(&row.line.to_le_bytes())
            .with(&self.settings.to_le_bytes())
            .finish();
        if !self.strict {
            self.warn_ignored(&row);
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
            && let Some(name) = row.ignored.first()
        {
            return Todo::Fail(Code::Unsupported.error(format!(
                "{}: found a field that is not known, expected none with --strict",
                quote::text(name)
            )));
        }
        // After the checks that need no tokenizer: a million rows done already are passed over quickly.
        match self.kept.find(place, input, id) {
            Found::Answer(place) => return Todo::Kept(place),
            Found::Other if !self.others_said => {
                self.others_said = true;
                (self.warn)(&format!(
                    "line {}: the earlier run's answer was to another line: such rows are served again (said once)",
                    row.line
                ));
            }
            Found::Other | Found::Nothing => {}
        }
        Todo::Run(Waiting::default())
    }

    /// Warns of what the chat template may not show of the row on this line.
    pub(super) fn warn_doubts(&mut self, line: u64, doubts: Vec<Doubt>) {
        for Doubt { name, why } in doubts {
            if self.doubted.len() < NAMES_AT_MOST && self.doubted.insert(name.clone()) {
                (self.warn)(&format!(
                    "line {line}: {}: {why} (said once)",
                    quote::text(name)
                ));
            }
        }
    }

    fn warn_ignored(&mut self, row: &Row) {
        for name in &row.ignored {
            if self.ignored.len() < NAMES_AT_MOST && self.ignored.insert(name.clone()) {
                (self.warn)(&format!(
                    "line {}: field \"{name}\" is not known and is ignored (said once)",
                    row.line
                ));
            }
        }
    }
}
