//! Shards as one file, which is that of a run of all rows: every row once, in order, or an error that names what is missing.
//!
//! The records say which rows a shard answers and of what; that each file is the one that its record is of is seen while it
//! is copied. Memory holds a buffer a shard (and what its decompression looks back at), and of logits the list of arrays.

mod lines;
mod logits;

use super::shard::{Holds, Record, record_path};
use crate::error::{Error, Result};
use crate::quote;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A shard's file and its record.
struct Part {
    path: PathBuf,
    record: Record,
}

impl Part {
    fn read(path: &Path) -> Result<Self> {
        let record = Record::read(path)?;
        let (shard, rows) = (record.shard, record.input.rows);
        let found = match record.holds {
            Holds::Lines => record.answers,
            Holds::Logits => record.answers.saturating_add(record.failed),
        };
        let expected = shard.share(rows);
        if found != expected {
            return Err(Error::file(
                record_path(path),
                format!(
                    "found {found} answers, expected {expected}, which shard {shard} has of {rows} rows"
                ),
            ));
        }
        Ok(Self {
            path: path.to_owned(),
            record,
        })
    }

    /// Opens the file, which must be as long as its record says.
    fn open(&self) -> Result<File> {
        let expected = "a shard that a run with --shard wrote";
        let file =
            File::open(&self.path).map_err(|error| Error::open(&self.path, &error, expected))?;
        let about = file
            .metadata()
            .map_err(|error| Error::io(&self.path, error))?;
        let (found, expected) = (about.len(), self.record.bytes);
        if found != expected {
            return Err(self.other(&format!("{found} bytes, expected {expected}")));
        }
        Ok(file)
    }

    /// The file is not the one that the record is of.
    fn other(&self, found: &str) -> Error {
        Error::file(
            &self.path,
            format!(
                "found {found}, as {} says: run that shard again",
                record_path(&self.path).display()
            ),
        )
    }

    /// What was read of the file has the record's hash.
    fn check(&self, sha256: &str) -> Result<()> {
        if sha256 == self.record.sha256 {
            return Ok(());
        }
        let expected = &self.record.sha256;
        Err(self.other(&format!(
            "contents of the hash {sha256}, expected {expected}"
        )))
    }

    /// Refuses what is no shard of the same job as `self`.
    fn check_same_job(&self, other: &Self) -> Result<()> {
        let of = self.path.display();
        let wrong = |found: String| {
            Err(Error::file(
                &other.path,
                format!("{found}, expected shards of one job"),
            ))
        };
        let (ours, theirs) = (&self.record, &other.record);
        if ours.shard.count != theirs.shard.count {
            return wrong(format!(
                "found shard {}, and {of} is {}",
                theirs.shard, ours.shard
            ));
        }
        if ours.input != theirs.input {
            return wrong(format!(
                "found a shard of another input ({}) than {of} ({})",
                theirs.input, ours.input
            ));
        }
        if let Some(differences) = theirs.of.differences(&ours.of) {
            return wrong(format!(
                "found a shard of another model or other options than {of}, which differ in {differences}"
            ));
        }
        if ours.holds != theirs.holds {
            return wrong(format!(
                "found {}, and {of} has {}",
                theirs.holds, ours.holds
            ));
        }
        Ok(())
    }
}

/// All shards of one job, in order.
pub struct Merge(Vec<Part>);

/// Numbers that a message names, at most.
const NAMED: usize = 16;

impl Merge {
    /// The shards in these files.
    ///
    /// # Errors
    /// They are not all the shards of one job.
    pub fn of(paths: &[PathBuf]) -> Result<Self> {
        let parts = paths.iter().map(|path| Part::read(path));
        let mut parts: Vec<Part> = parts.collect::<Result<_>>()?;
        let Some((first, others)) = parts.split_first() else {
            return Err(Error::Usage("merge: expected a shard".to_owned()));
        };
        others
            .iter()
            .try_for_each(|part| first.check_same_job(part))?;
        let mut timed = parts.iter().filter(|part| part.record.now.is_some());
        if let Some(first) = timed.next()
            && let Some(other) = timed.find(|part| part.record.now != first.record.now)
        {
            let shown = |part: &Part| quote::text(part.record.now.as_deref().unwrap_or_default());
            return Err(Error::file(
                &other.path,
                format!(
                    "found a shard whose chat template read the time {}, and that of {} read {}, expected one time: run shards with one --now",
                    shown(other),
                    first.path.display(),
                    shown(first)
                ),
            ));
        }
        parts.sort_by_key(|part| part.record.shard.index);
        let same = |pair: &&[Part]| pair[0].record.shard == pair[1].record.shard;
        if let Some(pair) = parts.windows(2).find(same) {
            return Err(Error::file(
                &pair[1].path,
                format!(
                    "found shard {}, which {} is too, expected each once",
                    pair[1].record.shard,
                    pair[0].path.display()
                ),
            ));
        }
        let count = parts[0].record.shard.count;
        if parts.len() as u64 != count {
            let find =
                |index: u64| parts.binary_search_by_key(&index, |part| part.record.shard.index);
            let mut missing = (0..count).filter(|&index| find(index).is_err());
            let named: Vec<String> = (&mut missing).take(NAMED).map(|i| i.to_string()).collect();
            let more = match missing.count() {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            return Err(Error::Usage(format!(
                "merge: found {} of {count} shards, missing {}{more}: expected all",
                parts.len(),
                named.join(", ")
            )));
        }
        Ok(Self(parts))
    }

    /// Rows of the input.
    pub fn rows(&self) -> u64 {
        self.0[0].record.input.rows
    }

    pub fn failed(&self) -> u64 {
        self.0.iter().map(|part| part.record.failed).sum()
    }

    /// Logits, rather than rows as JSON lines.
    pub fn is_of_logits(&self) -> bool {
        matches!(self.0[0].record.holds, Holds::Logits)
    }

    /// Writes `output`; lines of rows that failed go to `errors` instead, where there is one. Logits have no such lines.
    ///
    /// # Errors
    /// A shard is not as its record says, `output` is a file that is not empty and `overwrite` was not asked for, or the system refused.
    pub fn write(&self, output: &Path, errors: Option<&Path>, overwrite: bool) -> Result<()> {
        match self.0[0].record.holds {
            Holds::Lines => lines::merge(&self.0, output, errors, overwrite),
            Holds::Logits => logits::merge(&self.0, output, overwrite),
        }
    }
}
