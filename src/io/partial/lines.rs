//! The lines of a journal: what it is of, an answer each, and that its job came to its end.

use crate::io::finished::Contents;
use crate::io::identity::Identity;

use flate2::Crc;
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The version of the format: another number is another format.
const VERSION: u32 = 4;

/// `{"journal":{...},"crc32":"C"}`, the first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    version: u32,
    /// Whose answers these are.
    pub of: Identity,
    /// The finished OUTPUT whose answers count besides, by id.
    pub takes_up: Option<Contents>,
    /// When the job began, in seconds since 1970.
    pub created: u64,
    /// Sequences that ran at once, at most: whoever goes on has as many.
    pub max_seqs: Option<u32>,
    /// The file that rows in error go to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub errors: Option<String>,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed();
    since.map_or(0, |time| time.as_secs())
}

impl Header {
    pub fn new(of: Identity, takes_up: Option<Contents>) -> Self {
        Self {
            version: VERSION,
            of,
            takes_up,
            created: now(),
            max_seqs: None,
            errors: None,
        }
    }

    /// The line, with its end.
    pub fn line(&self) -> String {
        let header = serde_json::to_string(self).expect("numbers and strings always serialise");
        sealed(format!("{{\"journal\":{header}"))
    }

    /// `None`: the line is no header as this version of the format has it.
    pub fn parse(line: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Line {
            journal: Header,
        }
        unsealed(line)?;
        let Line { journal } = serde_json::from_slice(line).ok()?;
        (journal.version == VERSION).then_some(journal)
    }
}

/// What ends a line: a checksum of what stands before, and the brace that closes it.
fn seal(body: &[u8]) -> String {
    let mut crc = Crc::new();
    crc.update(body);
    format!(",\"crc32\":\"{:08x}\"}}\n", crc.sum())
}

fn sealed(body: String) -> String {
    let seal = seal(body.as_bytes());
    body + &seal
}

/// A line without its seal; `None` where it is not as it was written.
fn unsealed(line: &[u8]) -> Option<&[u8]> {
    const SEAL_BYTES: usize = ",\"crc32\":\"01234567\"}\n".len();
    let (body, found) = line.split_at(line.len().checked_sub(SEAL_BYTES)?);
    (found == seal(body).as_bytes()).then_some(body)
}

/// `{"row":R,"input":"H","done":D,"answer":A,"crc32":"C"}`
pub(super) struct Record {
    pub row: u64,
    pub input: u64,
    pub done: bool,
    /// Where in the line the answer is.
    pub answer: Range<usize>,
}

impl Record {
    /// The line, with its end.
    pub fn line(row: u64, input: u64, done: bool, answer: &str) -> String {
        sealed(format!(
            "{{\"row\":{row},\"input\":\"{input:016x}\",\"done\":{done},\"answer\":{answer}"
        ))
    }

    /// `None`: the line is not as a run wrote it.
    pub fn parse(line: &[u8]) -> Option<Self> {
        const ANSWER: &[u8] = b"\"answer\":";
        #[derive(Deserialize)]
        struct Fields<'a> {
            row: u64,
            input: &'a str,
            done: bool,
        }
        let body = unsealed(line)?;
        let Fields { row, input, done } = serde_json::from_slice(line).ok()?;
        let before = body.windows(ANSWER.len()).position(|w| w == ANSWER)?;
        Some(Self {
            row,
            input: u64::from_str_radix(input, 16).ok()?,
            done,
            answer: before + ANSWER.len()..body.len(),
        })
    }
}
