//! How a journal and an OUTPUT are read: line by line from the start, and answer by answer from their places.

use super::lines::Record;
use crate::error::{Error, Result};
use crate::io::kept::Place;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

/// Whole lines of a file, one at a time.
pub(super) struct Lines<'a> {
    reader: BufReader<&'a File>,
    /// The last line, or what there is of a torn one.
    pub line: Vec<u8>,
    /// Behind the last whole line.
    pub offset: u64,
}

impl<'a> Lines<'a> {
    pub fn new(file: &'a File) -> Self {
        Self {
            reader: BufReader::with_capacity(1 << 16, file),
            line: Vec::new(),
            offset: 0,
        }
    }

    pub fn seek(&mut self, offset: u64) -> std::io::Result<()> {
        self.reader.seek(SeekFrom::Start(offset))?;
        self.offset = offset;
        Ok(())
    }

    /// The next line with its end; none where that is torn.
    pub fn next(&mut self) -> std::io::Result<Option<&[u8]>> {
        self.line.clear();
        if self.offset == 0 {
            self.reader.seek(SeekFrom::Start(0))?;
        }
        let bytes = self.reader.read_until(b'\n', &mut self.line)?;
        if self.line.last() != Some(&b'\n') {
            return Ok(None);
        }
        self.offset += bytes as u64;
        Ok(Some(&self.line))
    }
}

/// Answers of a file, which come nearly in the order in which they lie there: most seeks stay inside the buffer.
pub(super) struct Answers<'a> {
    reader: BufReader<&'a File>,
    path: &'a Path,
    at: Option<u64>,
    answer: Vec<u8>,
}

impl<'a> Answers<'a> {
    pub fn new(file: &'a File, path: &'a Path) -> Self {
        Self {
            reader: BufReader::with_capacity(1 << 16, file),
            path,
            at: None,
            answer: Vec::new(),
        }
    }

    /// The answer to row `row` as a line, out of its record in a journal. Where a file system gives no locks, another run may
    /// have written over what this one wrote: that is no answer of ours.
    pub fn read_of_row(&mut self, place: &Place, row: u64) -> Result<&[u8]> {
        self.fill(place)?;
        match Record::parse(&self.answer) {
            Some(record) if record.row == row => {
                self.answer.truncate(record.answer.end);
                self.answer.push(b'\n');
                Ok(&self.answer[record.answer.start..])
            }
            _ => Err(Error::file(
                self.path,
                format!(
                    "found something else where the answer of row {row} was written, expected no other run to write this file; --resume answers that row again"
                ),
            )),
        }
    }

    /// The answer as a line.
    pub fn read(&mut self, place: &Place) -> Result<&[u8]> {
        self.fill(place)?;
        self.answer.push(b'\n');
        Ok(&self.answer)
    }

    fn fill(&mut self, place: &Place) -> Result<()> {
        self.answer.resize(place.bytes as usize, 0);
        let moved = match self.at {
            Some(at) => self.reader.seek_relative(place.offset as i64 - at as i64),
            None => self.reader.seek(SeekFrom::Start(place.offset)).map(drop),
        };
        moved
            .and_then(|()| self.reader.read_exact(&mut self.answer))
            .map_err(|error| Error::io(self.path, error))?;
        self.at = Some(place.offset + u64::from(place.bytes));
        Ok(())
    }
}
