//! Ctrl-C: the first asks the run to end in order, the second ends the process.

use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Installs the handler (SIGINT, SIGTERM, SIGHUP); the flag is set by the first signal.
pub fn flag() -> Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    let seen = flag.clone();
    ctrlc::set_handler(move || {
        if seen.swap(true, Ordering::SeqCst) {
            std::process::exit(i32::from(super::Exit::Interrupted.code()));
        }
    })
    .map_err(|error| Error::Runtime(format!("no handler for interrupts could be set: {error}")))?;
    Ok(flag)
}
