//! The host beside a run: processor time, threads that keep it busy, what it is.

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
    pub fn new(count: u32) -> Self {
        let done = Arc::new(AtomicBool::new(false));
        let spin = |_| {
            let (done, used_ns) = (done.clone(), Arc::new(AtomicU64::new(0)));
            let tell = used_ns.clone();
            let thread = std::thread::spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    let used = thread_time();
                    tell.store(used.as_nanos() as u64, Ordering::Relaxed);
                    for spin in 0..SPINS {
                        std::hint::black_box(spin);
                    }
                }
            });
            (thread, used_ns)
        };
        let threads: Vec<_> = (0..count).map(spin).collect();
        for (_, used_ns) in &threads {
            while used_ns.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
        }
        Self { done, threads }
    }

    /// Processor time of these threads so far.
    pub fn time(&self) -> Duration {
        let used = self
            .threads
            .iter()
            .map(|(_, used_ns)| used_ns.load(Ordering::Relaxed));
        Duration::from_nanos(used.sum())
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

/// Processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn busy_threads_count_their_time_and_end() {
        let busy = Busy::new(1);
        let (start, before) = (Instant::now(), process_time());
        while busy.time() < Duration::from_millis(50) {
            assert!(start.elapsed() < Duration::from_secs(20), "it does not run");
            std::thread::sleep(Duration::from_millis(1));
        }
        let process = process_time() - before;
        drop(busy);
        assert!(process >= Duration::from_millis(30), "{process:?}");
        assert!(Busy::new(0).time().is_zero());
    }

    #[test]
    fn sleeping_takes_no_processor_time() {
        let before = thread_time();
        std::thread::sleep(Duration::from_millis(50));
        let used = thread_time() - before;
        assert!(used < Duration::from_millis(10), "{used:?}");
    }
}
