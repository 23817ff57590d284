//! Whether a file can be put in place later: found before anything is done, rather than by a rename that is refused once
//! the work is over.

use super::names::{UNFINISHED, beside};
use crate::error::{Error, Result};
use crate::quote;
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Of a folder: a file in it may be replaced by its owner alone.
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
    if !may_write(target) {
        return Err(Error::file(
            target,
            format!(
                "{}, expected a file that can be written",
                io::Error::last_os_error()
            ),
        ));
    }
    if let Some(what) = holds_in_place(target) {
        return Err(Error::file(
            target,
            format!("found a file that {what}, expected one that another can take the place of"),
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

/// By the rights of this process; also no for a file that is immutable.
fn may_write(path: &Path) -> bool {
    let Ok(text) = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()) else {
        return false;
    };
    // SAFETY: the path ends with a zero.
    unsafe { libc::faccessat(libc::AT_FDCWD, text.as_ptr(), libc::W_OK, libc::AT_EACCESS) == 0 }
}

/// What forbids a rename over the file, where the system tells.
#[cfg(target_os = "linux")]
fn holds_in_place(path: &Path) -> Option<&'static str> {
    let text = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).ok()?;
    // SAFETY: all zeros are a value of this plain C struct, the path ends with a zero, and the call writes to the struct
    // alone.
    let (answer, found) = unsafe {
        let mut found: libc::statx = std::mem::zeroed();
        let answer = libc::statx(
            libc::AT_FDCWD,
            text.as_ptr(),
            libc::AT_SYMLINK_NOFOLLOW,
            libc::STATX_BASIC_STATS,
            &raw mut found,
        );
        (answer, found)
    };
    let has = |bit: i32| answer == 0 && found.stx_attributes & bit as u64 != 0;
    if has(libc::STATX_ATTR_MOUNT_ROOT) {
        return Some("is mounted by itself");
    }
    has(libc::STATX_ATTR_APPEND).then_some("may only grow")
}

#[cfg(not(target_os = "linux"))]
fn holds_in_place(_: &Path) -> Option<&'static str> {
    None
}
