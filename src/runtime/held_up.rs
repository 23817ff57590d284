//! Whether steps wait for the host: they do while it has logits in hand, however slow its disk is.

use crate::backend::{LogitsSink, SharedSink};
use crate::error::Result;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Told by a sink, asked by the watchdog.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldUp(Arc<AtomicBool>);

impl HeldUp {
    /// Makes it, and of `sink` one that tells it.
    pub fn told_by(sink: &SharedSink) -> (Self, SharedSink) {
        let held_up = Self::default();
        let told = sink.clone().map(|sink| {
            let held_up = held_up.clone();
            Arc::new(WatchedSink { sink, held_up }) as Arc<dyn LogitsSink>
        });
        (held_up, told)
    }

    pub fn now(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Says when the sink has rows in hand.
struct WatchedSink {
    sink: Arc<dyn LogitsSink>,
    held_up: HeldUp,
}

impl LogitsSink for WatchedSink {
    fn rows(&self, request: u64, position: u32, logits: &[f32]) -> Result<()> {
        let _holding = Holding::new(&self.held_up);
        self.sink.rows(request, position, logits)
    }
}

/// Until it is dropped, also by a panic: then the watchdog looks at steps again.
struct Holding<'a>(&'a AtomicBool);

impl<'a> Holding<'a> {
    fn new(HeldUp(flag): &'a HeldUp) -> Self {
        flag.store(true, Ordering::Release);
        Self(flag)
    }
}

impl Drop for Holding<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}
