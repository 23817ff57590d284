//! Whether a file can be put in place later: found before anything is done, rather than by a rename that is refused once
//! the work is over.

use super::names::{UNFINISHED, beside};
use crate::error::{Error, Result};
use crate::quote;
use std::fs::{Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The mode bit of a folder in which a file may be replaced by its owner alone.
const STICKY: u32 = 0o1000;

/// What is at `target` now, if anything is.
///
/// # Errors
/// Another file could not take its place; [`Error::Usage`] where it has the name of an unfinished one.
pub(super) fn check(target: &Path) -> Result<Option<Metadata>> {
    let name = target.as_os_str().as_encoded_bytes();
    if let Some(ending) = UNFINISHED
        .iter()
        .find(|ending| name.ends_with(ending.as_bytes()))
    {
        return Err(Error::Usage(format!(
            "{}: found a name that ends in {ending}, as those of files do that a run has not finished: expected another",
            quote::visible(target.display())
        )));
    }
    // The longest name that is made on the way.
    let longest = beside(target, ".partial.tmp");
    if let Err(error) = longest.symlink_metadata()
        && error.kind() != ErrorKind::NotFound
    {
        return Err(Error::create(longest, &error));
    }
    let found = match target.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::create(target, &error)),
    };
    // A file that may only grow is refused here too.
    if let Err(error) = OpenOptions::new().write(true).open(target) {
        return Err(Error::create(target, &error));
    }
    if is_mounted(target) {
        return Err(Error::file(
            target,
            "found a file that is mounted by itself, expected one that another can take the place of",
        ));
    }
    let folder = target.parent().unwrap_or(Path::new("/"));
    let folder_found = folder
        .metadata()
        .map_err(|error| Error::create(target, &error))?;
    // SAFETY: takes and changes nothing.
    let user = unsafe { libc::geteuid() };
    let sticky = folder_found.mode() & STICKY != 0;
    if sticky && user != 0 && ![found.uid(), folder_found.uid()].contains(&user) {
        return Err(Error::file(
            target,
            "found a file of another user in a folder where only its owner may replace it, expected one of our own",
        ));
    }
    Ok(Some(found))
}

/// Whether the file is a mount point, over which nothing can be renamed, where the system tells.
#[cfg(target_os = "linux")]
pub(super) fn is_mounted(path: &Path) -> bool {
    let Ok(text) = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()) else {
        return false;
    };
    // SAFETY: all zeros are a value of this plain C struct, the path ends with a zero, and the call writes to the struct
    // alone.
    let (answer, found) = unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let (at, flags) = (libc::AT_FDCWD, libc::AT_SYMLINK_NOFOLLOW);
        let answer = libc::statx(
            at,
            text.as_ptr(),
            flags,
            libc::STATX_BASIC_STATS,
            &raw mut found,
        );
        (answer, found)
    };
    answer == 0 && found.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0
}

#[cfg(not(target_os = "linux"))]
pub(super) fn is_mounted(_: &Path) -> bool {
    false
}
