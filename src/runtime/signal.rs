//! A counter that threads wait on: how host, scheduler and stage threads wake each other on the CPU.
//! (On a GPU the scheduler polls instead; nothing here is part of the schedule.)

use parking_lot::{Condvar, Mutex};
use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Instant;

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
