//! A folder that is whole or not there: its files are written in NAME.partial, which gets the name once all of them are.

use super::check::is_mounted;
use super::claim::{Claimed, sync_folder, taken, warn_of_no_locks};
use super::names::beside;
use super::resolve::{Resolved, resolve};
use crate::error::{Error, Result};
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// A folder being filled. The lock of NAME.partial is the right to write it.
pub struct Folder {
    dir: PathBuf,
    partial: PathBuf,
    lock: File,
    claimed: Claimed,
}

impl Folder {
    /// Makes NAME.partial, or empties it of what an interrupted run left; `is_ours` says which names its files have.
    ///
    /// # Errors
    /// [`Error::Usage`] where `dir` or NAME.partial holds anything else; they cannot be written, or another run is writing them.
    pub fn open(dir: &Path, is_ours: &dyn Fn(&str) -> bool) -> Result<Self> {
        let dir = place(dir)?;
        let partial = beside(&dir, ".partial");
        fs::create_dir_all(&partial).map_err(|error| Error::create(&partial, &error))?;
        let fail = |error| Error::io(&partial, error);
        let lock = File::open(&partial).map_err(fail)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(taken(&partial)),
            Err(TryLockError::Error(error)) => warn_of_no_locks(&partial, &error),
        }
        let claimed = Claimed::new(&partial, &lock.metadata().map_err(fail)?);
        // Another run may have given it its name just now.
        if !claimed.is_there() {
            return Err(taken(&partial));
        }
        let found = if dir.exists() {
            holds_only(&dir, &|_| false)
        } else {
            Ok(Vec::new())
        };
        let left = found.and_then(|_| holds_only(&partial, is_ours));
        let left = left.inspect_err(|_| drop(fs::remove_dir(&partial)))?;
        for left in left {
            fs::remove_file(&left).map_err(|error| Error::io(left, error))?;
        }
        claimed.discard_at_exit(true);
        Ok(Self {
            dir,
            partial,
            lock,
            claimed,
        })
    }

    /// Writes a file.
    ///
    /// # Errors
    /// The system refused.
    pub fn put(
        &mut self,
        name: &str,
        write: impl FnOnce(&mut File) -> io::Result<()>,
    ) -> Result<()> {
        let path = self.partial.join(name);
        File::create_new(&path)
            .and_then(|mut file| write(&mut file).and_then(|()| file.sync_all()))
            .map_err(|error| Error::io(path, error))
    }

    /// Gives the folder its name.
    ///
    /// # Errors
    /// The system refused, or somebody has put something into the folder of that name meanwhile.
    pub fn finish(self) -> Result<()> {
        let fail = |error| Error::io(&self.partial, error);
        if let Ok(empty) = self.dir.metadata() {
            fs::set_permissions(&self.partial, empty.permissions()).map_err(fail)?;
        }
        self.lock.sync_all().map_err(fail)?;
        fs::rename(&self.partial, &self.dir).map_err(|error| Error::io(&self.dir, error))?;
        sync_folder(&self.dir)
    }
}

impl Drop for Folder {
    /// A run that fails leaves nothing of the folder behind; it has failed already and says why.
    fn drop(&mut self) {
        // Another run may have begun one of this name.
        if self.claimed.is_there() {
            let _ = fs::remove_dir_all(&self.partial);
        }
    }
}

/// Where the folder is or will be, once every link is followed.
fn place(dir: &Path) -> Result<PathBuf> {
    if dir.is_dir() {
        let found = dir.canonicalize();
        let found = found.map_err(|error| Error::create(dir, &error))?;
        let is_current = std::env::current_dir().is_ok_and(|current| current == found);
        if is_current || is_mounted(&found) {
            return Err(Error::Usage(format!(
                "{}: found the current directory, or a mounted one, expected one that another can take the place of: name a new one in it",
                dir.display()
            )));
        }
        return Ok(found);
    }
    // A name that ends in / is one of a folder, which is what this is to be.
    let dir: PathBuf = dir.components().collect();
    if let (Some(above), false) = (dir.parent(), dir.is_symlink()) {
        fs::create_dir_all(above).map_err(|error| Error::create(&dir, &error))?;
    }
    match resolve(&dir)? {
        Resolved::Place(place) if !place.exists() => Ok(place),
        _ => Err(Error::file(
            dir,
            "found a file, expected a directory to write",
        )),
    }
}

/// What `dir` holds, all of which is to be ours.
fn holds_only(dir: &Path, is_ours: &dyn Fn(&str) -> bool) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(|error| Error::io(dir, error))? {
        let entry = entry.map_err(|error| Error::io(dir, error))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !is_ours(&name) {
            return Err(Error::Usage(format!(
                "{}: found {name:?} in it, expected a new or empty directory",
                dir.display()
            )));
        }
        found.push(entry.path());
    }
    Ok(found)
}
