//! OUTPUT.job.json: what the answers of a finished OUTPUT are answers to, by which another run knows which of them still count.

use super::hash::sha256;
use super::identity::Identity;
use crate::error::{Error, Result};
use crate::files::names::beside;
use crate::files::{Out, Unfinished, Whole};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// A file by its contents: a journal that goes on from a finished OUTPUT is of no use with another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Contents {
    pub bytes: u64,
    pub sha256: String,
}

impl Contents {
    pub fn of(file: &File, path: &Path) -> Result<Self> {
        let (bytes, sha256) = sha256(file, path)?;
        Ok(Self { bytes, sha256 })
    }

    /// Those of a file that has all that it is to have, and another name still.
    pub fn of_whole(whole: &mut Whole) -> Result<Self> {
        let path = whole.path().to_owned();
        // Where nothing was written, that which an unfinished run left is no part of it.
        Self::of(whole.file()?, &path)
    }
}

/// What one line of OUTPUT answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Answered {
    /// Place of the row in the input, counted from 0.
    pub row: u64,
    /// Hash of everything the answer depends on, in hexadecimal.
    pub input: String,
    /// Not worth another try.
    pub done: bool,
}

/// The record that stands beside a finished OUTPUT.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Finished {
    /// [`Finished::VERSION`].
    pub job: u32,
    /// Whose answers these are.
    pub of: Identity,
    /// When the job began, in seconds since 1970.
    pub created: u64,
    /// Sequences that ran at once, at most.
    pub max_seqs: Option<u32>,
    /// OUTPUT, by its contents.
    pub output: Contents,
    /// The file that rows in error went to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<Contents>,
    /// The rows of OUTPUT, in the order of its lines.
    pub rows: Vec<Answered>,
}

/// Where the record of `output` is.
pub fn job_path(output: &Path) -> PathBuf {
    beside(output, ".job.json")
}

impl Finished {
    /// The version of the format: another number is another format.
    pub const VERSION: u32 = 1;

    /// The record beside `output`; `None` where there is none of this version.
    pub fn beside(output: &Path) -> Option<Self> {
        let text = std::fs::read(job_path(output)).ok()?;
        let found: Self = serde_json::from_slice(&text).ok()?;
        (found.job == Self::VERSION).then_some(found)
    }

    /// Writes it beside `output`.
    ///
    /// # Errors
    /// The system refused.
    pub fn write(&self, output: &Path) -> Result<()> {
        let mut out = Out::open(&job_path(output), Unfinished::Removed)?;
        let text = serde_json::to_string(self).expect("strings and numbers always serialise");
        writeln!(out, "{text}").map_err(|error| Error::io(out.name(), error))?;
        out.finish()
    }
}
