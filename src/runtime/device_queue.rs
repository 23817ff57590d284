//! The host's end of a queue that devices claim from by themselves (kernels/sched/claim.h): it writes requests where all of them
//! see them, and hears from each which ones it has claimed. A scheduler's own rings carry all else.

use super::entries::{Tables, check_size, entry};
use super::memory::{index, word};
use super::notices::{Claimed, Notices, QueueWords, Unclaimed, View};
use super::options::EngineShape;
use super::request::Request;
use super::single::SingleEngine;
use crate::error::Result;
use crate::sys::abi;
use crate::telemetry::warn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::Sender;

/// The host's end of the queue.
pub(super) struct DeviceQueue {
    words: QueueWords,
    pushed: u64,
    tail: u64,
    token_head: u64,
    /// Where runs are recorded.
    kept: Option<Unclaimed>,
}

/// The shape of a queue that has as much room as the engines' rings together.
fn shape(engines: &[&mut SingleEngine]) -> abi::tg_queue {
    let shapes = || engines.iter().map(|engine| engine.shape());
    let sum = |of: fn(&EngineShape) -> u32| shapes().map(of).fold(0, u32::saturating_add);
    let power = |n: u32| n.min(1 << 30).next_power_of_two();
    let capacity = power(sum(|shape| shape.rings.requests));
    abi::tg_queue {
        replicas: engines.len() as u32,
        capacity,
        token_capacity: power(sum(|shape| shape.rings.tokens)),
        bias_capacity: engines[0].shape().rings.biases,
        // A host that hears of no claims pushes nothing either: what there is to claim then is what the queue holds.
        claim_capacity: capacity,
        run_capacity: capacity,
        ..Default::default()
    }
}

impl DeviceQueue {
    /// A queue for engines that are not launched yet; `None` where they are not all on devices that can claim from one.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] where there is no room for it; [`crate::Error::Runtime`] for what a device refuses.
    pub fn of(engines: &mut [&mut SingleEngine]) -> Result<Option<Self>> {
        let shape = shape(engines);
        // SAFETY: it only reads the shape.
        let bytes = unsafe { abi::tg_queue_bytes(&raw const shape) } as usize;
        let memory = match engines[0].device() {
            Some(device) if shape.replicas > 1 => device.queue_memory(bytes)?,
            _ => None,
        };
        let Some(memory) = memory else {
            return Ok(None);
        };
        for engine in &mut *engines {
            let reaches = match engine.device() {
                Some(device) => device.reaches(&memory)?,
                None => false,
            };
            if !reaches {
                warn(
                    "not all of these GPUs can do atomics in the first one's memory (as over NVLink), so they cannot claim from one queue: the host hands requests out, and a busy host leaves GPUs without work",
                );
                return Ok(None);
            }
        }
        let records = engines[0].shape().options.record;
        let words = QueueWords(Arc::new(memory));
        // SAFETY: the block has the size of this shape, and nobody else has it yet.
        unsafe { abi::tg_queue_init(words.head(), &raw const shape) };
        for (replica, engine) in (0..).zip(&mut *engines) {
            // A replay pushes over the rings what was in the queue at once.
            engine.has_tokens(shape.token_capacity);
            let EngineShape { options, rings, .. } = engine.shape();
            let claimer = words.claimer(replica, rings.requests + options.max_seqs);
            if let Some(device) = engine.device() {
                device.claim_from(&words.0, claimer)?;
            }
            engine.claimed_from(View {
                words: words.clone(),
                replica: replica as usize,
            });
        }
        Ok(Some(Self {
            words,
            pushed: 0,
            tail: 0,
            token_head: 0,
            kept: records.then(Unclaimed::default),
        }))
    }

    /// What replica `replica` says of its claims, which are told to `tell`.
    pub fn notices(&self, replica: u32, tell: Sender<Claimed>) -> Notices {
        let view = View {
            words: self.words.clone(),
            replica: replica as usize,
        };
        Notices::new(view, tell, self.kept.clone())
    }

    /// The request's number, or `None` while there is no room for it or its prompt.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] for a request that the queue can never hold.
    pub fn push(&mut self, request: &Request) -> Result<Option<u64>> {
        let (head, number) = (self.words.head(), self.pushed);
        // SAFETY: the offsets and capacities are set once, by the block's own layout, whose tables these are.
        let tables = unsafe {
            Tables {
                requests: self.words.table((*head).requests),
                biases: self.words.table((*head).biases),
                tokens: self.words.table((*head).tokens),
                capacity: (*head).capacity,
                bias_capacity: (*head).bias_capacity,
                token_capacity: (*head).token_capacity,
            }
        };
        check_size(request, tables.token_capacity, tables.bias_capacity)?;
        let entry = entry(request, self.token_head)?;
        // SAFETY: the words are atomic on all sides.
        self.tail = unsafe { abi::tg_queue_tail(head, self.tail) };
        let token_end = self.token_head + request.prompt.len() as u64;
        if number - self.tail >= u64::from(tables.capacity)
            || token_end - self.token_tail(&tables) > u64::from(tables.token_capacity)
        {
            return Ok(None);
        }
        if let Some(kept) = &self.kept {
            kept.lock().insert(number, request.clone());
        }
        (self.pushed, self.token_head) = (number + 1, token_end);
        // SAFETY: before the tail nobody reads any more, and there is room; what is below the new head is whole.
        unsafe {
            tables.write(number, request, entry);
            let runs = self.words.table::<u64>((*head).runs);
            let run = runs.add((number & u64::from(tables.capacity - 1)) as usize);
            word(run).store(request.followers.into(), Ordering::Relaxed);
            index(&raw mut (*head).pushed).store(number + 1, Ordering::Release);
        }
        Ok(Some(number))
    }

    /// Prompts before it are read by nobody any more: it is where that of the oldest request begins.
    fn token_tail(&self, tables: &Tables) -> u64 {
        if self.tail == self.pushed {
            return self.token_head;
        }
        let place = (self.tail & u64::from(tables.capacity - 1)) as usize;
        // SAFETY: the host wrote this entry, and nobody else writes any.
        unsafe { (*tables.requests.add(place)).token_start }
    }

    /// Requests that, as far as the host knows, nobody has claimed.
    pub fn unclaimed(&self) -> u64 {
        self.words.unclaimed()
    }
}
