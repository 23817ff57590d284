//! A line on standard error now and then, for work that is long but simple.

use super::say;
use std::time::{Duration, Instant};

const EVERY: Duration = Duration::from_secs(5);

pub struct Throttle {
    quiet: bool,
    last: Instant,
}

impl Throttle {
    pub fn new(quiet: bool) -> Self {
        Self {
            quiet,
            last: Instant::now(),
        }
    }

    /// Says `message` if the last one is some seconds old.
    pub fn say(&mut self, message: impl FnOnce() -> String) {
        if !self.quiet && self.last.elapsed() >= EVERY {
            say(&message());
            self.last = Instant::now();
        }
    }
}
