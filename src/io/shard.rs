//! `--shard I/N`: a run of some of an input's rows, and OUTPUT.shard.json, which says which and of what.
//!
//! A shard reads all of the input, so that ids, places and lines that say nothing of themselves are those of a run of all
//! rows; it answers every N-th row, from row I on. The record holds the hash of OUTPUT, so that neither is taken for that of
//! another run: where a machine is lost between the two, they do not fit each other.

mod record;

pub use self::record::{Holds, Record};
use super::finished::Contents;
use super::hash::hex;
use super::identity::Identity;
use crate::error::{Error, Result};
use crate::files::names::beside;
use crate::files::{Out, Unfinished, Whole};
use crate::quote;
use crate::text::Clock;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

/// Which rows of an input are a run's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shard {
    pub index: u64,
    pub count: u64,
}

impl Shard {
    /// More than any cluster runs, and few enough to be merged with a buffer each.
    pub const MAX_COUNT: u64 = 1 << 16;

    /// Reads `I/N`, I from 0.
    ///
    /// # Errors
    /// It is something else; the message says what.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        let numbers = text
            .split_once('/')
            .and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)));
        match numbers {
            Some((index, count)) if index < count && count <= Self::MAX_COUNT => {
                Ok(Self { index, count })
            }
            Some((index, count)) if index >= count => Err(format!(
                "found shard {index} of {count}, expected I/N with I from 0 to N - 1"
            )),
            _ => Err(format!(
                "expected I/N, two integers, with N of at most {}",
                Self::MAX_COUNT
            )),
        }
    }

    pub fn holds(self, row: u64) -> bool {
        row % self.count == self.index
    }

    /// Which of the shard's rows `row` is, counted from 0.
    pub fn place(self, row: u64) -> u64 {
        row / self.count
    }

    /// How many of `rows` rows are the shard's.
    pub fn share(self, rows: u64) -> u64 {
        (rows + self.count - 1 - self.index) / self.count
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

/// The input of all shards, by its rows. How a file of them is packed does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WholeInput {
    pub rows: u64,
    pub sha256: String,
}

impl fmt::Display for WholeInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} rows, sha256 {}",
            self.rows,
            quote::text(&self.sha256)
        )
    }
}

/// Rows of the input as they are read.
#[derive(Debug, Clone, Default)]
pub struct InputHash {
    rows: u64,
    hash: Sha256,
}

impl InputHash {
    /// The next row: the number by which it is called, and a hash of what it says.
    pub fn add(&mut self, number: u64, text: u64) {
        self.rows += 1;
        self.hash.update(number.to_le_bytes());
        self.hash.update(text.to_le_bytes());
    }

    pub fn finish(self) -> WholeInput {
        WholeInput {
            rows: self.rows,
            sha256: hex(&self.hash.finalize()),
        }
    }
}

/// What was read, once all of it was.
pub type InputRead = Arc<OnceLock<WholeInput>>;

/// Takes a shard's rows out of an input.
#[derive(Debug)]
pub struct Picker {
    shard: Shard,
    hash: InputHash,
    read: InputRead,
}

impl Picker {
    /// Whether the next row, in place `row`, is the shard's.
    pub fn take(&mut self, row: u64, line: u64, text: u64) -> bool {
        self.hash.add(line, text);
        self.shard.holds(row)
    }

    /// There are no more rows.
    pub fn end(&mut self) {
        // Only the first end is one.
        let _ = self.read.set(std::mem::take(&mut self.hash).finish());
    }
}

/// Where the record of the shard `output` is.
pub fn record_path(output: &Path) -> PathBuf {
    beside(output, ".shard.json")
}

/// OUTPUT.shard.json of a run. Claimed at its start, and in place once OUTPUT is.
#[derive(Debug)]
pub struct ShardOutput {
    out: Out,
    shard: Shard,
    of: Identity,
    read: InputRead,
    /// The time that templates may read.
    pub clock: Option<Arc<Clock>>,
}

impl ShardOutput {
    /// For the shard that is written to `output`; `of`: whose answers those will be.
    ///
    /// # Errors
    /// The record could not be written, or another run is writing it.
    pub fn open(output: &Path, shard: Shard, of: Identity) -> Result<Self> {
        Ok(Self {
            out: Out::open(&record_path(output), Unfinished::Removed)?,
            shard,
            of,
            read: InputRead::default(),
            clock: None,
        })
    }

    /// What the run reads its rows through.
    pub fn picker(&self) -> Picker {
        Picker {
            shard: self.shard,
            hash: InputHash::default(),
            read: self.read.clone(),
        }
    }

    /// All of the input was read, elsewhere.
    pub fn input_was(&self, input: WholeInput) {
        // Read once.
        let _ = self.read.set(input);
    }

    /// What will be known of the input.
    pub fn input(&self) -> InputRead {
        self.read.clone()
    }

    /// Writes what OUTPUT will be, whose contents have another name still. `failed`: rows in error.
    ///
    /// # Errors
    /// The system refused.
    pub(super) fn describe(
        &mut self,
        made: &Contents,
        holds: Holds,
        answers: u64,
        failed: u64,
    ) -> Result<()> {
        let Some(input) = self.read.get().cloned() else {
            return Err(Error::Runtime(
                "a shard ended before its input was read".to_owned(),
            ));
        };
        let clock = self.clock.as_ref().filter(|clock| clock.was_read());
        let record = Record {
            shard: self.shard,
            holds,
            input,
            answers,
            failed,
            bytes: made.bytes,
            sha256: made.sha256.clone(),
            of: self.of.clone(),
            now: clock.map(|clock| clock.to_string()),
        };
        let written = self.out.write_all(record.to_text().as_bytes());
        written.map_err(|error| Error::io(self.out.name(), error))
    }

    /// Gives the record its name.
    ///
    /// # Errors
    /// The system refused.
    pub fn finish(self) -> Result<()> {
        self.out.finish()
    }

    /// Describes `made`, and gives both their names.
    ///
    /// # Errors
    /// The system refused.
    pub fn finish_with(
        mut self,
        mut made: Whole,
        holds: Holds,
        answers: u64,
        failed: u64,
    ) -> Result<()> {
        let contents = Contents::of_whole(&mut made)?;
        self.describe(&contents, holds, answers, failed)?;
        made.finish()?;
        self.finish()
    }

    /// Describes lines that were written from beginning to end, and gives both files their names.
    ///
    /// # Errors
    /// Fails as [`ShardOutput::finish_with`] does, and where it is no file.
    pub fn finish_lines(self, made: Out, answers: u64, failed: u64) -> Result<()> {
        match made {
            Out::Whole(made) => self.finish_with(made, Holds::Lines, answers, failed),
            Out::Stream(made) => Err(Error::file(
                made.name(),
                "found a pipe or a device, expected a file that can have a record beside it",
            )),
        }
    }
}
