//! A file that is written under the name FILE.partial, and is FILE once it is whole.

use super::claim::Claim;
use crate::error::{Error, Result};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// What becomes of FILE.partial where the file is not finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unfinished {
    /// A part of it is of no use.
    Removed,
    /// A part of it is worth reading.
    Kept,
}

#[derive(Debug)]
pub struct Whole {
    claim: Claim,
    unfinished: Unfinished,
    begun: bool,
    finished: bool,
}

/// How a file starts that an unfinished job is to go on from: its rows are not written over by another command.
pub const JOURNAL_START: &[u8] = b"{\"journal\":";

impl Whole {
    /// Claims `target`, a place as [`super::resolve()`] gives it, and changes nothing yet.
    ///
    /// # Errors
    /// It cannot be written, another run is writing it, or FILE.partial holds the rows of an unfinished job.
    pub fn open(target: &Path, unfinished: Unfinished) -> Result<Self> {
        let claim = Claim::take(target)?;
        let mut start = Vec::new();
        let mut partial = claim.file();
        partial
            .take(JOURNAL_START.len() as u64)
            .read_to_end(&mut start)
            .and_then(|_| partial.seek(SeekFrom::Start(0)))
            .map_err(|error| Error::io(claim.path(), error))?;
        if start == JOURNAL_START {
            return Err(Error::file(
                claim.path(),
                "found rows of an unfinished job, which this command would write over: finish it with `generate --resume`, remove it, or choose another file",
            ));
        }
        Ok(Self {
            claim,
            unfinished,
            begun: false,
            finished: false,
        })
    }

    /// # Errors
    /// [`Error::Usage`] where there is a file under its name that is not empty, and `overwrite` was not asked for.
    pub fn refuse_finished(&self, overwrite: bool) -> Result<()> {
        if overwrite {
            return Ok(());
        }
        self.claim
            .refuse_finished("--overwrite replaces it, or name another")
    }

    /// The file that it is to be.
    pub fn target(&self) -> &Path {
        self.claim.target()
    }

    /// The name under which it is written.
    pub fn path(&self) -> &Path {
        self.claim.path()
    }

    /// Where it is written, emptied at the first call. Not before: a run that fails to start takes nothing from an earlier
    /// one.
    ///
    /// # Errors
    /// The system refused.
    pub fn file(&mut self) -> Result<&File> {
        if !self.begun {
            if self.unfinished == Unfinished::Removed {
                self.claim.discard_at_exit(true);
            }
            self.begun = true;
            self.claim.cut(0)?;
        }
        Ok(self.claim.file())
    }

    /// The file that is written, once it is begun.
    pub fn begun(&self) -> &File {
        self.claim.file()
    }

    /// Gives the file its name.
    ///
    /// # Errors
    /// The system refused; what was there before still is.
    pub fn finish(mut self) -> Result<()> {
        self.file()?;
        self.claim.install()?;
        self.finished = true;
        Ok(())
    }

    fn is_empty(&self) -> bool {
        let found = self.claim.file().metadata();
        found.is_ok_and(|found| found.len() == 0)
    }
}

impl Write for Whole {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file().map_err(io::Error::other)?.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        let of_use = if self.begun {
            self.unfinished == Unfinished::Kept && !self.is_empty()
        } else {
            self.claim.found_bytes() > 0
        };
        if !self.finished && !of_use {
            // The run has failed already and says why.
            let _ = self.claim.remove();
        }
    }
}
