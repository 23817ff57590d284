//! Rows one at a time, each ready to run, already answered, or in error.

use super::answer::Label;
use super::codec::Codec;
use super::hash::{Fnv64, fnv128};
use super::partial::{Kept, Place};
use super::prepare::{Prepared, Rules, prepare};
use super::row::{self, Ask, Code, Format, Id, Options, Prompt, Row, RowError};
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::io::BufRead;
use std::path::PathBuf;
use std::sync::Arc;

/// A longer line is an error of its row, and is not read into memory.
pub const MAX_LINE_BYTES: u64 = 64 << 20;

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
    Run(Box<Prepared>),
    /// An earlier run has answered it.
    Kept(Place),
    Fail(RowError),
}

/// Lines as bytes, numbered from 1.
pub enum Lines {
    Reader {
        from: Box<dyn BufRead + Send>,
        path: PathBuf,
        number: u64,
    },
    /// Prompts as arguments.
    Prompts(std::vec::IntoIter<String>),
}

/// What turns lines into work.
pub struct Source {
    lines: Lines,
    next_row: u64,
    rules: Rules,
    codec: Arc<dyn Codec>,
    kept: Kept,
    /// Hash of the settings that answers depend on.
    settings: u64,
    ids: HashSet<u128>,
    ignored: HashSet<String>,
    warn: Box<dyn FnMut(&str) + Send>,
}

impl Source {
    /// `warn` is told once of each field name that nothing reads.
    pub fn new(
        lines: Lines,
        rules: Rules,
        codec: Arc<dyn Codec>,
        kept: Kept,
        settings: u64,
        warn: Box<dyn FnMut(&str) + Send>,
    ) -> Self {
        Self {
            lines,
            next_row: 0,
            rules,
            codec,
            kept,
            settings,
            ids: HashSet::new(),
            ignored: HashSet::new(),
            warn,
        }
    }

    /// The next row; `None` at the end of the input. Errors are the input's, not a row's.
    pub fn next_work(&mut self) -> Result<Option<Work>> {
        let (row, input) = match &mut self.lines {
            Lines::Prompts(prompts) => match prompts.next() {
                None => return Ok(None),
                Some(text) => {
                    let input = Fnv64::default().with(text.as_bytes());
                    (argument(text, self.next_row + 1), input)
                }
            },
            Lines::Reader { from, path, number } => {
                let line = read_line(&mut **from, number)
                    .map_err(|error| Error::io(path.as_path(), error))?;
                match line {
                    None => return Ok(None),
                    Some(Line::Bytes(bytes)) => {
                        (row::parse(&bytes, *number), Fnv64::default().with(&bytes))
                    }
                    Some(Line::TooLong) => (too_long(*number), Fnv64::default()),
                }
            }
        };
        let input = input
            .with(&row.line.to_le_bytes())
            .with(&self.settings.to_le_bytes())
            .finish();
        let place = self.next_row;
        self.next_row += 1;
        self.warn_ignored(&row);
        let todo = self.todo(&row, place, input);
        Ok(Some(Work {
            row: place,
            input,
            label: Label {
                line: row.line,
                id: row.id,
                format: row.format,
            },
            todo,
        }))
    }

    fn todo(&mut self, row: &Row, place: u64, input: u64) -> Todo {
        let id = row.id.as_str();
        if row.claims_id && !self.ids.insert(fnv128(id.as_bytes())) {
            return Todo::Fail(RowError::new(
                Code::DuplicateId,
                format!(
                    "line {}: found id {:?}, which an earlier row has, expected a new one",
                    row.line, id
                ),
            ));
        }
        let ask = match &row.ask {
            Err(error) => return Todo::Fail(error.clone()),
            Ok(ask) => ask,
        };
        // After the checks that need no tokenizer: a million rows done already are passed over quickly.
        if let Some(place) = self.kept.find(place, input, id) {
            return Todo::Kept(place);
        }
        match prepare(&self.rules, &*self.codec, id, ask) {
            Ok(prepared) => Todo::Run(Box::new(prepared)),
            Err(error) => Todo::Fail(error),
        }
    }

    fn warn_ignored(&mut self, row: &Row) {
        const NAMES_AT_MOST: usize = 32;
        for name in &row.ignored {
            if self.ignored.len() < NAMES_AT_MOST && self.ignored.insert(name.clone()) {
                (self.warn)(&format!(
                    "line {}: field {name:?} is not known and is ignored (said once)",
                    row.line
                ));
            }
        }
    }
}

fn argument(text: String, number: u64) -> Row {
    Row {
        line: number,
        id: Id::line(number),
        claims_id: true,
        format: Format::Own,
        ask: Ok(Ask {
            prompt: Prompt::Text(text),
            options: Options::default(),
        }),
        ignored: Vec::new(),
    }
}

fn too_long(number: u64) -> Row {
    Row {
        line: number,
        id: Id::line(number),
        claims_id: false,
        format: Format::Own,
        ask: Err(RowError::new(
            Code::InvalidJson,
            format!("line {number}: found more than {MAX_LINE_BYTES} bytes, expected a row of JSON that fits"),
        )),
        ignored: Vec::new(),
    }
}

enum Line {
    Bytes(Vec<u8>),
    TooLong,
}

/// The next line that is not blank, without its end; `number` becomes its number.
fn read_line(from: &mut dyn BufRead, number: &mut u64) -> std::io::Result<Option<Line>> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    loop {
        let mut line = Vec::new();
        let bytes = std::io::Read::take(&mut *from, MAX_LINE_BYTES).read_until(b'\n', &mut line)?;
        if bytes == 0 {
            return Ok(None);
        }
        *number += 1;
        if bytes as u64 == MAX_LINE_BYTES && line.last() != Some(&b'\n') {
            from.skip_until(b'\n')?;
            return Ok(Some(Line::TooLong));
        }
        if *number == 1 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        let text = line.trim_ascii();
        if !text.is_empty() {
            return Ok(Some(Line::Bytes(text.to_vec())));
        }
    }
}
