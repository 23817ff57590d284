//! What one rendering may still use: bytes it makes, and time. Templates come with checkpoints and are untrusted;
//! minijinja counts instructions, and everything that one instruction can make large asks here first.

use std::cell::Cell;
use std::time::Instant;

use minijinja::{Error, ErrorKind};

/// All that one rendering may make, what it drops on the way included: far above what prompts need.
pub const MAX_BYTES: u64 = 256 << 20;
/// What one item of a list takes at least.
pub const ITEM_BYTES: usize = 32;

thread_local! {
    /// `None` outside of a rendering: then nothing is counted.
    static METER: Cell<Option<Meter>> = const { Cell::new(None) };
}

#[derive(Clone, Copy)]
struct Meter {
    bytes_left: u64,
    deadline: Instant,
}

/// Runs `work` on this thread within [`MAX_BYTES`] and until `deadline`.
pub fn metered<T>(deadline: Instant, work: impl FnOnce() -> T) -> T {
    METER.set(Some(Meter {
        bytes_left: MAX_BYTES,
        deadline,
    }));
    let result = work();
    METER.set(None);
    result
}

/// Takes `bytes` from what is left, before they are made.
///
/// # Errors
/// There is not that much left, or the deadline is past.
pub fn charge(bytes: usize) -> Result<(), Error> {
    let Some(mut meter) = METER.get() else {
        return Ok(());
    };
    let Some(left) = meter.bytes_left.checked_sub(bytes as u64) else {
        return Err(spent(format!(
            "the template makes more than {} MiB of text and lists, expected at most that a rendering",
            MAX_BYTES >> 20
        )));
    };
    meter.bytes_left = left;
    METER.set(Some(meter));
    if Instant::now() > meter.deadline {
        return Err(spent(
            "the template takes too long to render, expected it to end before its deadline",
        ));
    }
    Ok(())
}

/// The same for `count` items of a list.
pub fn charge_items(count: usize) -> Result<(), Error> {
    charge(count.saturating_mul(ITEM_BYTES))
}

fn spent(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}
