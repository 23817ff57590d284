//! A queue in devices' memory (device_queue.rs) as the host reads it: its words, and the notices by which each replica tells which
//! requests it has claimed.

use super::memory::{acquire, release};
use super::request::Request;
use crate::backend::{Claimer, QueueMemory};
use crate::sys::abi;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// A request that has been claimed for a scheduler. Its number there counts claims from 0.
#[derive(Debug, Clone)]
pub(super) struct Claimed {
    /// The request's number in the queue.
    pub number: u64,
    /// How long it waited in the queue.
    pub waited: Duration,
    /// The request with what is left of its time, where the run is recorded.
    pub recorded: Option<Request>,
}

/// What is recorded, until it is claimed: requests by their numbers.
pub(super) type Unclaimed = Arc<Mutex<HashMap<u64, Request>>>;

/// The words of the queue, which everyone looks at.
#[derive(Clone)]
pub(super) struct QueueWords(pub Arc<QueueMemory>);

impl QueueWords {
    pub fn head(&self) -> *mut abi::tg_queue {
        self.0.region.start().as_ptr().cast()
    }

    /// Requests that, as far as the host knows, nobody has claimed.
    pub fn unclaimed(&self) -> u64 {
        let head = self.head();
        // SAFETY: the words are atomic on all sides. Claims first: they never pass what has been pushed by then.
        unsafe {
            let told = (0..(*head).replicas as usize).map(|i| acquire(&raw mut (*head).told[i]));
            let claimed = told.max().unwrap_or(0);
            acquire(&raw mut (*head).pushed) - claimed
        }
    }

    /// The table at `offset` in the block.
    ///
    /// # Safety
    /// `offset` is one of the block's own head.
    pub unsafe fn table<T>(&self, offset: u64) -> *mut T {
        // SAFETY: the caller's promise: so it lies inside the block.
        unsafe { self.0.region.start().as_ptr().add(offset as usize).cast() }
    }

    /// What replica `replica` claims with, whose core keeps so many numbers.
    pub fn claimer(&self, replica: u32, numbers: u32) -> Claimer {
        let (head, mut words) = (self.head(), abi::tg_claimer::default());
        let QueueMemory {
            address, claimed, ..
        } = *self.0;
        // SAFETY: the head has been laid out, and what is set there is the claimer alone.
        unsafe {
            abi::tg_claimer_init(&raw mut words, head, claimed as *mut u64, replica);
            let own = u64::from(replica) * u64::from((*head).claim_capacity);
            words.queue = address as *mut abi::tg_queue;
            words.runs = (address + (*head).runs) as *const u64;
            words.requests = (address + (*head).requests) as *const abi::tg_request;
            words.biases = (address + (*head).biases) as *const abi::tg_bias;
            words.tokens = (address + (*head).tokens) as *const i32;
            let claims = (*head).claims + own * size_of::<abi::tg_claimed>() as u64;
            words.claims = (address + claims) as *mut abi::tg_claimed;
        }
        Claimer { words, numbers }
    }
}

/// One replica's part of the words.
pub(super) struct View {
    pub words: QueueWords,
    pub replica: usize,
}

impl View {
    /// Requests that, as far as the host knows, nobody has claimed.
    pub fn unclaimed(&self) -> u64 {
        self.words.unclaimed()
    }

    /// Requests that the replica has told of.
    pub fn claims(&self) -> u64 {
        // SAFETY: the index is atomic on both sides.
        unsafe { acquire(&raw mut (*self.words.head()).claims_head[self.replica]) }
    }
}

/// What a replica tells the host of its claims.
pub(super) struct Notices {
    view: View,
    heard: u64,
    tell: Sender<Claimed>,
    unclaimed: Option<Unclaimed>,
}

impl Notices {
    /// Watches `view`'s replica, whose claims are told to `tell`, with what is recorded of them.
    pub fn new(view: View, tell: Sender<Claimed>, unclaimed: Option<Unclaimed>) -> Self {
        Self {
            view,
            heard: 0,
            tell,
            unclaimed,
        }
    }

    /// Reads what is new: appends the queue's numbers to `numbers`, and passes all of it on.
    pub fn read(&mut self, numbers: &mut Vec<u64>) {
        let (words, replica) = (&self.view.words, self.view.replica);
        let (head, end) = (words.head(), self.view.claims());
        if self.heard == end {
            return;
        }
        // SAFETY: set once.
        let (claims, capacity) = unsafe { ((*head).claims, (*head).claim_capacity as usize) };
        // SAFETY: the head's own offset.
        let claims: *const abi::tg_claimed = unsafe { words.table(claims) };
        for own in self.heard..end {
            let place = replica * capacity + (own as usize & (capacity - 1));
            // SAFETY: in the replica's part of the table; what lies between tail and head is the host's to read.
            let abi::tg_claimed { number, waited_ns } = unsafe { claims.add(place).read() };
            let waited = Duration::from_nanos(waited_ns);
            let recorded = self.unclaimed.as_ref().map(|all| {
                let mut request = all.lock().remove(&number).expect("it has been pushed");
                request.timeout = request.timeout.map(|time| time.saturating_sub(waited));
                request
            });
            numbers.push(number);
            // A host that listens no more is ending.
            let _ = self.tell.send(Claimed {
                number,
                waited,
                recorded,
            });
        }
        self.heard = end;
        // SAFETY: as for the head; this is the only one who stores it.
        unsafe { release(&raw mut (*head).claims_tail[replica], end) };
    }
}
