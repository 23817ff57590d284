//! Shards of lines: of each in turn the next one.

use super::Part;
use crate::error::{Error, Result};
use crate::files::{Out, Unfinished};
use crate::io::hash::hex;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Bytes that the buffers of all shards take together.
const BUFFER_BYTES: usize = 64 << 20;
/// Bytes of one shard's buffer, at least.
const SMALLEST_BUFFER: usize = 4 << 10;
const LARGEST_BUFFER: usize = 256 << 10;

pub(super) fn merge(parts: &[Part], output: &Path, overwrite: bool) -> Result<()> {
    let out = Out::open(output, Unfinished::Removed)?.refuse_finished(overwrite)?;
    let name = out.name().to_owned();
    let mut out = BufWriter::with_capacity(1 << 20, out);
    let buffer = (BUFFER_BYTES / parts.len()).clamp(SMALLEST_BUFFER, LARGEST_BUFFER);
    let mut shards: Vec<Shard<'_>> = parts
        .iter()
        .map(|part| Shard::open(part, buffer))
        .collect::<Result<_>>()?;
    let mut line = Vec::new();
    for row in 0..parts[0].record.input.rows {
        shards[(row % parts.len() as u64) as usize].next(&mut line)?;
        out.write_all(&line)
            .map_err(|error| Error::io(&name, error))?;
    }
    shards.into_iter().try_for_each(Shard::end)?;
    Out::finish_buffered(out)
}

/// A shard that is read line by line.
struct Shard<'a> {
    part: &'a Part,
    reader: BufReader<Reopened>,
    /// The SHA-256 of what was read so far.
    hash: Sha256,
}

impl<'a> Shard<'a> {
    fn open(part: &'a Part, buffer: usize) -> Result<Self> {
        part.open()?;
        let file = Reopened {
            path: part.path.clone(),
            offset: 0,
        };
        Ok(Self {
            part,
            reader: BufReader::with_capacity(buffer, file),
            hash: Sha256::new(),
        })
    }

    /// The next line, with its end.
    fn next(&mut self, line: &mut Vec<u8>) -> Result<()> {
        line.clear();
        let read = self.reader.read_until(b'\n', line);
        read.map_err(|error| Error::io(&self.part.path, error))?;
        self.hash.update(&*line);
        if line.last() != Some(&b'\n') {
            return Err(self.part.other("fewer lines, expected as many"));
        }
        Ok(())
    }

    /// The lines that were read are the record's.
    fn end(self) -> Result<()> {
        self.part.check(&hex(&self.hash.finalize()))
    }
}

/// A file that is opened for each read: there may be more shards than a process may have files open. One that was replaced
/// meanwhile has another hash.
struct Reopened {
    path: PathBuf,
    offset: u64,
}

impl Read for Reopened {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = File::open(&self.path)?.read_at(buffer, self.offset)?;
        self.offset += bytes as u64;
        Ok(bytes)
    }
}
