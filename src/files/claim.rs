//! NAME.partial: what becomes the file NAME is written there, and its lock is the right to write NAME. The lock goes with
//! the process; no file is left behind for it.

use super::check::check;
use super::names::beside;
use crate::error::{Error, Result};
use crate::quote;
use crate::telemetry::warn;
use parking_lot::Mutex;
use std::fs::{File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Turns that may go to other runs which end just then.
const TURNS: usize = 100;
const OWNER_MAY_WRITE: u32 = 0o600;

/// The right to write a file.
#[derive(Debug)]
pub struct Claim {
    target: PathBuf,
    path: PathBuf,
    file: File,
    found_bytes: u64,
    claimed: Claimed,
}

/// Claims of this process, for [`leave`].
static CLAIMS: Mutex<Vec<Entry>> = Mutex::new(Vec::new());

struct Entry {
    path: PathBuf,
    inode: (u64, u64),
    /// Is of no use unless it is whole.
    discard: bool,
}

/// Before an exit that drops nothing: removes what is of no use to another run.
pub fn leave() {
    // Whoever holds the lock is not worth waiting for.
    let Some(claims) = CLAIMS.try_lock() else {
        return;
    };
    // The last comes first: what marks others as unfinished goes after them.
    for entry in claims.iter().rev() {
        let Ok(found) = entry.path.symlink_metadata() else {
            continue;
        };
        if inode(&found) == entry.inode && (entry.discard || found.is_file() && found.len() == 0) {
            let _ = if found.is_dir() {
                std::fs::remove_dir_all(&entry.path)
            } else {
                std::fs::remove_file(&entry.path)
            };
        }
    }
}

/// A file or a folder that [`leave`] looks at while this is there.
#[derive(Debug)]
pub(super) struct Claimed {
    path: PathBuf,
    inode: (u64, u64),
}

impl Claimed {
    pub fn new(path: &Path, found: &Metadata) -> Self {
        let (path, inode) = (path.to_owned(), inode(found));
        CLAIMS.lock().push(Entry {
            path: path.clone(),
            inode,
            discard: false,
        });
        Self { path, inode }
    }

    /// What becomes of it where the process ends at once: gone, or kept for another run.
    pub fn discard_at_exit(&self, discard: bool) {
        let mut claims = CLAIMS.lock();
        if let Some(entry) = claims.iter_mut().find(|entry| entry.path == self.path) {
            entry.discard = discard;
        }
    }

    /// Whether it is still under its name.
    pub fn is_there(&self) -> bool {
        let now = self.path.symlink_metadata();
        now.is_ok_and(|now| inode(&now) == self.inode)
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        CLAIMS.lock().retain(|entry| entry.path != self.path);
    }
}

impl Claim {
    /// Claims `target`, a place as [`super::resolve()`] gives it. What NAME.partial holds is left as it is.
    ///
    /// # Errors
    /// `target` could not be put in place later, or another run is writing it.
    pub fn take(target: &Path) -> Result<Self> {
        Self::try_take(target)?.ok_or_else(|| taken(&beside(target, ".partial")))
    }

    /// Claims `target`, unless another run is writing it.
    ///
    /// # Errors
    /// `target` could not be put in place later.
    pub fn try_take(target: &Path) -> Result<Option<Self>> {
        let existing = check(target)?;
        let path = beside(target, ".partial");
        // A file is made with no more rights than the one that it will take the place of.
        let mode = existing.map_or(0o666, |found| found.mode() & 0o777 | OWNER_MAY_WRITE);
        for _ in 0..TURNS {
            let file = open(&path, mode)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => warn_of_no_locks(&path, &error),
            }
            let found = file.metadata().map_err(|error| Error::io(&path, error))?;
            let claimed = Claimed::new(&path, &found);
            // Another run may have ended since the file was opened: then it is the one before, under another name or none.
            if claimed.is_there() {
                return Ok(Some(Self {
                    target: target.to_owned(),
                    path,
                    file,
                    found_bytes: found.len(),
                    claimed,
                }));
            }
        }
        Ok(None)
    }

    /// # Errors
    /// [`Error::Usage`] where NAME is a file that is not empty; `instead` says what to do then.
    pub fn refuse_finished(&self, instead: &str) -> Result<()> {
        let found = self.target.metadata();
        if found.is_ok_and(|found| found.is_file() && found.len() > 0) {
            return Err(Error::Usage(format!(
                "{}: found a file that is not empty: {instead}",
                quote::visible(self.target.display())
            )));
        }
        Ok(())
    }

    /// What becomes of this file where the process ends at once: gone, or kept for another run.
    pub fn discard_at_exit(&self, discard: bool) {
        self.claimed.discard_at_exit(discard);
    }

    pub fn target(&self) -> &Path {
        &self.target
    }

    /// NAME.partial.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// The bytes that NAME.partial had when it was claimed.
    pub fn found_bytes(&self) -> u64 {
        self.found_bytes
    }

    /// Empties NAME.partial from `bytes` on.
    ///
    /// # Errors
    /// The system refused.
    pub fn cut(&self, bytes: u64) -> Result<()> {
        let fail = |error| Error::io(&self.path, error);
        if let Ok(existing) = self.target.symlink_metadata() {
            let mode = existing.mode() & 0o777 | OWNER_MAY_WRITE;
            let permissions = Permissions::from_mode(mode);
            self.file.set_permissions(permissions).map_err(fail)?;
        }
        self.file.set_len(bytes).map_err(fail)
    }

    /// An empty file beside NAME.partial: what is made of that one, while it stays.
    ///
    /// # Errors
    /// The system refused.
    pub fn second(&self) -> Result<Second> {
        let mode = self.target.symlink_metadata();
        let mode = mode.map_or(0o666, |found| found.mode() & 0o777 | OWNER_MAY_WRITE);
        let path = beside(&self.path, ".tmp");
        let file = open(&path, mode)?;
        let fail = |error| Error::io(&path, error);
        file.set_len(0).map_err(fail)?;
        let claimed = Claimed::new(&path, &file.metadata().map_err(fail)?);
        claimed.discard_at_exit(true);
        Ok(Second {
            file,
            claimed,
            named: false,
        })
    }

    /// Puts NAME.partial in the place of NAME, with the mode and, where that is allowed, the owner of what was there.
    ///
    /// # Errors
    /// The system refused, or NAME.partial is no longer this run's; NAME is then what it was, but for a folder whose
    /// change could not be made durable.
    pub fn install(&self) -> Result<()> {
        self.put_in_place(&self.file, &self.path)
    }

    /// Puts the file that was made of NAME.partial in the place of NAME, as [`Claim::install`] does.
    ///
    /// # Errors
    /// Fails as [`Claim::install`] does.
    pub fn install_second(&self, mut second: Second) -> Result<()> {
        self.put_in_place(&second.file, second.path())?;
        second.named = true;
        Ok(())
    }

    fn put_in_place(&self, file: &File, path: &Path) -> Result<()> {
        let fail = |error| Error::io(path, error);
        if let Ok(existing) = self.target.symlink_metadata() {
            look_like(file, &existing).map_err(fail)?;
        }
        file.sync_all().map_err(fail)?;
        if !self.claimed.is_there() {
            return Err(Error::file(
                &self.path,
                "was removed or replaced while this run wrote it, expected to find it as it was",
            ));
        }
        std::fs::rename(path, &self.target).map_err(|error| Error::io(&self.target, error))?;
        sync_folder(&self.target)
    }

    /// Removes NAME.partial.
    ///
    /// # Errors
    /// The system refused.
    pub fn remove(&self) -> Result<()> {
        if self.claimed.is_there() {
            std::fs::remove_file(&self.path).map_err(|error| Error::io(&self.path, error))?;
        }
        Ok(())
    }
}

/// See [`Claim::second`]. It goes unless it gets its name.
#[derive(Debug)]
pub struct Second {
    file: File,
    claimed: Claimed,
    named: bool,
}

impl Second {
    pub fn path(&self) -> &Path {
        &self.claimed.path
    }

    pub fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        if !self.named {
            // The run has failed already and says why.
            let _ = std::fs::remove_file(self.path());
        }
    }
}

/// Two runs with one output are then the user's to avoid.
pub(super) fn warn_of_no_locks(path: &Path, error: &io::Error) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        warn(&format!(
            "{}: the file system gives no locks ({error}), so a second run with this file is not refused: expected that there is none",
            path.display()
        ));
    }
}

pub(super) fn taken(path: &Path) -> Error {
    Error::file(
        path,
        "another run is writing it; wait for that run, or choose another file",
    )
}

fn inode(file: &Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn open(path: &Path, mode: u32) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(mode)
        // What stands under this name is to be ours: a link leads to somebody else's file.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ELOOP) => not_a_file(path),
            _ => Error::create(path, &error),
        })?;
    let found = file.metadata().map_err(|error| Error::io(path, error))?;
    if found.is_file() {
        Ok(file)
    } else {
        Err(not_a_file(path))
    }
}

fn not_a_file(path: &Path) -> Error {
    Error::file(
        path,
        "found a link or a device, expected no file or what an earlier run left: remove it",
    )
}

/// Gives `file` the owner, where that is allowed, and the mode of `existing`.
fn look_like(file: &File, existing: &Metadata) -> io::Result<()> {
    let now = file.metadata()?;
    let mut mode = existing.mode() & 0o7777;
    if (now.uid(), now.gid()) != (existing.uid(), existing.gid())
        && fchown(file, Some(existing.uid()), Some(existing.gid())).is_err()
        && fchown(file, None, Some(existing.gid())).is_err()
    {
        // What runs as its owner must not run as another.
        mode &= 0o777;
    }
    file.set_permissions(Permissions::from_mode(mode))
}

/// Makes a rename durable, where the file system can.
pub(super) fn sync_folder(target: &Path) -> Result<()> {
    let folder = target.parent().unwrap_or(Path::new("/"));
    let opened = match File::open(folder) {
        Ok(opened) => opened,
        // A folder may be one to write to and not to read.
        Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(()),
        Err(error) => return Err(Error::io(folder, error)),
    };
    match opened.sync_all() {
        Err(error) if error.kind() != ErrorKind::InvalidInput => Err(Error::file(
            target,
            format!(
                "{error}; the file is whole and has its name, which its folder may lose where the machine fails now"
            ),
        )),
        _ => Ok(()),
    }
}
