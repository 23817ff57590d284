//! SIGINT, SIGTERM and SIGHUP: the first asks a run to end in order, the second ends the process. Before there is a run
//! that looks, the first ends it too. A signal that was ignored when the program started stays ignored.

use crate::error::{Error, Result};
use crate::{at_start, files};
use parking_lot::Mutex;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, LazyLock};

/// The first signal that came; 0: none.
static FIRST: AtomicI32 = AtomicI32::new(0);
/// Somebody looks at [`ASKED`].
static LOOKED_AT: AtomicBool = AtomicBool::new(false);
/// The run is asked to end.
static ASKED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

type Call = Box<dyn FnOnce() + Send>;
/// What the first signal does besides.
static CALL: Mutex<Option<Call>> = Mutex::new(None);

/// Takes over the signals; to be called once, before anything is written.
///
/// # Errors
/// The system refused.
pub fn install() -> Result<()> {
    ignore_size_signal();
    let heeded = [SIGINT, SIGTERM, SIGHUP].into_iter();
    let heeded = heeded.filter(|&signal| !at_start::ignored(signal));
    let mut signals = Signals::new(heeded).map_err(|error| {
        Error::Runtime(format!("no handler for interrupts could be set: {error}"))
    })?;
    let wait = move || {
        for signal in signals.forever() {
            heed(signal);
        }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(wait)
        .map_err(|error| Error::thread(&error))?;
    Ok(())
}

/// The flag that the first signal sets, once somebody looks at it.
pub fn flag() -> Arc<AtomicBool> {
    ASKED.clone()
}

/// From now on somebody looks at the flag often: the first signal no longer ends the process.
pub fn look() {
    LOOKED_AT.store(true, Ordering::SeqCst);
}

/// From now on the first signal no longer ends the process: it calls `call`.
pub fn call(call: impl FnOnce() + Send + 'static) {
    *CALL.lock() = Some(Box::new(call));
    look();
}

/// The exit code of a run that was interrupted: 128 and the number of the signal, as a shell has it.
pub fn exit_code() -> u8 {
    let signal = match FIRST.load(Ordering::SeqCst) {
        0 => SIGINT,
        signal => signal,
    };
    code_of(signal)
}

fn code_of(signal: i32) -> u8 {
    128 + signal as u8
}

fn heed(signal: i32) {
    let first = FIRST.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
    if first.is_ok() && LOOKED_AT.load(Ordering::SeqCst) {
        ASKED.store(true, Ordering::SeqCst);
        if let Some(call) = CALL.lock().take() {
            call();
        }
        return;
    }
    files::leave();
    // SAFETY: ends the process without running anything: other threads may hold any lock, and a device may be at work.
    unsafe { libc::_exit(i32::from(code_of(signal))) }
}

/// A file that outgrows its limit is then an error of the write, like a full disk.
fn ignore_size_signal() {
    // SAFETY: installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

/// Ends the process as the system ends one whose reader has gone away; returns where SIGPIPE was ignored at the start.
pub fn end_by_broken_pipe() {
    if at_start::ignored(libc::SIGPIPE) {
        return;
    }
    // SAFETY: gives the signal back the meaning that it had before Rust's runtime ignored it, and sends it to this thread.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        libc::raise(libc::SIGPIPE);
    }
}
