//! Every way of launching a step side by side: results of `lab launch` (profiles/lab).

use crate::error::{Error, Result};
use crate::json;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::path::Path;

/// What the first object of such a file begins with.
pub const KEY: &str = "launch_schema";

/// One way beside one load. What is used here has a field; a page has all of it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Launched {
    /// The name of its file.
    #[serde(skip_deserializing)]
    file: String,
    launch_schema: u32,
    command: String,
    gpu_info: Option<String>,
    technique: String,
    kernels: u32,
    #[serde(flatten)]
    rest: Map<String, Value>,
}

impl Launched {
    /// Results of one GPU and number of kernels are one part of a page.
    pub fn place(&self) -> (Option<&str>, u32) {
        (self.gpu_info.as_deref(), self.kernels)
    }
}

/// Reads results as `--format json` and `--format jsonl` write them.
///
/// # Errors
/// The file cannot be read, or holds something else.
pub fn read(path: &Path, name: &str) -> Result<Vec<Launched>> {
    let mut rows: Vec<Launched> = json::rows(path, "results of `lab launch`")?;
    for row in &mut rows {
        if row.launch_schema != 1 {
            let found = row.launch_schema;
            let message = format!(
                "found {KEY} {found}, expected 1: measure again, or use the version that wrote it"
            );
            return Err(Error::file(path, message));
        }
        name.clone_into(&mut row.file);
    }
    Ok(rows)
}
