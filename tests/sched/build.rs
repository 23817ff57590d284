//! Compiles the core with other flags into a shared library, as the tests need it.

use std::path::{Path, PathBuf};
use std::process::Command;

/// `cc` on kernels/sched/sched.c with `flags`; the library goes to `folder/name.so`.
pub fn shared_library(folder: &Path, name: &str, flags: &[&str]) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let library = folder.join(format!("{name}.so"));
    let output = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-std=c11", "-shared", "-fPIC", "-ffreestanding"])
        .args(flags)
        .arg("-I")
        .arg(root.join("kernels"))
        .arg("-o")
        .arg(&library)
        .arg(root.join("kernels/sched/sched.c"))
        .output()
        .expect("the C compiler starts");
    assert!(
        output.status.success(),
        "cc with {flags:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    library
}
