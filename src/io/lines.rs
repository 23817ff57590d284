//! Rows as they come: lines of a stream, or prompts as arguments.

use super::hash::{Fnv64, fnv128};
use super::line::{self, looks_like_json};
use super::plain::{self, Plain};
use super::row::{Code, Format, Row, RowError};
use crate::error::{Error, Result};
use crate::magic;
use crate::quote;
use std::collections::{HashSet, VecDeque};
use std::io::{BufRead, Read};
use std::path::{Path, PathBuf};

/// A longer line is an error of its row, and is not read into memory.
pub const MAX_LINE_BYTES: u64 = 64 << 20;

/// Where rows come from.
pub enum Lines {
    Reader(Box<Reader>),
    /// Prompts as arguments: row i is line i, counted from 1.
    Arguments {
        prompts: std::vec::IntoIter<String>,
        number: u64,
        plain: Plain,
    },
}

impl Lines {
    /// What they are called in messages.
    pub fn name(&self) -> &Path {
        match self {
            Self::Reader(reader) => &reader.path,
            Self::Arguments { .. } => Path::new("the prompts"),
        }
    }

    /// Rows of a stream, which `path` names in errors.
    pub fn reader(from: Box<dyn BufRead + Send>, path: impl Into<PathBuf>) -> Self {
        Self::Reader(Box::new(Reader {
            from,
            path: path.into(),
            number: 0,
            format: None,
            ahead: VecDeque::new(),
            may_look_ahead: false,
            plain: None,
            json_seen: false,
        }))
    }

    /// Rows of a file: to read on costs nothing, whereas the writer of a stream may wait for the first answer.
    pub fn file(from: Box<dyn BufRead + Send>, path: impl Into<PathBuf>) -> Self {
        let mut lines = Self::reader(from, path);
        if let Self::Reader(reader) = &mut lines {
            reader.may_look_ahead = true;
        }
        lines
    }

    /// Lines of plain text, each a prompt.
    #[must_use]
    pub fn of_prompts(mut self, each: Plain) -> Self {
        match &mut self {
            Self::Reader(reader) => reader.plain = Some(each),
            Self::Arguments { plain, .. } => *plain = each,
        }
        self
    }

    /// Prompts that are to be continued, unless [`Lines::of_prompts`] says otherwise.
    pub fn arguments(prompts: Vec<String>) -> Self {
        Self::Arguments {
            prompts: prompts.into_iter(),
            number: 0,
            plain: Plain::Completion,
        }
    }

    /// The next row and the hash of its text; blank lines are no rows. `None` at the end.
    ///
    /// # Errors
    /// The stream cannot be read, or is something else than lines of text; what is wrong with a row is in the row.
    pub fn next_row(&mut self) -> Result<Option<(Row, Fnv64)>> {
        match self {
            Self::Arguments {
                prompts,
                number,
                plain,
            } => Ok(prompts.next().map(|text| {
                *number += 1;
                plain.row(text, *number)
            })),
            Self::Reader(reader) => reader.next_row(),
        }
    }
}

/// Lines of a stream as rows.
pub struct Reader {
    from: Box<dyn BufRead + Send>,
    /// Names the stream in errors.
    path: PathBuf,
    /// Lines read so far.
    number: u64,
    /// That of the first line that told its own: lines that cannot be read are answered alike.
    format: Option<Format>,
    /// Rows that were read while looking for a line that tells its format.
    ahead: VecDeque<(Row, Fnv64)>,
    may_look_ahead: bool,
    /// Lines are prompts, and no JSON.
    plain: Option<Plain>,
    /// Some line looks like JSON.
    json_seen: bool,
}

/// Lines that are read at most to find one that tells its format.
const LOOK_AHEAD: usize = 1024;

impl Reader {
    fn next_row(&mut self) -> Result<Option<(Row, Fnv64)>> {
        let next = match self.ahead.pop_front() {
            Some(next) => Some(next),
            None => self.read()?,
        };
        let Some((mut row, input)) = next else {
            return Ok(None);
        };
        if self.format.is_none() && !row.tells_format && self.may_look_ahead {
            self.look_ahead()?;
            self.refuse_plain_text()?;
        }
        if let Some(format) = &self.format {
            row.take_format(format);
        }
        Ok(Some((row, input)))
    }

    fn look_ahead(&mut self) -> Result<()> {
        while self.format.is_none() && self.ahead.len() < LOOK_AHEAD {
            match self.read()? {
                Some(next) => self.ahead.push_back(next),
                None => break,
            }
        }
        Ok(())
    }

    /// A file of which no line looks like JSON is another one than was meant, rather than a file of faulty rows.
    fn refuse_plain_text(&self) -> Result<()> {
        if self.json_seen {
            return Ok(());
        }
        Err(Error::file(
            &self.path,
            "found lines of plain text, expected rows of JSON; `generate --lines` takes each line of a text as a prompt",
        ))
    }

    /// The next row as its line alone says.
    fn read(&mut self) -> Result<Option<(Row, Fnv64)>> {
        let line = read_line(&mut *self.from, &mut self.number)
            .map_err(|error| Error::io(&self.path, error))?;
        let Some(line) = line else { return Ok(None) };
        let first = self.number == 1;
        if first && let Some(found) = magic::recognise(&line.bytes) {
            return Err(Error::file(
                &self.path,
                format!("found {found}, expected lines of JSON as UTF-8 text"),
            ));
        }
        self.json_seen |= looks_like_json(&line.bytes);
        let next = match &self.plain {
            _ if !line.whole => (self.too_long(&line.bytes), Fnv64::default()),
            Some(plain) => plain.row_of_bytes(without_end(&line.bytes), self.number),
            None => {
                let text = line.bytes.trim_ascii();
                (line::parse(text, self.number), Fnv64::default().with(text))
            }
        };
        if self.format.is_none() && next.0.tells_format {
            self.format = Some(next.0.format.clone());
        }
        Ok(Some(next))
    }

    fn too_long(&self, beginning: &[u8]) -> Row {
        let number = self.number;
        let message = format!(
            "line {number}: found more than {MAX_LINE_BYTES} bytes, expected a row that fits"
        );
        match self.plain {
            Some(_) => plain::row(number, Err(Code::InvalidRequest.error(message))),
            None => line::unreadable(beginning, number, Code::InvalidJson.error(message)),
        }
    }
}

/// The ids that rows have written so far, 16 bytes each.
#[derive(Debug, Default)]
pub struct Ids(HashSet<u128>);

impl Ids {
    /// # Errors
    /// An earlier row has this row's id.
    pub fn claim(&mut self, row: &Row) -> std::result::Result<(), RowError> {
        let id = row.id.as_str();
        if !row.claims_id || self.0.insert(fnv128(id.as_bytes())) {
            return Ok(());
        }
        Err(Code::DuplicateId.error(format!(
            "line {}: found id {}, which an earlier row has, expected a new one",
            row.line,
            quote::name(id)
        )))
    }
}

fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

struct Line {
    bytes: Vec<u8>,
    /// False where only the beginning is here.
    whole: bool,
}

/// The next line that is not blank; `number` becomes its number.
fn read_line(from: &mut dyn BufRead, number: &mut u64) -> std::io::Result<Option<Line>> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    let mut line = Vec::new();
    loop {
        line.clear();
        let bytes = (&mut *from)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        if bytes == 0 {
            return Ok(None);
        }
        *number += 1;
        let whole = (bytes as u64) < MAX_LINE_BYTES || line.last() == Some(&b'\n');
        if !whole {
            from.skip_until(b'\n')?;
        }
        if *number == 1 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        if !whole || !line.trim_ascii().is_empty() {
            return Ok(Some(Line { bytes: line, whole }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &'static [u8]) -> Vec<Row> {
        let mut lines = Lines::reader(Box::new(text), "test");
        std::iter::from_fn(|| lines.next_row().unwrap().map(|(row, _)| row)).collect()
    }

    #[test]
    fn blank_lines_count_but_are_no_rows() {
        let found = rows(b"\xef\xbb\xbf{\"prompt\":\"a\"}\r\n\n  \n{\"prompt\":\"b\"}");
        let lines: Vec<u64> = found.iter().map(|row| row.line).collect();
        assert_eq!(lines, [1, 4]);
        assert!(found.iter().all(|row| row.ask.is_ok()));
    }

    #[test]
    fn a_line_without_end_does_not_fill_memory() {
        struct Endless(u64);
        impl Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let bytes = buffer.len().min(self.0 as usize);
                buffer[..bytes].fill(b'[');
                self.0 -= bytes as u64;
                Ok(bytes)
            }
        }
        let text = Endless(MAX_LINE_BYTES + 10).chain(&b"\n{\"prompt\":\"a\"}\n"[..]);
        let mut lines = Lines::reader(Box::new(std::io::BufReader::new(text)), "test");
        let (first, _) = lines.next_row().unwrap().unwrap();
        assert_eq!(first.ask.unwrap_err().code, Code::InvalidJson);
        let (second, _) = lines.next_row().unwrap().unwrap();
        assert!(second.ask.is_ok());
        assert_eq!(second.line, 2);
    }
}
