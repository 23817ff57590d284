//! Shards of lines: of each in turn the next one.

use super::Part;
use crate::error::{Error, Result};
use crate::files::{Out, Unfinished};
use crate::io::hash::hex;
use crate::io::packed::RowsOut;
use crate::io::unpacked::Unpacked;
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes that the buffers of all shards take together.
const BUFFER_BYTES: usize = 64 << 20;
/// Bytes of one shard's buffer, at least.
const SMALLEST_BUFFER: usize = 4 << 10;
const LARGEST_BUFFER: usize = 256 << 10;

pub(super) fn merge(
    parts: &[Part],
    output: &Path,
    errors: Option<&Path>,
    overwrite: bool,
) -> Result<()> {
    let open = |path| {
        let out = Out::open(path, Unfinished::Removed)?;
        RowsOut::onto(out.refuse_finished(overwrite)?)
    };
    let mut out = open(output)?;
    let mut errors = errors.map(open).transpose()?;
    let buffer = (BUFFER_BYTES / parts.len()).clamp(SMALLEST_BUFFER, LARGEST_BUFFER);
    let mut shards: Vec<Shard<'_>> = parts
        .iter()
        .map(|part| Shard::open(part, buffer))
        .collect::<Result<_>>()?;
    let mut line = Vec::new();
    for row in 0..parts[0].record.input.rows {
        shards[(row % parts.len() as u64) as usize].next(&mut line)?;
        match &mut errors {
            Some(errors) if has_failed(&line) => errors.put(&line)?,
            _ => out.put(&line)?,
        }
    }
    shards.into_iter().try_for_each(Shard::end)?;
    let out = out.finish_out()?;
    // First, so that whoever waits for OUTPUT finds it there.
    if let Some(errors) = errors {
        errors.finish_out()?.finish()?;
    }
    out.finish()
}

/// Whether the line answers a row that failed: by an error, or by what there was of an answer when its time was over.
fn has_failed(line: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Line<'a> {
        error: Option<IgnoredAny>,
        #[serde(borrow)]
        finish_reason: Option<Cow<'a, str>>,
    }
    let line: Option<Line<'_>> = serde_json::from_slice(line).ok();
    line.is_some_and(|line| {
        line.error.is_some() || line.finish_reason.as_deref() == Some("timeout")
    })
}

/// A shard that is read line by line.
struct Shard<'a> {
    part: &'a Part,
    reader: BufReader<Unpacked>,
    /// The SHA-256 of what was read of the file.
    hash: Arc<Mutex<Sha256>>,
}

impl<'a> Shard<'a> {
    fn open(part: &'a Part, buffer: usize) -> Result<Self> {
        part.open()?;
        let hash = Arc::<Mutex<Sha256>>::default();
        let file = Reopened {
            path: part.path.clone(),
            offset: 0,
            hash: hash.clone(),
        };
        Ok(Self {
            part,
            reader: BufReader::with_capacity(buffer, Unpacked::new(file)),
            hash,
        })
    }

    /// The next line, with its end.
    fn next(&mut self, line: &mut Vec<u8>) -> Result<()> {
        line.clear();
        let read = self.reader.read_until(b'\n', line);
        read.map_err(|error| Error::io(&self.part.path, error))?;
        if line.last() != Some(&b'\n') {
            return Err(self.part.other("fewer lines, expected as many"));
        }
        Ok(())
    }

    /// The lines that were read are all there are, and the record's.
    fn end(mut self) -> Result<()> {
        let rest = self.reader.fill_buf();
        if !rest
            .map_err(|error| Error::io(&self.part.path, error))?
            .is_empty()
        {
            return Err(self.part.other("more lines, expected as many"));
        }
        let hash = self.hash.lock().clone();
        self.part.check(&hex(&hash.finalize()))
    }
}

/// A file that is opened for each read: there may be more shards than a process may have files open. One that was replaced
/// meanwhile has another hash.
struct Reopened {
    path: PathBuf,
    offset: u64,
    hash: Arc<Mutex<Sha256>>,
}

impl Read for Reopened {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = File::open(&self.path)?.read_at(buffer, self.offset)?;
        self.hash.lock().update(&buffer[..bytes]);
        self.offset += bytes as u64;
        Ok(bytes)
    }
}
