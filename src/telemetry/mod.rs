//! What a run says on standard error while it runs, where standard output is for results. NVTX ranges, for Nsight; the time
//! that starting takes, by phase; how often the host launched. Knows nothing of the rest
//! but how unchecked text is shown.

pub mod launches;
pub mod nvtx;
pub mod phases;
mod throttle;

pub use throttle::Throttle;

use crate::quote;
use std::io::Write;

/// One line on standard error. A closed standard error is no reason to fail.
pub fn say(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{message}");
}

/// A warning: something was understood otherwise than it may have been meant.
pub fn warn(message: &str) {
    say(&format!("tailgraph: warning: {}", quote::visible(message)));
}
