//! What a line of input asks: which prompt, which options, in whose format, or why it is not served.
//!
//! `ask` is the question, `id` what the row is called, `format` whose it is, `error` why it is not served. How a line is read is
//! not known here: the parsers use these types.

mod ask;
mod error;
mod format;
mod id;

pub use ask::{Ask, Choices, DEFAULT_MAX_NEW_TOKENS, FieldNames, MAX_CHOICES, Options, Prompt};
pub use error::{Code, RowError, TIMED_OUT};
pub use format::{Endpoint, Format, OpenAi, Stream};
pub use id::{Id, MAX_ID_BYTES};

/// Values of JSON that a line may hold: each takes tens of bytes once it is parsed, however short it is in the file.
/// Far above the token ids of any context.
pub const MAX_VALUES: usize = 1 << 20;

pub const MAX_NEW_TOKENS: u32 = i32::MAX as u32;
pub const MAX_LOGPROBS: u32 = crate::sys::abi::TG_MAX_LOGPROBS;
/// About 31 years: far from overflowing nanoseconds in 64 bits.
pub const MAX_TIMEOUT_MS: u64 = 1_000_000_000_000;

/// Names of fields that nothing reads, as many as are told of.
pub(super) const IGNORED_AT_MOST: usize = 32;

/// One parsed line.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Counted from 1; blank lines count.
    pub line: u64,
    /// The row's own, else its line number.
    pub id: Id,
    /// Whether the row has written its id itself: such ids must differ.
    pub claims_id: bool,
    pub format: Format,
    /// Whether the line tells its format. One that does not is answered in the format of its file.
    pub tells_format: bool,
    pub ask: Result<Ask, RowError>,
    /// Names of fields that nothing reads.
    pub ignored: Vec<String>,
}

impl Row {
    /// A row of our own that has not written its id, on a line that does not tell its format.
    pub fn new(number: u64, ask: Result<Ask, RowError>) -> Self {
        Self {
            line: number,
            id: Id::line(number),
            claims_id: false,
            format: Format::Own,
            tells_format: false,
            ask,
            ignored: Vec::new(),
        }
    }

    /// Answers a line that does not tell its format as its file's other lines are.
    pub fn take_format(&mut self, of_file: &Format) {
        if !self.tells_format && *of_file != Format::Own {
            self.be_batch_row(Id::unread(self.line));
        }
    }

    /// A line that cannot be read, answered as the batch row `id`.
    pub(super) fn be_batch_row(&mut self, id: Id) {
        self.format = Format::OpenAi(OpenAi::default());
        self.id = id;
        self.tells_format = true;
    }
}
