//! Rows as they come: lines of a stream, or prompts as arguments.

use super::fields::shorten;
use super::hash::{Fnv64, fnv128};
use super::row::{self, Ask, Code, Format, Id, Options, Prompt, Row, RowError};
use crate::error::{Error, Result};
use std::collections::HashSet;
use std::io::{BufRead, Read};
use std::path::PathBuf;

/// A longer line is an error of its row, and is not read into memory.
pub const MAX_LINE_BYTES: u64 = 64 << 20;

/// Where rows come from.
pub enum Lines {
    Reader {
        from: Box<dyn BufRead + Send>,
        /// Names the stream in errors.
        path: PathBuf,
        /// Lines read so far.
        number: u64,
    },
    /// Prompts as arguments: row i has the id i, counted from 1.
    Arguments {
        prompts: std::vec::IntoIter<String>,
        number: u64,
    },
}

impl Lines {
    pub fn reader(from: Box<dyn BufRead + Send>, path: impl Into<PathBuf>) -> Self {
        Self::Reader {
            from,
            path: path.into(),
            number: 0,
        }
    }

    pub fn arguments(prompts: Vec<String>) -> Self {
        Self::Arguments {
            prompts: prompts.into_iter(),
            number: 0,
        }
    }

    /// The next row and the hash of its text; blank lines are no rows. `None` at the end.
    ///
    /// # Errors
    /// The stream cannot be read; what is wrong with a row is in the row.
    pub fn next_row(&mut self) -> Result<Option<(Row, Fnv64)>> {
        match self {
            Self::Arguments { prompts, number } => Ok(prompts.next().map(|text| {
                *number += 1;
                let input = Fnv64::default().with(text.as_bytes());
                (argument(text, *number), input)
            })),
            Self::Reader { from, path, number } => {
                let line = read_line(&mut **from, number)
                    .map_err(|error| Error::io(path.as_path(), error))?;
                Ok(line.map(|line| match line {
                    Line::Bytes(bytes) => {
                        (row::parse(&bytes, *number), Fnv64::default().with(&bytes))
                    }
                    Line::TooLong => (too_long(*number), Fnv64::default()),
                }))
            }
        }
    }
}

/// The ids of all rows so far, 16 bytes each.
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
        Err(RowError::new(
            Code::DuplicateId,
            format!(
                "line {}: found id {:?}, which an earlier row has, expected a new one",
                row.line,
                shorten(id)
            ),
        ))
    }
}

fn argument(text: String, number: u64) -> Row {
    Row {
        line: number,
        id: Id::line(number),
        claims_id: true,
        format: Format::Own,
        ask: Ok(Ask {
            prompt: Prompt::Text(text),
            options: Options::default(),
        }),
        ignored: Vec::new(),
    }
}

fn too_long(number: u64) -> Row {
    Row {
        line: number,
        id: Id::line(number),
        claims_id: false,
        format: Format::Own,
        ask: Err(RowError::new(
            Code::InvalidJson,
            format!(
                "line {number}: found more than {MAX_LINE_BYTES} bytes, expected a row of JSON that fits"
            ),
        )),
        ignored: Vec::new(),
    }
}

enum Line {
    Bytes(Vec<u8>),
    TooLong,
}

/// The next line that is not blank, without its end; `number` becomes its number.
fn read_line(from: &mut dyn BufRead, number: &mut u64) -> std::io::Result<Option<Line>> {
    const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
    loop {
        let mut line = Vec::new();
        let bytes = (&mut *from)
            .take(MAX_LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        if bytes == 0 {
            return Ok(None);
        }
        *number += 1;
        if bytes as u64 == MAX_LINE_BYTES && line.last() != Some(&b'\n') {
            from.skip_until(b'\n')?;
            return Ok(Some(Line::TooLong));
        }
        if *number == 1 && line.starts_with(BYTE_ORDER_MARK) {
            line.drain(..BYTE_ORDER_MARK.len());
        }
        let text = line.trim_ascii();
        if !text.is_empty() {
            return Ok(Some(Line::Bytes(text.to_vec())));
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
