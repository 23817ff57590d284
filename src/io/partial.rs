//! OUTPUT.partial: every finished row at once, in the order of finishing, so that a killed run loses nothing.
//!
//! A record is a line `{"row":R,"input":"H","done":D,"answer":A}`. R is the row's place in the input, counted
//! from 0; H hashes everything the answer depends on (line, number, model, options); D says whether the answer
//! is final. A finished OUTPUT taken up again is copied into records whose R is null and whose H is the id's
//! hash: it has no other trace of its input. The last record of a row counts.

use super::hash::fnv128;
use crate::error::{Error, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{BufRead, BufReader, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Where an answer lies in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    offset: u64,
    bytes: u32,
}

/// What an earlier run left of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    Answer(Place),
    /// An answer to another line, or of another model or other options.
    Other,
    Nothing,
}

/// Final answers that an earlier run left.
#[derive(Debug, Default)]
pub struct Kept {
    by_row: HashMap<u64, (u64, Place)>,
    by_id: HashMap<u128, Place>,
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

    /// Of these, answers of a finished OUTPUT, of which nothing but the id says what was asked.
    pub fn by_id(&self) -> usize {
        self.by_id.len()
    }
}

/// The journal of one run, and how OUTPUT is made of it.
#[derive(Debug)]
pub struct Journal {
    output: PathBuf,
    path: PathBuf,
    file: File,
    /// The next record starts here; what lies behind it is torn or of a run that is not resumed.
    end: u64,
    /// Bytes the file had when it was opened.
    found_bytes: u64,
    /// Whether this run has written a record.
    begun: bool,
    /// Answers of this run by row.
    rows: Vec<Option<Place>>,
}

impl Journal {
    /// Opens OUTPUT.partial, anew or with what an earlier run left in it (or in OUTPUT). Fails where OUTPUT
    /// could not be written, or another run is writing it.
    pub fn open(output: &Path, resume: bool) -> Result<(Self, Kept)> {
        if output.is_dir() {
            return Err(Error::file(
                output,
                "found a directory, expected a file to write",
            ));
        }
        let [path, _] = beside(output);
        if resume && !path.exists() && output.exists() {
            copy_finished(output)?;
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| Error::create(&path, &error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::file(
                    &path,
                    "another run is writing it; wait for it or choose another --output",
                ));
            }
            // Some file systems have no locks: two runs with one --output are then the user's to avoid.
            Err(TryLockError::Error(_)) => {}
        }
        let found_bytes = file.metadata().map_err(|e| Error::io(&path, e))?.len();
        let mut journal = Self {
            output: output.to_owned(),
            path,
            file,
            end: 0,
            found_bytes,
            begun: false,
            rows: Vec::new(),
        };
        let kept = if resume {
            journal.read_back()?
        } else {
            Kept::default()
        };
        Ok((journal, kept))
    }

    /// Cuts off what this run does not go on from. Not before there is something to write: a run that fails
    /// to start takes nothing from an earlier one.
    fn begin(&mut self) -> Result<()> {
        self.file
            .set_len(self.end)
            .map_err(|error| self.io(error))?;
        self.file
            .seek(SeekFrom::Start(self.end))
            .map_err(|error| self.io(error))?;
        self.begun = true;
        Ok(())
    }

    fn io(&self, error: std::io::Error) -> Error {
        Error::io(&self.path, error)
    }

    /// Reads the records; a last line that a kill tore is left outside `end`.
    fn read_back(&mut self) -> Result<Kept> {
        let mut kept = Kept::default();
        let mut reader = BufReader::new(&self.file);
        let mut line = Vec::new();
        let mut offset = 0_u64;
        for number in 1_u64.. {
            line.clear();
            let bytes = reader
                .read_until(b'\n', &mut line)
                .map_err(|error| Error::io(&self.path, error))?;
            if line.last() != Some(&b'\n') {
                break;
            }
            let Some(record) = Record::parse(&line) else {
                return Err(Error::file(
                    &self.path,
                    format!(
                        "line {number} is not a record of an earlier run, expected {{\"row\",\"input\",\"done\",\"answer\"}}: remove that line to keep the others; without --resume all are written over"
                    ),
                ));
            };
            let place = Place {
                offset: offset + record.answer_start as u64,
                bytes: record.answer_bytes as u32,
            };
            record.add_to(&mut kept, place);
            offset += bytes as u64;
        }
        self.end = offset;
        Ok(kept)
    }

    /// Writes the answer of row `row` (a line of JSON without its newline), through to the system.
    pub fn put(&mut self, row: u64, input: u64, done: bool, answer: &str) -> Result<()> {
        let mut record =
            format!("{{\"row\":{row},\"input\":\"{input:016x}\",\"done\":{done},\"answer\":");
        let place = Place {
            offset: self.end + record.len() as u64,
            bytes: u32::try_from(answer.len())
                .map_err(|_| Error::file(&self.path, "an answer of more than 4 GiB"))?,
        };
        record.push_str(answer);
        record.push_str("}\n");
        if !self.begun {
            self.begin()?;
        }
        self.file
            .write_all(record.as_bytes())
            .map_err(|error| self.io(error))?;
        self.end += record.len() as u64;
        self.keep(row, place);
        Ok(())
    }

    /// Takes over the answer of an earlier run.
    pub fn keep(&mut self, row: u64, place: Place) {
        let row = row as usize;
        if self.rows.len() <= row {
            self.rows.resize(row + 1, None);
        }
        self.rows[row] = Some(place);
    }

    /// Puts OUTPUT together in input order and moves it into place whole. The journal goes unless
    /// `keep_journal`: then `--resume` finds it again.
    pub fn assemble(self, keep_journal: bool) -> Result<()> {
        let [_, building] = beside(&self.output);
        let fail = |error| Error::io(&building, error);
        let file = File::create(&building).map_err(fail)?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        let mut answer = Vec::new();
        let mut at = u64::MAX;
        let mut reader = BufReader::with_capacity(1 << 16, &self.file);
        for place in self.rows.iter().flatten() {
            // Rows finish nearly in input order, so most seeks stay inside the buffer.
            let result = if at == u64::MAX {
                reader.seek(SeekFrom::Start(place.offset)).map(|_| ())
            } else {
                reader.seek_relative(place.offset as i64 - at as i64)
            };
            answer.resize(place.bytes as usize, 0);
            result
                .and_then(|()| reader.read_exact(&mut answer))
                .map_err(|error| Error::io(&self.path, error))?;
            at = place.offset + u64::from(place.bytes);
            answer.push(b'\n');
            out.write_all(&answer).map_err(fail)?;
        }
        let file = out.into_inner().map_err(|error| fail(error.into_error()))?;
        file.sync_all().map_err(fail)?;
        std::fs::rename(&building, &self.output).map_err(|error| Error::io(&self.output, error))?;
        if !keep_journal {
            std::fs::remove_file(&self.path).map_err(|error| self.io(error))?;
        }
        Ok(())
    }

    /// Whether an earlier run left rows that this one, not resuming, writes over.
    pub fn forgets_rows(&self) -> bool {
        self.end == 0 && self.found_bytes > 0
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Journal {
    /// A run that wrote nothing (its model did not load) leaves nothing behind.
    fn drop(&mut self) {
        if self.found_bytes == 0 && !self.begun {
            // Already gone where it was assembled; nothing depends on it otherwise.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// What is written on the way to `output`: the journal, and what is put together under another name.
pub fn beside(output: &Path) -> [PathBuf; 2] {
    [".partial", ".partial.tmp"].map(|suffix| {
        let mut name = output.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    })
}

/// OUTPUT's served rows as records by id, under the journal's name once they are all there.
fn copy_finished(output: &Path) -> Result<()> {
    let [journal, building] = beside(output);
    let fail = |error| Error::io(&building, error);
    let read_fail = |error| Error::io(output, error);
    let mut reader = BufReader::new(File::open(output).map_err(read_fail)?);
    let mut out = BufWriter::new(File::create(&building).map_err(fail)?);
    let mut line = Vec::new();
    loop {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(read_fail)? == 0 {
            break;
        }
        let Ok(answer) = serde_json::from_slice::<Value>(&line) else {
            continue;
        };
        if let (Some(id), true) = (answer_id(&answer), is_final(&answer)) {
            let id = fnv128(id.as_bytes());
            write!(
                out,
                "{{\"row\":null,\"input\":\"{id:032x}\",\"done\":true,\"answer\":"
            )
            .map_err(fail)?;
            out.write_all(line.trim_ascii()).map_err(fail)?;
            out.write_all(b"}\n").map_err(fail)?;
        }
    }
    out.flush().map_err(fail)?;
    std::fs::rename(&building, &journal).map_err(|error| Error::io(&journal, error))
}

fn answer_id(answer: &Value) -> Option<String> {
    match answer.get("custom_id").or_else(|| answer.get("id"))? {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Whether a line of an output file is an answer that another run would only give again.
fn is_final(answer: &Value) -> bool {
    let finish = match answer.get("response") {
        Some(response) => response.pointer("/body/choices/0/finish_reason"),
        None => answer.get("finish_reason"),
    };
    matches!(finish.and_then(Value::as_str), Some("stop" | "length"))
}

struct Record {
    row: Option<u64>,
    input: u128,
    done: bool,
    answer_start: usize,
    answer_bytes: usize,
}

impl Record {
    fn parse(line: &[u8]) -> Option<Self> {
        const ANSWER: &[u8] = b"\"answer\":";
        let value: Value = serde_json::from_slice(line).ok()?;
        let answer_start = line.windows(ANSWER.len()).position(|w| w == ANSWER)? + ANSWER.len();
        Some(Self {
            row: match value.get("row")? {
                Value::Null => None,
                row => Some(row.as_u64()?),
            },
            input: u128::from_str_radix(value.get("input")?.as_str()?, 16).ok()?,
            done: value.get("done")?.as_bool()?,
            answer_start,
            answer_bytes: line.trim_ascii_end().len().checked_sub(answer_start + 1)?,
        })
    }

    fn add_to(self, kept: &mut Kept, place: Place) {
        match self.row {
            None => {
                kept.by_id.insert(self.input, place);
            }
            Some(row) if self.done => {
                kept.by_row.insert(row, (self.input as u64, place));
            }
            Some(row) => {
                kept.by_row.remove(&row);
            }
        }
    }
}
