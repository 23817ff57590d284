//! Files that commands write: whole under their final name, or not there at all; and streams.
//!
//! - [`mod@resolve`]: what a name stands for, once every link is followed
//! - [`claim`]: NAME.partial, which belongs to one process at a time, and how it gets the final name; `check`: whether it
//!   could; `names`: the files beside it
//! - [`whole`]: a file that is written in NAME.partial and gets its name at the end; [`folder`]: a folder of such
//! - [`stream`]: pipes, devices and descriptors that are open already; `terminal`: what one of these is shown if it is one
//!
//! Whoever writes a file uses [`Out`] (from beginning to end), [`Whole`] (in any order), a [`Folder`] (several that belong
//! together) or, to keep what was written for the next run, a [`Claim`]. Knows nothing of what the files hold.

mod check;
pub mod claim;
pub mod folder;
pub mod names;
pub mod resolve;
pub mod stream;
mod terminal;
pub mod whole;

pub use claim::{Claim, leave};
pub use folder::Folder;
pub use resolve::{Resolved, resolve};
pub use stream::Stream;
pub use whole::{Unfinished, Whole};

use crate::error::{Error, Result};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Something that is written from beginning to end.
#[derive(Debug)]
pub enum Out {
    Whole(Whole),
    Stream(Stream),
}

impl Out {
    /// What `path` names, `-` standard output; `unfinished` says what becomes of a file that is not finished. Nothing that is there is changed
    /// before [`Out::finish`].
    ///
    /// # Errors
    /// It cannot be written, or another run is writing it.
    pub fn open(path: &Path, unfinished: Unfinished) -> Result<Self> {
        Ok(match resolve(path)? {
            Resolved::Place(place) => Self::Whole(Whole::open(&place, unfinished)?),
            other => Self::Stream(Stream::open(path, &other)?),
        })
    }

    /// # Errors
    /// [`Error::Usage`] where a file that is not empty would be replaced, and `overwrite` was not asked for.
    pub fn refuse_finished(self, overwrite: bool) -> Result<Self> {
        if let Self::Whole(whole) = &self {
            whole.refuse_finished(overwrite)?;
        }
        Ok(self)
    }

    /// # Errors
    /// It was closed when the program started.
    pub fn stdout() -> Result<Self> {
        Self::open(Path::new("-"), Unfinished::Removed)
    }

    /// What is being written, for messages.
    pub fn name(&self) -> &Path {
        match self {
            Self::Whole(whole) => whole.path(),
            Self::Stream(stream) => stream.name(),
        }
    }

    /// Gives a file its name; of a stream all comes out.
    ///
    /// # Errors
    /// The system refused; what was under the name before is still there.
    pub fn finish(self) -> Result<()> {
        match self {
            Self::Whole(whole) => whole.finish(),
            Self::Stream(mut stream) => {
                let flushed = stream.flush();
                flushed.map_err(|error| Error::io(stream.name(), error))
            }
        }
    }

    /// Ends the file as above, with what the buffer still holds.
    ///
    /// # Errors
    /// Fails as [`Out::finish`] does.
    pub fn finish_buffered(buffered: BufWriter<Self>) -> Result<()> {
        let name = buffered.get_ref().name().to_owned();
        let out = buffered.into_inner();
        out.map_err(|error| Error::io(name, error.into_error()))?
            .finish()
    }

    /// Writes all of `bytes` and finishes.
    ///
    /// # Errors
    /// Fails as [`Out::finish`] does.
    pub fn finish_with(mut self, bytes: &[u8]) -> Result<()> {
        let written = self.write_all(bytes);
        written.map_err(|error| Error::io(self.name(), error))?;
        self.finish()
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Whole(whole) => whole.write(bytes),
            Self::Stream(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Whole(_) => Ok(()),
            Self::Stream(stream) => stream.flush(),
        }
    }
}
