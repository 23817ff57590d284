//! What a run tells of itself while it runs. Standard output is for results, so all of it goes elsewhere.
//!
//! - here: lines on standard error, beside a progress bar
//! - [`nvtx`]: ranges for Nsight
//! - [`phases`]: the time that starting takes, by phase; [`launches`]: how often the host launched
//!
//! Uses nothing of the crate but `quote`.

pub mod launches;
pub mod nvtx;
pub mod phases;
mod throttle;

pub use throttle::Throttle;

use crate::quote;
use indicatif::ProgressBar;
use parking_lot::Mutex;
use std::io::Write;

/// What is drawn at the foot of the terminal.
static DRAWN: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// From now on `bar` makes way for what is written [`aside`] of it.
pub fn draw(bar: Option<ProgressBar>) {
    *DRAWN.lock() = bar;
}

/// Writes to the terminal, where the bar may be, so that neither runs into the other. What is written ends with a line.
pub fn aside<T>(write: impl FnOnce() -> T) -> T {
    let bar = DRAWN.lock().clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// One line on standard error, whatever is in it. A closed standard error is no reason to fail.
pub fn say(message: &str) {
    let message = quote::visible(message);
    aside(|| {
        let _ = writeln!(std::io::stderr().lock(), "{message}");
    });
}

/// A warning: something was understood otherwise than it may have been meant.
pub fn warn(message: &str) {
    say(&format!("tailgraph: warning: {message}"));
}
