//! One queue of requests that several schedulers claim from, by kernels/sched/claim.h. A scheduler's own rings stay as they
//! are: what it has claimed it pushes there itself, as the host does where there is one scheduler, so a turn knows nothing of
//! the queue, and its record is that of a run of these requests alone.

use super::memory::{HostBlock, acquire, index, release};
use super::request::Request;
use super::rings::HostRings;
use crate::backend::Block;
use crate::error::Result;
use crate::sys::abi;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

/// Requests that wait for any scheduler, at most.
const CAPACITY: u64 = 1024;

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

// SAFETY: the host alone writes an entry, while no claim of it is held, and a scheduler reads those that it holds.
unsafe impl Sync for Queue {}

impl Queue {
    /// # Errors
    /// [`crate::Error::Memory`] where the system has not so much.
    pub fn new(replicas: u32) -> Result<Arc<Self>> {
        let words = HostBlock::new(size_of::<abi::tg_queue>())?;
        let queue = Self {
            words,
            entries: (0..CAPACITY).map(|_| UnsafeCell::new(None)).collect(),
            drains: AtomicBool::new(false),
        };
        // SAFETY: nobody else has the block yet.
        unsafe { abi::tg_queue_init(queue.head(), replicas) };
        Ok(Arc::new(queue))
    }

    fn head(&self) -> *mut abi::tg_queue {
        self.words.start().as_ptr().cast()
    }

    fn entry(&self, number: u64) -> *mut Option<Waiting> {
        self.entries[(number % CAPACITY) as usize].get()
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
        // SAFETY: the words are atomic on all sides; below the tail nobody reads an entry.
        unsafe {
            if number - abi::tg_queue_tail(head) >= CAPACITY {
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

    /// Requests that nobody has claimed.
    pub fn unclaimed(&self) -> u64 {
        let head = self.queue.head();
        // SAFETY: the index is atomic on all sides.
        self.pushed - unsafe { acquire(&raw mut (*head).claimed) }
    }
}

/// A request that a scheduler has claimed. Its number there counts claims from 0.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    /// In the queue.
    pub number: u64,
    /// With what is left of its time.
    pub request: Request,
    /// In the queue.
    pub waited: Duration,
}

/// A scheduler's end.
pub(super) struct Claimer {
    pub queue: Arc<Queue>,
    pub replica: u32,
    pub slots: u32,
    pub rings: HostRings,
    /// Hears of every claim before a turn does.
    pub tell: Sender<Claimed>,
    /// Claimed, and not in the rings yet: prompts before them take the room.
    pub held: VecDeque<Request>,
}

impl Claimer {
    /// Claims as many requests as there are free slots, `busy` being taken or waited for, and hands them to the rings.
    ///
    /// # Errors
    /// A request that the rings cannot hold, which its pusher should have refused.
    pub fn claim(&mut self, busy: u32) -> Result<()> {
        let drains = self.queue.drains.load(Ordering::Acquire);
        let most = self.slots.saturating_sub(busy + self.held.len() as u32);
        let (head, mut first) = (self.queue.head(), 0);
        // SAFETY: this thread alone claims for its replica.
        let count = unsafe { abi::tg_claim(head, self.replica, most, &raw mut first) };
        for number in first..first + u64::from(count) {
            // SAFETY: claimed and held, so it was pushed, and nobody writes it.
            let waiting = unsafe { &*self.queue.entry(number) };
            let Waiting { request, since } =
                waiting.as_ref().expect("a pushed entry holds a request");
            let waited = since.elapsed();
            let mut request = request.clone();
            request.timeout = request
                .timeout
                .map(|timeout| timeout.saturating_sub(waited));
            self.held.push_back(request.clone());
            // A host that listens no more is ending.
            let _ = self.tell.send(Claimed {
                number,
                request,
                waited,
            });
        }
        if count > 0 {
            // SAFETY: as for claiming; nothing of these entries is read any more.
            unsafe { abi::tg_claim_release(head, self.replica, abi::TG_NO_STEP) };
        }
        while let Some(request) = self.held.front() {
            if self.rings.try_push_request(request)?.is_none() {
                break;
            }
            self.held.pop_front();
        }
        if drains && self.held.is_empty() && self.all_claimed() {
            self.rings.set_drain();
        }
        Ok(())
    }

    fn all_claimed(&self) -> bool {
        let head = self.queue.head();
        // SAFETY: the words are atomic on all sides. Nothing is pushed once the queue drains.
        unsafe {
            index(&raw mut (*head).claimed).load(Ordering::Acquire)
                == acquire(&raw mut (*head).pushed)
        }
    }
}
