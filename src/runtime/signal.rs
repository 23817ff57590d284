//! A counter that threads wait on: how host, scheduler and stage threads wake each other on the CPU.
//! (On a GPU the scheduler polls instead; nothing here is part of the schedule.)

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// When a wait is over.
pub struct Until(Option<Instant>);

impl Until {
    /// `wait` from now; never, where no clock reaches that far, as with [`Duration::MAX`].
    pub fn after(wait: Duration) -> Self {
        Self(Instant::now().checked_add(wait))
    }

    /// Zero once it is over.
    pub fn left(&self) -> Duration {
        self.0.map_or(Duration::MAX, |end| {
            end.saturating_duration_since(Instant::now())
        })
    }
}

/// Something happened: a ring index, a mailbox or a flag moved.
#[derive(Debug, Default)]
pub struct Signal {
    epoch: Mutex<u64>,
    moved: Condvar,
}

impl Signal {
    /// The epoch to hand to [`Signal::wait_past`], read before looking for work so that no wake-up is lost.
    pub fn epoch(&self) -> u64 {
        *self.epoch.lock()
    }

    pub fn notify(&self) {
        *self.epoch.lock() += 1;
        self.moved.notify_all();
    }

    /// Returns once the epoch is past `epoch`, or after `limit`.
    pub fn wait_past(&self, epoch: u64, limit: Duration) {
        let mut now = self.epoch.lock();
        if *now == epoch {
            self.moved.wait_for(&mut now, limit);
        }
    }
}

/// Ends the wait for an engine's next event, from any thread. By default it is that of an engine which never waits.
#[derive(Debug, Clone, Default)]
pub struct Waker {
    called: Arc<AtomicBool>,
    news: Arc<Signal>,
}

impl Waker {
    /// For an engine that waits on `news`, or looks at `called` often.
    pub(super) fn new(called: &Arc<AtomicBool>, news: Arc<Signal>) -> Self {
        Self {
            called: called.clone(),
            news,
        }
    }

    /// Ends the wait that is under way, or the next one.
    pub fn wake(&self) {
        self.called.store(true, Ordering::Release);
        self.news.notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_before_the_wait_is_not_lost() {
        let signal = Signal::default();
        let epoch = signal.epoch();
        signal.notify();
        let start = Instant::now();
        signal.wait_past(epoch, Duration::from_secs(60));
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn a_wait_may_have_no_end() {
        assert_eq!(Until::after(Duration::ZERO).left(), Duration::ZERO);
        let left = Until::after(Duration::from_secs(60)).left();
        assert!(left > Duration::from_secs(30) && left <= Duration::from_secs(60));
        assert_eq!(Until::after(Duration::MAX).left(), Duration::MAX);
    }

    #[test]
    fn another_thread_wakes_the_waiter() {
        let signal = Arc::new(Signal::default());
        let epoch = signal.epoch();
        let other = signal.clone();
        let thread = std::thread::spawn(move || other.notify());
        let start = Instant::now();
        signal.wait_past(epoch, Duration::from_secs(60));
        thread.join().unwrap();
        assert!(start.elapsed() < Duration::from_secs(30));
        assert_eq!(signal.epoch(), epoch + 1);
    }
}
