//! The sequences of a row on their way to the device.

use super::{Prepared, sampling_key};

/// Sequences of a row that the device has not taken, in the order of the row's answers. What they share is there once.
#[derive(Debug, Default)]
pub struct Waiting {
    /// A sequence of each prompt.
    prompts: Vec<Prepared>,
    /// To each prompt.
    answers: usize,
    /// The row's sampling key.
    key: u64,
    taken: usize,
}

impl Waiting {
    pub(super) fn new(prompts: Vec<Prepared>, answers: usize, key: u64) -> Self {
        Self {
            prompts,
            answers,
            key,
            taken: 0,
        }
    }

    /// How many they are.
    pub fn left(&self) -> usize {
        self.prompts.len() * self.answers - self.taken
    }

    /// The next one.
    pub fn peek(&mut self) -> Option<&Prepared> {
        let prepared = self
            .prompts
            .get_mut(self.taken.checked_div(self.answers)?)?;
        prepared.request.sampling.key = choice_key(self.key, self.taken as u64);
        Some(prepared)
    }

    /// The device has taken the next one.
    pub fn take(&mut self) {
        self.taken += 1;
    }
}

/// The sampling key of a row's answer `choice`, counted from 0: the first has the row's own.
fn choice_key(key: u64, choice: u64) -> u64 {
    match choice {
        0 => key,
        _ => sampling_key(key, choice),
    }
}
