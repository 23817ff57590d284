//! One error type: every message names the thing, what was found and what was expected, on one line.

use crate::quote;
use std::path::{Path, PathBuf};

pub type Result<T> = std::result::Result<T, Error>;

/// What ends a run, or keeps it from beginning. Errors of single questions are results: see [`crate::io::row::RowError`].
/// Messages have the fields of a [`crate::session::RunSpec`] in backquotes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Something is asked for that does not exist or cannot be combined (exit code 2).
    #[error("{0}")]
    Usage(String),
    /// A file could not be read or written.
    #[error("{}: {source}{}", quote::visible(path.display()), room(source))]
    Io {
        path: PathBuf,
        source: std::io::Error,
    },
    /// A file was read and does not hold what it should.
    #[error("{}: {message}", quote::visible(path.display()))]
    File { path: PathBuf, message: String },
    /// More memory is needed than there is; the message shows the arithmetic.
    #[error("{0}")]
    Memory(String),
    /// The device, the scheduler core or a stage failed while running.
    #[error("{0}")]
    Runtime(String),
    /// A signal, or whoever asked for it, ended what was under way, in order.
    #[error("interrupted")]
    Interrupted,
}

impl Error {
    pub fn io(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self::Io {
            path: path.as_ref().to_owned(),
            source,
        }
    }

    /// A file could not be opened, or, as a directory first shows when it is read, not be begun; `expected` says what it
    /// should have been.
    pub fn open(path: impl AsRef<Path>, source: &std::io::Error, expected: &str) -> Self {
        let found = match source.kind() {
            std::io::ErrorKind::NotFound => "found no such file".to_owned(),
            std::io::ErrorKind::IsADirectory => "found a directory".to_owned(),
            _ => source.to_string(),
        };
        Self::file(path, format!("{found}, expected {expected}"))
    }

    /// A file could not be created.
    pub fn create(path: impl AsRef<Path>, source: &std::io::Error) -> Self {
        let found = match source.kind() {
            std::io::ErrorKind::NotFound => "found no such directory".to_owned(),
            std::io::ErrorKind::IsADirectory => {
                return Self::file(path, "found a directory, expected a file to write");
            }
            _ => source.to_string(),
        };
        let expected = match source.kind() {
            std::io::ErrorKind::InvalidFilename => {
                "a shorter name: most file systems take 255 bytes, with what is added while a file is written"
            }
            // It is there, and is not ours to write.
            _ if path.as_ref().symlink_metadata().is_ok() => "a file that can be written",
            _ => "a directory that exists and can be written",
        };
        Self::file(path, format!("{found}, expected {expected}"))
    }

    pub fn file(path: impl AsRef<Path>, message: impl Into<String>) -> Self {
        Self::File {
            path: path.as_ref().to_owned(),
            message: quote::whole(&message.into()),
        }
    }

    /// The system would not start a thread.
    pub fn thread(source: &dyn std::error::Error) -> Self {
        Self::Runtime(format!("the system refused a thread: {source}"))
    }

    /// Whoever read what we wrote has gone away.
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == std::io::ErrorKind::BrokenPipe)
    }

    /// The process's exit code: 2 for usage, 1 for everything else that is fatal.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            _ => 1,
        }
    }
}

/// What a panic said, as `catch_unwind` gives it.
pub fn said_by_panic(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("no message")
}

/// What helps where a file cannot grow.
fn room(source: &std::io::Error) -> &'static str {
    match source.kind() {
        std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
            ", expected room to write: free some, or write to another file system"
        }
        std::io::ErrorKind::FileTooLarge => {
            ", expected a limit that lets it grow (ulimit -f), or a file system that does"
        }
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Error as Io;

    #[test]
    fn a_full_disk_says_what_helps() {
        let of = |code: i32| Error::io("answers", Io::from_raw_os_error(code)).to_string();
        for code in [libc::ENOSPC, libc::EDQUOT] {
            let said = of(code);
            assert!(said.contains("expected room to write"), "{said}");
        }
        assert!(of(libc::EFBIG).contains("ulimit -f"));
        assert!(!of(libc::EIO).contains("expected"));
    }

    #[test]
    fn what_stood_in_the_way_of_a_file_is_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let (there, absent) = (dir.path(), dir.path().join("absent"));
        for (path, code, expected) in [
            (&*absent, libc::EACCES, "a directory that exists"),
            (there, libc::EACCES, "a file that can be written"),
            (&absent, libc::ENAMETOOLONG, "a shorter name"),
        ] {
            let said = Error::create(path, &Io::from_raw_os_error(code)).to_string();
            assert!(said.contains(&format!("expected {expected}")), "{said}");
        }
    }
}
