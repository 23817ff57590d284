//! C programs of the tests, and the scheduler core with other flags.

use std::path::Path;
use std::process::Command;

/// Compiles `sources`, paths in the repository, into the shared library `library`.
pub fn shared_library(library: &Path, sources: &[&str], flags: &[&str]) {
    let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .args(["-shared", "-fPIC", "-I", "kernels", "-o"])
        .arg(library)
        .args(sources)
        .args(flags)
        .output()
        .expect("the C compiler starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{sources:?} {flags:?}: {said}");
}
