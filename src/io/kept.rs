//! What earlier runs have answered: rows of a journal, and rows of an OUTPUT that is finished.

use super::hash::{fnv128, hex};
use crate::error::{Error, Result};
use crate::json;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

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
}

/// A finished OUTPUT, by its contents: a journal that goes on from one is of no use with another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finished {
    bytes: u64,
    sha256: String,
}

impl Finished {
    /// Reads all of `output`, and puts the answers in it that another run would only give again into `kept`. An id that two
    /// answers have (one that was written, and a line number) says of neither whose it is: such rows run again.
    pub fn read(output: &Path, file: &File, kept: &mut Kept) -> Result<Self> {
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let mut hash = Sha256::new();
        let mut line = Vec::new();
        let mut offset = 0;
        let mut seen = HashSet::new();
        loop {
            line.clear();
            let bytes = reader
                .read_until(b'\n', &mut line)
                .map_err(|error| Error::io(output, error))?;
            if bytes == 0 {
                break;
            }
            hash.update(&line);
            let text = line.trim_ascii();
            if let Ok(answer) = json::exact::<Value>(text)
                && let Some(id) = id(&answer)
                && let Ok(length) = u32::try_from(text.len())
            {
                let id = fnv128(id.as_bytes());
                let blank = line.len() - line.trim_ascii_start().len();
                let place = Place {
                    holder: Holder::Output,
                    offset: offset + blank as u64,
                    bytes: length,
                };
                if !seen.insert(id) {
                    kept.by_id.remove(&id);
                } else if is_final(&answer) {
                    kept.by_id.insert(id, place);
                }
            }
            offset += bytes as u64;
        }
        Ok(Self {
            bytes: offset,
            sha256: hex(&hash.finalize()),
        })
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
