//! What rows failed of, for the summary of a job.

use crate::io::row::Code;

/// The failures of one code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: Code,
    pub rows: u64,
    /// What was wrong with the first of them, and the line that it is in.
    pub first: String,
}

/// Failed rows by their codes, in the order in which the codes came.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failures(Vec<Failure>);

impl Failures {
    pub(super) fn add(&mut self, code: Code, line: u64, message: &str) {
        if let Some(known) = self.0.iter_mut().find(|known| known.code == code) {
            known.rows += 1;
            return;
        }
        let first = if message.starts_with("line ") {
            message.to_owned()
        } else {
            format!("line {line}: {message}")
        };
        self.0.push(Failure {
            code,
            rows: 1,
            first,
        });
    }

    pub fn iter(&self) -> impl Iterator<Item = &Failure> {
        self.0.iter()
    }
}
