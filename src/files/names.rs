//! Names of the files that stand beside one while it is written.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// `path` with `suffix` behind its name.
pub fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}
