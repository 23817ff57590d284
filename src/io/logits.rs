//! Logits as they come from the device: into a pre-sized file, into a comparison, into logprobs.

use super::arrays::LogitsTarget;
use super::expect::Comparison;
use super::logprobs::Logprobs;
use super::shard::{Holds, ShardOutput};
use crate::backend::LogitsSink;
use crate::error::{Error, Result};
use crate::files::{Resolved, Unfinished, Whole, resolve};
use parking_lot::{Mutex, RwLock};
use serde_json::json;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A safetensors file of `logits.{i}`, f32 `[T, V]` (or `[V]`, only the last position), written in place as
/// rows come, in any order. It has its name only when it is whole; until then it is OUTPUT.partial.
#[derive(Debug)]
pub struct LogitsFile {
    file: Whole,
    /// Set by `lay_out`.
    starts: Vec<u64>,
    vocab_size: usize,
    last_only: bool,
}

impl LogitsFile {
    /// Claims the file, so that one that cannot be written is found before anything is computed.
    ///
    /// # Errors
    /// It cannot be written, another run is writing it, or a file that is not empty would be replaced without `overwrite`.
    pub fn create(path: &Path, overwrite: bool) -> Result<Self> {
        let Resolved::Place(place) = resolve(path)? else {
            return Err(Error::file(
                path,
                "found a pipe or a device, expected a file: logits are not written in order",
            ));
        };
        // Half a file of logits is of no use to anyone.
        let file = Whole::open(&place, Unfinished::Removed)?;
        file.refuse_finished(overwrite)?;
        Ok(Self {
            file,
            starts: Vec::new(),
            vocab_size: 0,
            last_only: false,
        })
    }

    /// Writes the header and gives the file its full length: room for the logits of `targets`, in this order.
    ///
    /// # Errors
    /// The system refused.
    pub fn lay_out(
        &mut self,
        targets: &[LogitsTarget],
        vocab_size: usize,
        last_only: bool,
    ) -> Result<()> {
        self.last_only = last_only;
        let row_bytes = vocab_size as u64 * 4;
        let mut header = json!({"__metadata__": {"format": "pt", "made_by": "tailgraph"}});
        let mut offset = 0_u64;
        for target in targets {
            let (shape, rows) = if self.last_only {
                (json!([vocab_size]), 1)
            } else {
                (json!([target.tokens, vocab_size]), target.tokens)
            };
            self.starts.push(offset);
            let end = offset + u64::from(rows) * row_bytes;
            header[format!("logits.{}", target.number)] =
                json!({"dtype": "F32", "shape": shape, "data_offsets": [offset, end]});
            offset = end;
        }
        let mut text = header.to_string();
        // Data starts at a multiple of 8, as the format asks.
        text.extend(std::iter::repeat_n(
            ' ',
            text.len().next_multiple_of(8) - text.len(),
        ));
        let data_start = 8 + text.len() as u64;
        for start in &mut self.starts {
            *start += data_start;
        }
        self.vocab_size = vocab_size;
        let path = self.file.path().to_owned();
        let fail = |error| Error::io(&path, error);
        let file = self.file.file()?;
        file.set_len(data_start + offset).map_err(fail)?;
        let length = (text.len() as u64).to_le_bytes();
        file.write_all_at(&length, 0).map_err(fail)?;
        file.write_all_at(text.as_bytes(), 8).map_err(fail)
    }

    /// `logits` is `[n, V]` from `first_position` on, or `[1, V]` where only the last position is kept.
    fn write(&self, request: usize, first_position: u32, logits: &[f32]) -> Result<()> {
        let row = if self.last_only {
            0
        } else {
            u64::from(first_position)
        };
        self.write_bytes(request, row, bytemuck::cast_slice(logits))
    }

    /// Little-endian logits, from row `row` of array `index` on.
    ///
    /// # Errors
    /// The system refused.
    pub fn write_bytes(&self, index: usize, row: u64, bytes: &[u8]) -> Result<()> {
        let offset = self.starts[index] + row * self.vocab_size as u64 * 4;
        let written = self.file.begun().write_all_at(bytes, offset);
        written.map_err(|error| Error::io(self.file.path(), error))
    }

    /// Gives the file its name, and its record where it is a shard that lacks so many rows in error.
    ///
    /// # Errors
    /// Fails as [`Whole::finish`] does.
    pub fn finish(self, shard: Option<(ShardOutput, u64)>) -> Result<()> {
        match shard {
            None => self.file.finish(),
            Some((shard, failed)) => {
                let arrays = self.starts.len() as u64;
                shard.finish_with(self.file, Holds::Logits, arrays, failed)
            }
        }
    }
}

/// The sink of a `score` run: every use that its command line asked for.
pub struct ScoreSink {
    targets: Vec<LogitsTarget>,
    vocab_size: usize,
    /// Several devices write at once, each where its own rows are.
    file: RwLock<Option<LogitsFile>>,
    comparison: Option<Mutex<Comparison>>,
    logprobs: Option<Mutex<Logprobs>>,
}

impl ScoreSink {
    /// `file` is laid out for `targets`.
    pub fn new(
        targets: Vec<LogitsTarget>,
        vocab_size: usize,
        file: Option<LogitsFile>,
        comparison: Option<Comparison>,
        logprobs: Option<Logprobs>,
    ) -> Self {
        Self {
            targets,
            vocab_size,
            file: RwLock::new(file),
            comparison: comparison.map(Mutex::new),
            logprobs: logprobs.map(Mutex::new),
        }
    }

    /// Logprobs of a request that has ended: `[T]`, none for the first token. Given once.
    pub fn take_logprobs(&self, request: u64) -> Option<Vec<Option<f32>>> {
        self.logprobs.as_ref()?.lock().take(request as usize)
    }

    /// The comparison of everything that came.
    pub fn comparison(&self) -> Option<Comparison> {
        Some(self.comparison.as_ref()?.lock().clone())
    }

    /// Gives the file of logits, if there is one, its name.
    ///
    /// # Errors
    /// Fails as [`LogitsFile::finish`] does.
    pub fn finish_file(&self, shard: Option<(ShardOutput, u64)>) -> Result<()> {
        match self.file.write().take() {
            None => Ok(()),
            Some(file) => file.finish(shard),
        }
    }
}

impl LogitsSink for ScoreSink {
    fn rows(&self, request: u64, first_position: u32, logits: &[f32]) -> Result<()> {
        let index = request as usize;
        let rows = logits.len() / self.vocab_size;
        let fits = |target: &LogitsTarget| {
            logits.len() == rows * self.vocab_size
                && first_position as usize + rows <= target.tokens as usize
        };
        if !self.targets.get(index).is_some_and(fits) {
            return Err(Error::Runtime(format!(
                "the device gave {} logits from position {first_position} of request {request}, which has no such positions",
                logits.len()
            )));
        }
        if let Some(file) = &*self.file.read() {
            file.write(index, first_position, logits)?;
        }
        for (row, logits) in logits.chunks_exact(self.vocab_size).enumerate() {
            let position = first_position + row as u32;
            if let Some(comparison) = &self.comparison {
                comparison.lock().add(index, position, logits);
            }
            if let Some(logprobs) = &self.logprobs {
                logprobs.lock().add(index, position, logits);
            }
        }
        Ok(())
    }
}
