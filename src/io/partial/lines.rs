//! The lines of a journal: what it is of, an answer each, and that its job came to its end.

use crate::io::identity::Identity;
use crate::io::kept::Finished;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Of the format: another number is another format.
const VERSION: u32 = 2;

/// `{"journal":{...}}`, the first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    version: u32,
    /// Whose answers these are.
    pub of: Identity,
    /// The finished OUTPUT whose answers count besides, by id.
    pub takes_up: Option<Finished>,
    /// When the job began, in seconds since 1970. Journals from before that was kept have 0, which their answers say too.
    #[serde(default)]
    pub created: u64,
    /// Sequences that ran at once, at most: whoever goes on has as many. Older journals do not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_seqs: Option<u32>,
}

#[derive(Serialize)]
struct HeaderLine<'a> {
    journal: &'a Header,
}

/// Seconds since 1970.
pub fn now() -> u64 {
    let since = std::time::UNIX_EPOCH.elapsed();
    since.map_or(0, |time| time.as_secs())
}

impl Header {
    pub fn new(of: Identity, takes_up: Option<Finished>) -> Self {
        Self {
            version: VERSION,
            of,
            takes_up,
            created: now(),
            max_seqs: None,
        }
    }

    /// The line, with its end.
    pub fn line(&self) -> String {
        let line = serde_json::to_string(&HeaderLine { journal: self });
        line.expect("numbers and strings always serialise") + "\n"
    }
}

/// What the first line of a journal is.
pub(super) enum First {
    Header(Box<Header>),
    /// Of a version of the format that this program does not read.
    OtherVersion,
    Foreign,
}

impl First {
    pub fn parse(line: &[u8]) -> Self {
        let Ok(value) = serde_json::from_slice::<Value>(line) else {
            return Self::Foreign;
        };
        match value.get("journal") {
            Some(header) if header.get("version") == Some(&VERSION.into()) => {
                match Header::deserialize(header) {
                    Ok(header) => Self::Header(Box::new(header)),
                    Err(_) => Self::Foreign,
                }
            }
            Some(header) if header.get("version").is_some() => Self::OtherVersion,
            // Before there was a header, a journal began with its first answer.
            None if value.get("row").is_some() && value.get("answer").is_some() => {
                Self::OtherVersion
            }
            _ => Self::Foreign,
        }
    }
}

/// The last line of a journal whose job gave every row an answer, some of which may be better the next time.
pub(super) const ENDED: &str = "{\"ended\":true}\n";

/// `{"row":R,"input":"H","done":D,"answer":A}`
pub(super) struct Record {
    pub row: u64,
    pub input: u64,
    pub done: bool,
    /// Of the answer, from the line's start.
    pub answer_start: usize,
    pub answer_bytes: usize,
}

impl Record {
    /// What stands before the answer.
    pub fn start(row: u64, input: u64, done: bool) -> String {
        format!("{{\"row\":{row},\"input\":\"{input:016x}\",\"done\":{done},\"answer\":")
    }

    /// What stands behind it.
    pub const END: &str = "}\n";

    /// Whether `before` ends with what stands before an answer of `row`.
    pub fn leads_to(before: &[u8], row: u64) -> bool {
        const HASH_DIGITS: usize = 16;
        let head = format!("{{\"row\":{row},\"input\":\"");
        [true, false].into_iter().any(|done| {
            let tail = format!("\",\"done\":{done},\"answer\":");
            let start = head.len() + HASH_DIGITS + tail.len();
            before.len() >= start
                && before[before.len() - start..].starts_with(head.as_bytes())
                && before.ends_with(tail.as_bytes())
        })
    }

    pub fn parse(line: &[u8]) -> Option<Self> {
        const ANSWER: &[u8] = b"\"answer\":";
        let value: Value = serde_json::from_slice(line).ok()?;
        let answer_start = line.windows(ANSWER.len()).position(|w| w == ANSWER)? + ANSWER.len();
        Some(Self {
            row: value.get("row")?.as_u64()?,
            input: u64::from_str_radix(value.get("input")?.as_str()?, 16).ok()?,
            done: value.get("done")?.as_bool()?,
            answer_start,
            answer_bytes: line.trim_ascii_end().len().checked_sub(answer_start + 1)?,
        })
    }
}
