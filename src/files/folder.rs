//! A folder that is filled with files, which get their names together: the last one of them marks it as whole.

use super::claim::{Claim, Temporary};
use super::names::beside;
use super::resolve::{Resolved, resolve};
use crate::error::{Error, Result};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const PARTIAL: &str = ".partial";

/// A folder being filled. Every file is NAME.partial until all are there. The mark is the first to be made and the last to
/// get its name: without it the folder is unfinished. Its lock is the right to write the folder.
pub struct Folder {
    dir: PathBuf,
    mark: Claim,
    /// Folders that were made for it, the outermost first.
    made: Vec<PathBuf>,
    files: Vec<Temporary>,
    /// Some files have their names, or all do.
    named: bool,
}

impl Folder {
    /// Makes the folder, or empties it of what an interrupted run left. `mark` is the name and text of its last file;
    /// `is_ours` says which other names the files have.
    ///
    /// # Errors
    /// [`Error::Usage`] where it holds anything else; it cannot be written, or another run is writing it.
    pub fn open(
        dir: &Path,
        (mark, text): (&str, &str),
        is_ours: &dyn Fn(&str) -> bool,
    ) -> Result<Self> {
        let (dir, made) = make(dir)?;
        let opened = Self::claim(&dir, mark, is_ours);
        let mark = opened.inspect_err(|_| remove_empty(&made))?;
        let folder = Self {
            dir,
            mark,
            made,
            files: Vec::new(),
            named: false,
        };
        // Once more: another run may have ended in between.
        for name in leftovers(&folder.dir, folder.mark.path(), is_ours)? {
            let path = folder.dir.join(name);
            fs::remove_file(&path).map_err(|error| Error::io(&path, error))?;
        }
        folder.mark.discard_at_exit(true);
        folder.mark.cut(0)?;
        let written = folder.mark.file().write_all(text.as_bytes());
        written.map_err(|error| Error::io(folder.mark.path(), error))?;
        Ok(folder)
    }

    fn claim(dir: &Path, mark: &str, is_ours: &dyn Fn(&str) -> bool) -> Result<Claim> {
        let place = dir.join(mark);
        leftovers(dir, &beside(&place, PARTIAL), is_ours)?;
        match place.symlink_metadata() {
            // Another run may have finished since its files were listed.
            Ok(_) => Err(occupied(dir, mark)),
            Err(_) => Claim::take(&place),
        }
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
        let (temporary, mut file) =
            Temporary::create(&beside(&self.dir.join(name), PARTIAL), 0o666)?;
        let path = temporary.path().to_owned();
        self.files.push(temporary);
        write(&mut file)
            .and_then(|()| file.sync_all())
            .map_err(|error| Error::io(path, error))
    }

    /// Gives all files their names.
    ///
    /// # Errors
    /// The system refused.
    pub fn finish(mut self) -> Result<()> {
        // From here on the mark has to stay: what has its name already is known to be unfinished by it.
        self.mark.discard_at_exit(false);
        self.named = true;
        for file in self.files.drain(..) {
            let name = file.path().with_extension("");
            file.rename(&name)?;
        }
        self.mark.install()
    }
}

impl Drop for Folder {
    /// A run that fails leaves nothing behind; it has failed already and says why. With some files named, the mark of an
    /// unfinished folder stays.
    fn drop(&mut self) {
        if self.named {
            return;
        }
        self.files.clear();
        let _ = self.mark.remove();
        remove_empty(&self.made);
    }
}

/// Makes a folder where there is none: where every link leads, and those that were made on the way, the outermost first.
///
/// # Errors
/// It is a file, or cannot be made.
pub fn make(dir: &Path) -> Result<(PathBuf, Vec<PathBuf>)> {
    let fail = |error| Error::create(dir, &error);
    let at = match dir.is_symlink() && !dir.exists() {
        false => dir.to_owned(),
        true => match resolve(dir)? {
            Resolved::Place(place) => place,
            _ => dir.to_owned(),
        },
    };
    let missing = at
        .ancestors()
        .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists());
    let mut missing: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    missing.reverse();
    let mut made = Vec::new();
    for folder in missing {
        // Another run may have made it just now.
        match fs::create_dir(&folder) {
            Ok(()) => made.push(folder),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                remove_empty(&made);
                return Err(fail(error));
            }
        }
    }
    let found = at.canonicalize().map_err(fail)?;
    match found.is_dir() {
        true => Ok((found, made)),
        false => Err(Error::file(
            dir,
            "found a file, expected a directory to write",
        )),
    }
}

/// Removes `folders`, the outermost of which stands first, as far as nobody has put anything there.
fn remove_empty(folders: &[PathBuf]) {
    for folder in folders.iter().rev() {
        let _ = fs::remove_dir(folder);
    }
}

/// What an interrupted run left in `dir`, but for the mark, which it wrote at `mark`.
fn leftovers(dir: &Path, mark: &Path, is_ours: &dyn Fn(&str) -> bool) -> Result<Vec<String>> {
    let mut entries = Vec::new();
    let mut marked = false;
    for entry in fs::read_dir(dir).map_err(|error| Error::io(dir, error))? {
        let entry = entry.map_err(|error| Error::io(dir, error))?;
        match entry.path() == mark {
            true => marked = true,
            false => entries.push(entry.file_name().to_string_lossy().into_owned()),
        }
    }
    // A signal may come while a file is made, and take away the mark alone.
    let foreign = |name: &&String| match name.strip_suffix(PARTIAL) {
        Some(unfinished) => !is_ours(unfinished),
        None => !marked || !is_ours(name),
    };
    match entries.iter().find(foreign) {
        None => Ok(entries),
        Some(name) => Err(occupied(dir, name)),
    }
}

fn occupied(dir: &Path, name: &str) -> Error {
    Error::Usage(format!(
        "{}: found {name:?} in it, expected a new or empty directory",
        dir.display()
    ))
}
