//! How often the host of this process has launched something on a GPU: a kernel by itself, or a graph. Captures count
//! too, so read it before and after what is to be counted.

use std::sync::atomic::{AtomicU64, Ordering};

static LAUNCHES: AtomicU64 = AtomicU64::new(0);

/// One more.
pub(crate) fn launched() {
    LAUNCHES.fetch_add(1, Ordering::Relaxed);
}

/// So far.
pub fn count() -> u64 {
    LAUNCHES.load(Ordering::Relaxed)
}
