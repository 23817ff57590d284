//! Where a request's logits go, whoever takes them: the file, or what compares them with another.

use super::arrays::Sample;

/// Where one request's logits go. Requests are numbered in the order of submission, and so are these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogitsTarget {
    /// The i of `logits.{i}`.
    pub number: u64,
    /// The prompt's tokens, T.
    pub tokens: u32,
}

impl LogitsTarget {
    pub fn of(sample: &Sample) -> Self {
        Self {
            number: sample.number,
            tokens: sample.tokens.len() as u32,
        }
    }
}
