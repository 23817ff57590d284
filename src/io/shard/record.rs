//! What OUTPUT.shard.json says.

use super::{Shard, WholeInput, record_path};
use crate::error::{Error, Result};
use crate::io::identity::Identity;
use crate::quote;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// The version of the format: another number is another format.
const VERSION: u32 = 2;

/// Far above any record.
const MAX_BYTES: u64 = 16 << 20;

/// What is in OUTPUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Holds {
    /// A line of JSON for each row, those in error among them.
    Lines,
    /// `logits.{i}` of each row that is not in error.
    Logits,
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lines => "lines",
            Self::Logits => "logits",
        })
    }
}

/// Which rows OUTPUT answers, of which input, and whose answers they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    #[serde(flatten)]
    pub shard: Shard,
    pub holds: Holds,
    pub input: WholeInput,
    /// In OUTPUT.
    pub answers: u64,
    /// Rows in error.
    pub failed: u64,
    /// Bytes of OUTPUT.
    pub bytes: u64,
    pub sha256: String,
    /// The model and the options.
    pub of: Identity,
    /// The time that chat templates read, where one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub now: Option<String>,
}

/// The file is `{"shard":2,...}`, where 2 is the version.
#[derive(Serialize)]
struct Versioned<'a> {
    shard: u32,
    #[serde(flatten)]
    record: &'a Record,
}

/// Read first: another version may have other fields.
#[derive(Deserialize)]
struct Version {
    shard: u32,
}

impl Record {
    pub(super) fn to_text(&self) -> String {
        let text = serde_json::to_string(&Versioned {
            shard: VERSION,
            record: self,
        });
        text.expect("numbers and strings always serialise") + "\n"
    }

    /// The record of the shard `output`.
    ///
    /// # Errors
    /// There is none, or it is of another version.
    pub fn read(output: &Path) -> Result<Self> {
        let path = record_path(output);
        let expected = "the record that a run with --shard leaves when it is done";
        let file = File::open(&path).map_err(|error| Error::open(&path, &error, expected))?;
        let mut text = Vec::new();
        file.take(MAX_BYTES)
            .read_to_end(&mut text)
            .map_err(|error| Error::io(&path, error))?;
        let wrong =
            |found: String| Error::file(&path, format!("found {found}, expected {expected}"));
        let no_record = |error| wrong(format!("no record ({})", quote::message(error)));
        let Version { shard: version } = serde_json::from_slice(&text).map_err(no_record)?;
        if version != VERSION {
            return Err(wrong(format!(
                "a record of version {version}, which this version of tailgraph does not read"
            )));
        }
        let record: Self = serde_json::from_slice(&text).map_err(no_record)?;
        Shard::parse(&record.shard.to_string())
            .map_err(|error| wrong(format!("the shard {} ({error})", record.shard)))?;
        Ok(record)
    }
}
