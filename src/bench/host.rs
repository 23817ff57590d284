//! The host beside a run: processor time, threads that keep it busy, what it is.

use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

fn clock(which: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the system only writes to `time`.
    let answer = unsafe { libc::clock_gettime(which, &mut time) };
    assert_eq!(answer, 0, "every Linux has this clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time of all threads of this process so far.
pub fn process_time() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Processor time of the calling thread so far.
pub fn thread_time() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Threads that spin until this is dropped.
#[derive(Debug, Default)]
pub struct Busy {
    done: Arc<AtomicBool>,
    threads: Vec<(JoinHandle<()>, Arc<AtomicU64>)>,
}

/// Between two looks of a busy thread at its own clock.
const SPINS: u32 = 1 << 14;

impl Busy {
    /// `count` threads, running by the time this returns.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn new(count: u32) -> Result<Self> {
        let mut busy = Self::default();
        for _ in 0..count {
            let (done, used_ns) = (busy.done.clone(), Arc::new(AtomicU64::new(0)));
            let tell = used_ns.clone();
            let spin = move || {
                while !done.load(Ordering::Relaxed) {
                    tell.store(thread_time().as_nanos() as u64, Ordering::Relaxed);
                    for spin in 0..SPINS {
                        std::hint::black_box(spin);
                    }
                }
            };
            let thread = std::thread::Builder::new().name("busy".into()).spawn(spin);
            let thread = thread.map_err(|error| Error::thread(&error))?;
            busy.threads.push((thread, used_ns));
        }
        while busy.used_ns().any(|used_ns| used_ns == 0) {
            std::thread::yield_now();
        }
        Ok(busy)
    }

    fn used_ns(&self) -> impl Iterator<Item = u64> {
        let threads = self.threads.iter();
        threads.map(|(_, used_ns)| used_ns.load(Ordering::Relaxed))
    }

    /// Processor time of these threads so far.
    pub fn time(&self) -> Duration {
        Duration::from_nanos(self.used_ns().sum())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        for (thread, _) in self.threads.drain(..) {
            // It has nothing that could panic.
            let _ = thread.join();
        }
    }
}

/// The processor's name; `None` where the system does not say.
pub fn processor() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn busy_threads_count_their_time_and_end() {
        let busy = Busy::new(1).unwrap();
        let (start, before) = (Instant::now(), process_time());
        let own_before = thread_time();
        while busy.time() < Duration::from_millis(50) {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not run");
            std::thread::sleep(Duration::from_millis(1));
        }
        let (process, own) = (process_time() - before, thread_time() - own_before);
        drop(busy);
        assert!(process >= Duration::from_millis(30), "{process:?}");
        assert!(
            own < Duration::from_millis(20),
            "sleeping takes none: {own:?}"
        );
        assert!(Busy::default().time().is_zero());
    }
}
