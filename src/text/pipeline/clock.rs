//! How long and how large the work on one text may become. A tokenizer.json is a program that nobody has checked.

use std::time::{Duration, Instant};

/// Bytes of a text after normalization, at most: each takes 17 bytes of memory, with its place in the original.
pub const MAX_NORMALIZED_BYTES: usize = 16 << 20;

/// What any text may take.
const LEAST: Duration = Duration::from_secs(3);
/// What each MiB of it adds: tens of times what published tokenizers need.
const PER_MIB: Duration = Duration::from_secs(3);

/// When the work on a text has to be done.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    limit: Duration,
    end: Instant,
}

impl Clock {
    /// From now, for a text of that many bytes.
    pub fn for_text(bytes: usize) -> Self {
        Self::of(LEAST + PER_MIB.mul_f64(bytes as f64 / f64::from(1 << 20)))
    }

    pub(super) fn of(limit: Duration) -> Self {
        Self {
            limit,
            end: Instant::now() + limit,
        }
    }

    /// What is left; nothing once the time is over.
    pub fn left(&self) -> Duration {
        self.end.saturating_duration_since(Instant::now())
    }

    /// `doing` names the work in the message.
    pub fn check(&self, doing: &str) -> Result<(), String> {
        match self.left() > Duration::ZERO {
            true => Ok(()),
            false => Err(self.over(doing)),
        }
    }

    pub fn over(&self, doing: &str) -> String {
        format!(
            "{doing} takes longer than {:.1} s, expected a tokenizer.json that is done with such a text sooner, or a shorter text",
            self.limit.as_secs_f64()
        )
    }
}

/// A text is about to have `bytes` bytes after the step `doing`.
pub fn check_size(bytes: usize, doing: &str) -> Result<(), String> {
    match bytes <= MAX_NORMALIZED_BYTES {
        true => Ok(()),
        false => Err(format!(
            "{doing} makes {bytes} bytes of the text, expected at most {MAX_NORMALIZED_BYTES}"
        )),
    }
}
