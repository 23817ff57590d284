//! The pinned Python of tests/python, which says what transformers, jinja2 and the OpenAI package make of something.

use super::program::end;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// target/python's interpreter. Without one the test says so and is skipped, unless TAILGRAPH_NEED_PYTHON is set, as
/// in .ci/run.
pub fn interpreter(test: &str) -> Option<PathBuf> {
    interpreter_of("target/python", test)
}

/// The same of target/jobs, which has what runs shards of a job.
pub fn jobs_interpreter(test: &str) -> Option<PathBuf> {
    interpreter_of("target/jobs", test)
}

fn interpreter_of(folder: &str, test: &str) -> Option<PathBuf> {
    let path = Path::new(REPOSITORY).join(folder).join("bin/python3");
    if path.exists() {
        return Some(path);
    }
    assert!(
        std::env::var_os("TAILGRAPH_NEED_PYTHON").is_none(),
        "{test}: {folder} is not there, expected tests/python/setup to have made it"
    );
    eprintln!("{test}: skipped, {folder} is not there: tests/python/setup makes it");
    None
}

/// The folder of published tokenizers and templates that TAILGRAPH_REAL_FILES names. They have licences of their own
/// and are no part of the repository: without them the test says so and is skipped.
pub fn real_files(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("TAILGRAPH_REAL_FILES").map(PathBuf::from);
    if folder.is_none() {
        eprintln!("{test}: skipped, TAILGRAPH_REAL_FILES names no folder of published files");
    }
    folder
}

/// Runs tests/python/SCRIPT on `input`, a JSON value on its standard input, and reads the one it prints.
pub fn ask(python: &Path, script: &str, input: &Value) -> Value {
    ask_in(&[("HF_HUB_OFFLINE", "1")], python, script, input)
}

/// [`ask`] with these variables.
pub fn ask_in(variables: &[(&str, &str)], python: &Path, script: &str, input: &Value) -> Value {
    let mut command = Command::new(python);
    command
        .arg(Path::new(REPOSITORY).join("tests/python").join(script))
        .envs(variables.iter().copied());
    let said = end(&mut command, &input.to_string()).good();
    serde_json::from_str(&said).unwrap_or_else(|error| panic!("{script}: {error}"))
}
