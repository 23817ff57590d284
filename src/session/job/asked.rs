//! A row that the device has: one sequence, or several whose answers are one.

use crate::io::answer::{Label, Outcome};
use crate::io::row::{Code, RowError};

pub(super) struct Asked {
    pub input: u64,
    pub label: Label,
    /// In the order of the answer's choices.
    outcomes: Vec<Option<Outcome>>,
    /// Its sequences that the device has taken.
    pub requests: Vec<u64>,
    /// Sequences that have not ended, those that the device has not taken yet among them.
    left: usize,
    /// Sequences that were interrupted before their first token.
    unbegun: usize,
    error: Option<RowError>,
}

/// What a row came to.
pub(super) enum Came {
    To(Vec<Outcome>),
    Failed(RowError),
    /// Like a row that was not read: it has no answer yet.
    Nothing,
}

impl Asked {
    pub fn new(input: u64, label: Label, sequences: usize) -> Self {
        Self {
            input,
            label,
            outcomes: vec![None; sequences],
            requests: Vec::new(),
            left: sequences,
            unbegun: 0,
            error: None,
        }
    }

    /// The device has taken one more; which choice it is.
    pub fn taken(&mut self, request: u64) -> usize {
        self.requests.push(request);
        self.requests.len() - 1
    }

    /// A sequence has ended. `true`: the others are no longer wanted.
    pub fn ended(&mut self, choice: usize, outcome: Result<Outcome, RowError>) -> bool {
        self.left -= 1;
        match outcome {
            Ok(outcome) => {
                self.outcomes[choice] = Some(outcome);
                false
            }
            Err(error) => {
                let first = self.error.is_none();
                self.error.get_or_insert(error);
                first
            }
        }
    }

    /// So many sequences were interrupted before their first token, or never reached the device.
    pub fn never_began(&mut self, sequences: usize) {
        self.left -= sequences;
        self.unbegun += sequences;
    }

    /// One of its sequences has failed, and so it will.
    pub fn has_failed(&self) -> bool {
        self.error.is_some()
    }

    pub fn is_over(&self) -> bool {
        self.left == 0
    }

    pub fn came(self) -> Came {
        if let Some(error) = self.error {
            return Came::Failed(error);
        }
        if self.unbegun == self.outcomes.len() {
            return Came::Nothing;
        }
        match self.outcomes.into_iter().collect() {
            Some(outcomes) => Came::To(outcomes),
            None => Came::Failed(Code::Cancelled.error(format!(
                "interrupted before {} of its answers began",
                self.unbegun
            ))),
        }
    }
}
