//! One queue of requests that several schedulers claim from, by kernels/sched/claim.h. A scheduler's own rings stay as they
//! are: what it has claimed is pushed there as the host does where there is one scheduler, so a turn knows nothing of the
//! queue, and its record is that of a run of these requests alone.

use super::memory::{HostBlock, acquire, release};
use super::request::Request;
use super::rings::HostRings;
use crate::backend::{Block, LogitsSink, SharedSink};
use crate::error::Result;
use crate::sys::abi;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

struct Waiting {
    request: Request,
    since: Instant,
}

/// What host and schedulers share.
pub(super) struct Queue {
    words: HostBlock,
    entries: Box<[UnsafeCell<Option<Waiting>>]>,
    /// No more requests will come.
    drains: AtomicBool,
}

// SAFETY: the host alone writes an entry, while no claim of it is held, and whoever holds a claim of it alone takes what is there.
unsafe impl Sync for Queue {}

impl Queue {
    /// For so many replicas, which have room for `slots` sequences together.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] where the system has not so much.
    pub fn new(replicas: u32, slots: u32) -> Result<Arc<Self>> {
        let words = HostBlock::new(size_of::<abi::tg_queue>())?;
        // What is claimed at once, and as much again while that is read.
        let capacity = slots.saturating_mul(2).next_power_of_two().max(1024);
        let queue = Self {
            words,
            entries: (0..capacity).map(|_| UnsafeCell::new(None)).collect(),
            drains: AtomicBool::new(false),
        };
        // SAFETY: nobody else has the block yet.
        unsafe { abi::tg_queue_init(queue.head(), replicas) };
        Ok(Arc::new(queue))
    }

    fn head(&self) -> *mut abi::tg_queue {
        self.words.start().as_ptr().cast()
    }

    fn capacity(&self) -> u64 {
        self.entries.len() as u64
    }

    fn entry(&self, number: u64) -> *mut Option<Waiting> {
        self.entries[(number % self.capacity()) as usize].get()
    }

    /// Requests that nobody has claimed.
    pub fn unclaimed(&self) -> u64 {
        let head = self.head();
        // SAFETY: the words are atomic on all sides. Claims first: they never pass what has been pushed by then.
        unsafe {
            let claimed = acquire(&raw mut (*head).claimed);
            acquire(&raw mut (*head).pushed) - claimed
        }
    }

    pub fn drain(&self) {
        self.drains.store(true, Ordering::Release);
    }
}

/// The host's end. One a queue.
pub(super) struct Pusher {
    pub queue: Arc<Queue>,
    pushed: u64,
}

impl Pusher {
    pub fn new(queue: Arc<Queue>) -> Self {
        Self { queue, pushed: 0 }
    }

    /// The request's number, or `None` while the queue is full.
    pub fn push(&mut self, request: &Request) -> Option<u64> {
        let head = self.queue.head();
        let number = self.pushed;
        // SAFETY: the words are atomic on all sides; below the tail nobody touches an entry.
        unsafe {
            if number - abi::tg_queue_tail(head) >= self.queue.capacity() {
                return None;
            }
            *self.queue.entry(number) = Some(Waiting {
                request: request.clone(),
                since: Instant::now(),
            });
            self.pushed += 1;
            release(&raw mut (*head).pushed, self.pushed);
        }
        Some(number)
    }
}

/// A request that has been claimed for a scheduler. Its number there counts claims from 0.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    /// In the queue.
    pub number: u64,
    /// In the queue.
    pub waited: Duration,
    /// With what is left of its time, where the run is recorded.
    pub recorded: Option<Request>,
}

/// Claims requests for one scheduler: that scheduler itself, or the host where it is on a device.
pub(super) struct Claimer {
    pub queue: Arc<Queue>,
    pub replica: u32,
    pub replicas: u32,
    pub slots: u32,
    pub rings: HostRings,
    /// Hears of every claim before a turn does.
    pub tell: Sender<Claimed>,
    pub records: bool,
    pub numbers: Arc<Numbers>,
    /// So far.
    pub claims: u64,
    /// Claimed, and not in the rings yet: prompts before them take the room.
    pub held: VecDeque<Request>,
}

impl Claimer {
    /// Claims as many requests as there are free slots, `busy` being taken or waited for, but leaves the other replicas
    /// their share of what waits, and hands them to the rings.
    ///
    /// # Errors
    /// As [`Self::pass`].
    pub fn claim(&mut self, busy: u32) -> Result<()> {
        let free = self.slots.saturating_sub(busy + self.held.len() as u32);
        let share = self.queue.unclaimed().div_ceil(u64::from(self.replicas));
        self.take(u64::from(free).min(share) as u32);
        self.pass().map(drop)
    }

    /// Claims at most so many, which wait here for [`Self::pass`]. How many there were.
    pub fn take(&mut self, most: u32) -> u32 {
        let (head, mut first) = (self.queue.head(), 0);
        // SAFETY: this thread alone claims for its replica.
        let count = unsafe { abi::tg_claim(head, self.replica, most, &raw mut first) };
        for number in first..first + u64::from(count) {
            // SAFETY: claimed and held, so it was pushed, and nobody else touches it.
            let waiting = unsafe { &mut *self.queue.entry(number) }.take();
            let Waiting { mut request, since } = waiting.expect("a pushed entry holds a request");
            let waited = since.elapsed();
            request.timeout = request
                .timeout
                .map(|timeout| timeout.saturating_sub(waited));
            self.numbers.add(number);
            // A host that listens no more is ending.
            let _ = self.tell.send(Claimed {
                number,
                waited,
                recorded: self.records.then(|| request.clone()),
            });
            self.held.push_back(request);
        }
        self.claims += u64::from(count);
        if count > 0 {
            // SAFETY: as for claiming; nothing of these entries is touched any more.
            unsafe { abi::tg_claim_release(head, self.replica, abi::TG_NO_STEP) };
        }
        count
    }

    /// Hands what has been claimed to the rings, as far as these have room. Whether there was any.
    ///
    /// # Errors
    /// A request that the rings cannot hold, which its pusher should have refused.
    pub fn pass(&mut self) -> Result<bool> {
        // Before what is left is looked at: nothing is pushed behind it.
        let drains = self.queue.drains.load(Ordering::Acquire);
        let passed = match self.held.is_empty() {
            true => 0,
            false => self.rings.try_push_requests(&self.held)?.count(),
        };
        self.held.drain(..passed);
        if drains && self.held.is_empty() && self.queue.unclaimed() == 0 {
            self.rings.set_drain();
        }
        Ok(passed > 0)
    }
}

/// Which request of the queue each of a replica's own is.
#[derive(Debug, Default)]
pub(super) struct Numbers(Mutex<Vec<u64>>);

impl Numbers {
    fn add(&self, number: u64) {
        self.0.lock().push(number);
    }

    /// `sink` for a replica whose requests these are.
    pub fn sink(self: &Arc<Self>, sink: &SharedSink) -> SharedSink {
        let numbers = self.clone();
        let own = |sink| Arc::new(NumberedSink { sink, numbers }) as Arc<dyn LogitsSink>;
        sink.clone().map(own)
    }
}

/// Gives on logits under the queue's numbers.
struct NumberedSink {
    sink: Arc<dyn LogitsSink>,
    numbers: Arc<Numbers>,
}

impl LogitsSink for NumberedSink {
    fn rows(&self, request: u64, first_position: u32, logits: &[f32]) -> Result<()> {
        let number = self.numbers.0.lock()[request as usize];
        self.sink.rows(number, first_position, logits)
    }
}
