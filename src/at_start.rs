//! What the process was given before any of our code ran: signals that are ignored, descriptors that are closed.
//!
//! Rust's runtime changes both before `main` (it ignores SIGPIPE, and opens /dev/null where one of the first three
//! descriptors is closed), so that a function the loader calls even earlier has to look. It only looks.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Bit n: signal n was ignored.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Bit n: descriptor n was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// The signals that somebody here asks about.
const SIGNALS: [libc::c_int; 5] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGPIPE,
    libc::SIGTERM,
    libc::SIGXFSZ,
];

/// The loader calls every function in this section before `main`.
#[used]
#[cfg_attr(
    target_vendor = "apple",
    unsafe(link_section = "__DATA,__mod_init_func")
)]
#[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
static LOOK: extern "C" fn() = look;

extern "C" fn look() {
    for signal in SIGNALS {
        // SAFETY: all zeros are a value of this plain C struct, and `sigaction` without a new action only writes to it.
        let ignored = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut action) == 0
                && action.sa_sigaction == libc::SIG_IGN
        };
        IGNORED.fetch_or(u64::from(ignored) << signal, Ordering::Relaxed);
    }
    for descriptor in 0..3 {
        // SAFETY: asks for the descriptor's flags, and fails where it is closed.
        let closed = unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1;
        CLOSED.fetch_or(u8::from(closed) << descriptor, Ordering::Relaxed);
    }
}

/// Whether `signal` was ignored, as `nohup` does with SIGHUP.
pub fn ignored(signal: i32) -> bool {
    IGNORED.load(Ordering::Relaxed) >> signal & 1 != 0
}

/// Whether the descriptor, one of the first three, was closed.
pub fn closed(descriptor: i32) -> bool {
    descriptor < 3 && CLOSED.load(Ordering::Relaxed) >> descriptor & 1 != 0
}
