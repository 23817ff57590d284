//! One queue of requests (kernels/sched/claim.h). Schedulers on the host claim from it; for those on devices that cannot, the host
//! claims. What is claimed is pushed to the scheduler's own rings, as where it is the only one. So a turn knows nothing of the queue,
//! and its record is that of a run of these requests alone.

use super::memory::{HostRegion, acquire, release, word};
use super::notices::{Claimed, Notices};
use super::request::Request;
use super::rings::HostRings;
use crate::backend::{LogitsSink, SharedRegion, SharedSink};
use crate::error::Result;
use crate::sys::abi;
use parking_lot::Mutex;
use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

struct Waiting {
    request: Request,
    since: Instant,
}

/// What host and schedulers share.
pub(super) struct Queue {
    words: HostRegion,
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
        // What is claimed at once, and as much again while that is read.
        let capacity = slots.saturating_mul(2).next_power_of_two().max(1024);
        let shape = abi::tg_queue {
            replicas,
            run_capacity: capacity,
            ..Default::default()
        };
        // SAFETY: it only reads the shape.
        let words = HostRegion::new(unsafe { abi::tg_queue_bytes(&raw const shape) } as usize)?;
        let queue = Self {
            words,
            entries: (0..capacity).map(|_| UnsafeCell::new(None)).collect(),
            drains: AtomicBool::new(false),
        };
        // SAFETY: nobody else has the block yet.
        unsafe { abi::tg_queue_init(queue.head(), &raw const shape) };
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

    /// How many requests behind request `number` begin as it does.
    fn run(&self, number: u64) -> &AtomicU64 {
        let place = (number % self.capacity()) as usize;
        // SAFETY: the head has been laid out, with as many words as there are entries, and they are atomic on all sides.
        unsafe {
            let runs = self.head().byte_add((*self.head()).runs as usize);
            word(runs.cast::<u64>().add(place))
        }
    }

    /// What replica `replica` claims with.
    pub fn words(&self, replica: u32) -> Words {
        let (head, mut words) = (self.head(), abi::tg_claimer::default());
        // SAFETY: the head has been laid out.
        unsafe {
            let claimed = &raw mut (*head).claimed.value;
            abi::tg_claimer_init(&raw mut words, head, claimed, replica);
        }
        Words(words)
    }

    pub fn drain(&self) {
        self.drains.store(true, Ordering::Release);
    }
}

/// The host's end. One a queue.
pub(super) struct Pusher {
    pub queue: Arc<Queue>,
    pushed: u64,
    tail: u64,
}

impl Pusher {
    pub fn new(queue: Arc<Queue>) -> Self {
        Self {
            queue,
            pushed: 0,
            tail: 0,
        }
    }

    /// The request's number, or `None` while the queue is full.
    pub fn push(&mut self, request: &Request) -> Option<u64> {
        let head = self.queue.head();
        let number = self.pushed;
        // SAFETY: the words are atomic on all sides; below the tail nobody touches an entry.
        unsafe {
            self.tail = abi::tg_queue_tail(head, self.tail);
            if number - self.tail >= self.queue.capacity() {
                return None;
            }
            *self.queue.entry(number) = Some(Waiting {
                request: request.clone(),
                since: Instant::now(),
            });
            let run = self.queue.run(number);
            run.store(request.followers.into(), Ordering::Relaxed);
            self.pushed += 1;
            release(&raw mut (*head).pushed, self.pushed);
        }
        Some(number)
    }
}

/// What a replica knows of the queue. It points into that.
pub(super) struct Words(abi::tg_claimer);

// SAFETY: its user keeps the queue, whose words are atomic on all sides.
unsafe impl Send for Words {}

/// Claims requests for one scheduler: that scheduler itself, or the host where it is on a device.
pub(super) struct Claimer {
    pub queue: Arc<Queue>,
    pub words: Words,
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
    /// Claims as many requests as there are free slots, `busy` being taken or waited for, and hands them to the rings.
    ///
    /// # Errors
    /// Fails as [`Self::pass`] does.
    pub fn claim(&mut self, busy: u32) -> Result<()> {
        let free = self.slots.saturating_sub(busy + self.held.len() as u32);
        self.take(free, free + self.slots);
        self.pass().map(drop)
    }

    /// Claims up to `most`, and up to `run_most` that begin alike, but leaves the other replicas their share. They wait here for
    /// [`Self::pass`]. How many there were.
    pub fn take(&mut self, most: u32, run_most: u32) -> u32 {
        let (words, mut first) = (&raw mut self.words.0, 0);
        let share = self.queue.unclaimed().div_ceil(u64::from(self.replicas));
        let of_share = |most: u32| u64::from(most).min(share) as u32;
        // SAFETY: this thread alone claims for its replica, and `queue` is what the words point into.
        let count = unsafe {
            abi::tg_claim_look(words);
            abi::tg_claim(words, of_share(most), of_share(run_most), &raw mut first)
        };
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
            unsafe { abi::tg_claim_release(words, abi::TG_NO_STEP) };
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
        let passed = if self.held.is_empty() {
            0
        } else {
            self.rings.try_push_requests(&self.held)?.count()
        };
        self.held.drain(..passed);
        if drains && self.held.is_empty() && self.queue.unclaimed() == 0 {
            self.rings.set_drain();
        }
        Ok(passed > 0)
    }
}

/// Which request of the queue each of a replica's own is.
#[derive(Default)]
pub(super) struct Numbers(Mutex<Told>);

#[derive(Default)]
struct Told {
    numbers: Vec<u64>,
    /// Where the replica itself tells of them.
    notices: Option<Notices>,
}

impl Told {
    fn hear(&mut self) {
        if let Some(notices) = &mut self.notices {
            notices.read(&mut self.numbers);
        }
    }
}

impl Numbers {
    fn add(&self, number: u64) {
        self.0.lock().numbers.push(number);
    }

    /// From now on the replica's notices are what it knows.
    pub fn listen(&self, notices: Notices) {
        self.0.lock().notices = Some(notices);
    }

    /// Reads what the replica has told, and passes it on.
    pub fn hear(&self) {
        self.0.lock().hear();
    }

    /// The queue's number of own request `own`, of which something has come: a replica tells of a claim before that.
    fn of(&self, own: u64) -> u64 {
        let mut told = self.0.lock();
        if own >= told.numbers.len() as u64 {
            told.hear();
        }
        told.numbers[own as usize]
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
        let number = self.numbers.of(request);
        self.sink.rows(number, first_position, logits)
    }
}
