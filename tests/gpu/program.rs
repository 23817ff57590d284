//! The binary as tests run it.

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// Built beside the tests, or what TAILGRAPH_BINARY names where they were built elsewhere.
pub fn binary() -> PathBuf {
    let built = || env!("CARGO_BIN_EXE_tailgraph").into();
    std::env::var_os("TAILGRAPH_BINARY").map_or_else(built, PathBuf::from)
}

/// Standard output of a run that ends well.
pub fn tailgraph(arguments: &[&str]) -> String {
    let output = Command::new(binary()).args(arguments).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// What `bench` measures of `kind` on random:tiny.
pub fn bench(kind: &str, arguments: &[&str]) -> Vec<Value> {
    let head = ["bench", kind, "--model", "random:tiny", "--quiet"];
    let tail = ["--format", "json"];
    serde_json::from_str(&tailgraph(&[&head[..], arguments, &tail].concat())).unwrap()
}
