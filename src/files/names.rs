//! Names of the files that stand beside one while it is written.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Endings of files that are not whole. No file that is has one: the next run that writes the name before it would take it.
pub const UNFINISHED: [&str; 2] = [".partial", ".partial.tmp"];

/// `path` with `suffix` behind its name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
