//! What earlier runs have answered: rows of a journal, and rows of an OUTPUT that is finished.

use super::finished::Answered;
use super::hash::fnv128;
use crate::json;
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Seek, SeekFrom};

/// Which file an answer is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    Journal,
    /// The OUTPUT of a run that was finished earlier.
    Output,
}

/// Where an answer lies, or its record in a journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    pub(super) holder: Holder,
    pub(super) offset: u64,
    pub(super) bytes: u32,
}

/// What an earlier run left of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Answer(Place),
    /// An answer to another line.
    Other,
    Nothing,
}

/// Final answers that an earlier run left.
#[derive(Debug, Default)]
pub struct Kept {
    pub(super) by_row: HashMap<u64, (u64, Place)>,
    pub(super) by_id: HashMap<u128, Place>,
}

impl Kept {
    /// The answer of row `row` if its input is still the same.
    pub fn find(&self, row: u64, input: u64, id: &str) -> Found {
        match self.by_row.get(&row) {
            Some(&(kept, place)) if kept == input => Found::Answer(place),
            Some(_) => Found::Other,
            None => match self.by_id.get(&fnv128(id.as_bytes())) {
                Some(&place) => Found::Answer(place),
                None => Found::Nothing,
            },
        }
    }

    pub fn len(&self) -> usize {
        self.by_row.len() + self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Answers of a finished OUTPUT, of which nothing but the id says what was asked.
    pub fn by_id(&self) -> usize {
        self.by_id.len()
    }

    /// Answers to rows from `row` on.
    pub fn behind(&self, row: u64) -> usize {
        self.by_row.keys().filter(|&&kept| kept >= row).count()
    }

    /// Takes the answers of a finished OUTPUT that another run would only give again; `rows`: what its lines answer.
    pub(super) fn take_rows(&mut self, file: &File, rows: &[Answered]) -> std::io::Result<()> {
        let mut rows = rows.iter();
        each_line(file, |_, place| {
            if let Some(row) = rows.next().filter(|row| row.done)
                && let Ok(input) = u64::from_str_radix(&row.input, 16)
            {
                self.by_row.insert(row.row, (input, place));
            }
        })
    }

    /// Takes them by id alone. An id that two answers have (one that was written, and a line number) says of neither whose it is: such
    /// rows run again.
    pub(super) fn take_ids(&mut self, file: &File) -> std::io::Result<()> {
        let mut seen = HashSet::new();
        each_line(file, |text, place| {
            let answer = json::exact::<Value>(text).ok();
            let Some((answer, id)) = answer.and_then(|answer| {
                let id = fnv128(id(&answer)?.as_bytes());
                Some((answer, id))
            }) else {
                return;
            };
            if !seen.insert(id) {
                self.by_id.remove(&id);
            } else if is_final(&answer) {
                self.by_id.insert(id, place);
            }
        })
    }
}

/// Calls `found` with each line of OUTPUT, without blanks around it, and where it lies.
fn each_line(file: &File, mut found: impl FnMut(&[u8], Place)) -> std::io::Result<()> {
    let mut reader = BufReader::with_capacity(1 << 16, file);
    reader.seek(SeekFrom::Start(0))?;
    let mut line = Vec::new();
    let mut offset = 0;
    loop {
        line.clear();
        let bytes = reader.read_until(b'\n', &mut line)?;
        if bytes == 0 {
            return Ok(());
        }
        let text = line.trim_ascii();
        let blank = line.len() - line.trim_ascii_start().len();
        if let Ok(length) = u32::try_from(text.len()) {
            let place = Place {
                holder: Holder::Output,
                offset: offset + blank as u64,
                bytes: length,
            };
            found(text, place);
        }
        offset += bytes as u64;
    }
}

/// How a line of an output file names its row.
fn id(answer: &Value) -> Option<String> {
    let given = |name| answer.get(name).filter(|id: &&Value| !id.is_null());
    match given("custom_id").or_else(|| given("id"))? {
        Value::String(text) => Some(text.clone()),
        other => json::integer(other).map(|number| number.to_string()),
    }
}

/// Whether another run would only give the answer again.
fn is_final(answer: &Value) -> bool {
    let of_batch = answer.pointer("/response/body/choices/0/finish_reason");
    let finish = of_batch.or_else(|| answer.get("finish_reason"));
    let finish = finish.and_then(Value::as_str);
    matches!(finish, Some("stop" | "length" | "tool_calls"))
}
