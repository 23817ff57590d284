//! Where the files of tests/fixtures are.

use std::path::{Path, PathBuf};

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/fixtures")
        .join(name)
}

/// The committed checkpoint "a" or "b" with what transformers computes with it.
pub fn golden(variant: &str) -> String {
    let folder = fixture(&format!("goldens/lfm2moe-tiny-{variant}"));
    folder.to_str().unwrap().to_owned()
}
