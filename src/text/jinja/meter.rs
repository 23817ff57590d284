//! What one rendering may still use: bytes it makes. Templates come with checkpoints and are untrusted;
//! minijinja counts instructions, and everything that one instruction can make large asks here first.

use std::cell::Cell;

use minijinja::{Error, ErrorKind};

/// All that one rendering may make, what it drops on the way included: far above what prompts need.
pub const MAX_BYTES: u64 = 256 << 20;
/// What one item of a list takes at least.
pub const ITEM_BYTES: usize = 32;

thread_local! {
    /// `None` outside of a rendering: then nothing is counted.
    static BYTES_LEFT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `work` on this thread within [`MAX_BYTES`].
pub fn metered<T>(work: impl FnOnce() -> T) -> T {
    BYTES_LEFT.set(Some(MAX_BYTES));
    let result = work();
    BYTES_LEFT.set(None);
    result
}

/// Takes `bytes` from what is left, before they are made.
///
/// # Errors
/// There is not that much left.
pub fn charge(bytes: usize) -> Result<(), Error> {
    let Some(left) = BYTES_LEFT.get() else {
        return Ok(());
    };
    let left = left.checked_sub(bytes as u64).ok_or_else(|| {
        let message = format!(
            "the template makes more than {} MiB of text and lists, expected at most that a rendering",
            MAX_BYTES >> 20
        );
        Error::new(ErrorKind::InvalidOperation, message)
    })?;
    BYTES_LEFT.set(Some(left));
    Ok(())
}

/// The same for `count` items of a list.
pub fn charge_items(count: usize) -> Result<(), Error> {
    charge(count.saturating_mul(ITEM_BYTES))
}
