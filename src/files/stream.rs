//! Something that is written to from where it stands: nothing is emptied, renamed or locked. Pipes and devices have it as it
//! is, a terminal without control characters.

use super::resolve::Resolved;
use super::terminal::Harmless;
use crate::at_start;
use crate::error::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

#[derive(Debug)]
pub struct Stream {
    to: To,
    name: PathBuf,
}

#[derive(Debug)]
enum To {
    Plain(Patient),
    Terminal(Harmless<Patient>),
}

impl Stream {
    /// `path` resolved to `found`, which is no place. A pipe that nobody reads is waited for.
    pub(super) fn open(path: &Path, found: &Resolved) -> Result<Self> {
        let path = if path.as_os_str() == "-" {
            Path::new("standard output")
        } else {
            path
        };
        let file = match found {
            Resolved::Descriptor(number) => duplicate(path, *number)?,
            Resolved::Special(found) | Resolved::Place(found) => OpenOptions::new()
                // Nobody else writes at the end of another process's file; all else in it is that process's.
                .append(true)
                .custom_flags(libc::O_NOCTTY)
                .open(found)
                .map_err(|error| Error::create(path, &error))?,
        };
        Ok(Self {
            to: if file.is_terminal() {
                To::Terminal(Harmless::new(Patient(file)))
            } else {
                To::Plain(Patient(file))
            },
            name: path.to_owned(),
        })
    }

    /// For messages.
    pub fn name(&self) -> &Path {
        &self.name
    }
}

fn closed(name: impl AsRef<Path>) -> Error {
    Error::file(
        name,
        "was closed when the program started, expected something that can be written",
    )
}

/// A descriptor that goes on from where `number` stands.
fn duplicate(path: &Path, number: RawFd) -> Result<File> {
    if at_start::closed(number) {
        return Err(closed(path));
    }
    // SAFETY: asks for the descriptor's flags, and fails where there is none.
    let flags = unsafe { libc::fcntl(number, libc::F_GETFL) };
    if flags == -1 {
        return Err(Error::io(path, io::Error::last_os_error()));
    }
    // SAFETY: as above.
    let own = unsafe { libc::fcntl(number, libc::F_GETFD) } & libc::FD_CLOEXEC != 0;
    if own && number > 2 {
        // What is closed where a program is started was opened since: one of ours.
        return Err(Error::file(
            path,
            "is no descriptor that the program was started with, expected one that can be written",
        ));
    }
    if flags & libc::O_ACCMODE == libc::O_RDONLY {
        return Err(Error::file(
            path,
            "is open for reading only, expected something that can be written",
        ));
    }
    // SAFETY: the descriptor is open, as was just seen; this program closes none that it was started with.
    let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
    let file = descriptor.try_clone_to_owned();
    Ok(file.map_err(|error| Error::io(path, error))?.into())
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.to {
            To::Plain(to) => to.write(bytes),
            To::Terminal(to) => to.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.to {
            To::Plain(_) => Ok(()),
            To::Terminal(to) => to.flush(),
        }
    }
}

/// Waits where whoever shares a pipe with us has made it so that nobody waits.
#[derive(Debug)]
struct Patient(File);

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => wait_for_room(&self.0)?,
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn wait_for_room(file: &File) -> io::Result<()> {
    let mut asked = libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one structure, which lives until the call is over.
    match unsafe { libc::poll(&raw mut asked, 1, -1) } {
        -1 => match io::Error::last_os_error() {
            error if error.kind() == ErrorKind::Interrupted => Ok(()),
            error => Err(error),
        },
        _ => Ok(()),
    }
}
