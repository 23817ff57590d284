//! What one rendering may still use: bytes it makes, and time. Templates come with checkpoints and are untrusted;
//! minijinja counts instructions, and everything that one instruction can make large asks here first.

use std::cell::Cell;
use std::time::{Duration, Instant};

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
    /// Of [`thread_time`]. Asked for only once `deadline` is past: it is the slower clock.
    thread_deadline: Duration,
}

/// Runs `work` on this thread within [`MAX_BYTES`] and `time`. That is the thread's own: a process that was stopped, or a
/// machine that is busy, says nothing of the template.
pub fn metered<T>(time: Duration, work: impl FnOnce() -> T) -> T {
    METER.set(Some(Meter {
        bytes_left: MAX_BYTES,
        deadline: Instant::now() + time,
        thread_deadline: thread_time() + time,
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
    if Instant::now() > meter.deadline && thread_time() > meter.thread_deadline {
        return Err(spent(
            "the template takes too long to render, expected it to end before its deadline",
        ));
    }
    Ok(())
}

/// How long this thread has run.
fn thread_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes to the struct alone. It does not fail: every thread has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(
        time.tv_sec.unsigned_abs(),
        time.tv_nsec.unsigned_abs() as u32,
    )
}

/// The same for `count` items of a list.
pub fn charge_items(count: usize) -> Result<(), Error> {
    charge(count.saturating_mul(ITEM_BYTES))
}

fn spent(message: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_that_others_had_is_not_counted() {
        let time = Duration::from_millis(20);
        let slept = metered(time, || {
            std::thread::sleep(4 * time);
            charge(1)
        });
        slept.unwrap();
        let busy = metered(time, || {
            let (began, mut charged) = (Instant::now(), Ok(()));
            while charged.is_ok() && began.elapsed() < Duration::from_secs(60) {
                charged = charge(0);
            }
            charged
        });
        let error = busy.unwrap_err().to_string();
        assert!(error.contains("too long to render"), "{error}");
    }
}
