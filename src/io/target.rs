//! Where a request's logits go, whoever takes them: the file, or what compares them with another.

/// Where one request's logits go. Requests are numbered in the order of submission, and so are these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The i of `logits.{i}`.
    pub number: u64,
    /// The prompt's tokens, T.
    pub tokens: u32,
}
