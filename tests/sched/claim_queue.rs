//! The queue that [`super::claims`] claims from, as its host has it.

use super::api::Api;
use super::machine::Block;
use super::world::{Planned, biases};
use tailgraph::sys::abi;

/// The host's end. It writes over what nobody reads any more, so that a core that still does is found out.
pub(super) struct Queue {
    api: Api,
    block: Block,
    /// The word that replicas swap.
    claimed: Box<u64>,
    pub(super) pushed: u64,
    pub(super) tail: u64,
    token_head: u64,
    token_starts: Vec<u64>,
}

impl Queue {
    pub(super) fn new(api: Api, shape: &abi::tg_queue) -> Self {
        // SAFETY: the block has the size that the core asked for.
        let block = unsafe {
            let block = Block::new((api.queue_bytes)(shape), 0xa5);
            (api.queue_init)(block.at.cast(), shape);
            block
        };
        Self {
            api,
            block,
            claimed: Box::new(0),
            pushed: 0,
            tail: 0,
            token_head: 0,
            token_starts: vec![],
        }
    }

    pub(super) fn head(&mut self) -> &mut abi::tg_queue {
        // SAFETY: laid out in `new`; all is on one thread.
        unsafe { &mut *self.block.at.cast() }
    }

    pub(super) fn entry<T>(&mut self, offset: u64, capacity: u32, number: u64) -> *mut T {
        let place = (number % u64::from(capacity)) as usize;
        let at = offset as usize + place * size_of::<T>();
        assert!(at + size_of::<T>() <= self.block.layout.size());
        // SAFETY: inside the block.
        unsafe { self.block.at.add(at).cast() }
    }

    fn put<T>(&mut self, offset: u64, capacity: u32, number: u64, value: T) {
        // SAFETY: inside the table, which holds plain integers.
        unsafe { self.entry::<T>(offset, capacity, number).write(value) };
    }

    /// Where the prompt of request `number` begins, or will.
    fn token_start(&self, number: u64) -> u64 {
        let starts = &self.token_starts;
        *starts.get(number as usize).unwrap_or(&self.token_head)
    }

    /// Writes over all that nobody reads any more.
    pub(super) fn free(&mut self) {
        let before = self.tail;
        // SAFETY: laid out in `new`.
        self.tail = unsafe { (self.api.queue_tail)(self.head(), before) };
        let abi::tg_queue {
            requests,
            tokens,
            biases,
            capacity,
            token_capacity,
            bias_capacity,
            ..
        } = *self.head();
        for number in before..self.tail {
            let garbage = abi::tg_bias { id: 99, bias: 99 };
            for i in 0..u64::from(bias_capacity) {
                let place = number % u64::from(capacity) * u64::from(bias_capacity) + i;
                self.put(biases, capacity * bias_capacity, place, garbage);
            }
            self.put(requests, capacity, number, abi::tg_request::default());
            for at in self.token_start(number)..self.token_start(number + 1) {
                self.put(tokens, token_capacity, at, -77_i32);
            }
        }
    }

    /// `followers`: so many behind it begin alike, or so it says.
    pub(super) fn push(&mut self, planned: &Planned, followers: u64) -> bool {
        let abi::tg_queue {
            runs,
            run_capacity,
            requests,
            tokens,
            biases: bias_table,
            capacity,
            token_capacity,
            bias_capacity,
            ..
        } = *self.head();
        let (number, length) = (self.pushed, planned.prompt.len() as u64);
        let used = self.token_head - self.token_start(self.tail);
        if number - self.tail >= u64::from(capacity) || used + length > u64::from(token_capacity) {
            return false;
        }
        let request = abi::tg_request {
            token_start: self.token_head,
            ..planned.request
        };
        self.put(requests, capacity, number, request);
        self.put(runs, run_capacity, number, followers);
        for (at, &token) in (self.token_head..).zip(&planned.prompt) {
            self.put(tokens, token_capacity, at, token);
        }
        let count = request.sampling.bias_count.min(bias_capacity);
        for (i, bias) in (0..).zip(biases(number, count)) {
            let place = number % u64::from(capacity) * u64::from(bias_capacity) + i;
            self.put(bias_table, capacity * bias_capacity, place, bias);
        }
        self.token_starts.push(self.token_head);
        self.token_head += length;
        self.pushed += 1;
        self.head().pushed.value = self.pushed;
        true
    }

    /// What replica `number` claims with; `numbers` and `seen` are its own memory.
    pub(super) fn claimer(
        &mut self,
        number: u32,
        numbers: &mut [u64],
        seen: &mut [u64],
    ) -> abi::tg_claimer {
        let (at, head) = (self.block.at as u64, *self.head());
        let claimed: *mut u64 = &raw mut *self.claimed;
        let mut words = abi::tg_claimer::default();
        // SAFETY: the queue is laid out.
        unsafe { (self.api.claimer_init)(&raw mut words, self.head(), claimed, number) };
        let own = u64::from(number * head.claim_capacity) * size_of::<abi::tg_claimed>() as u64;
        abi::tg_claimer {
            requests: (at + head.requests) as *const _,
            biases: (at + head.biases) as *const _,
            tokens: (at + head.tokens) as *const _,
            runs: (at + head.runs) as *const _,
            claims: (at + head.claims + own) as *mut _,
            numbers: numbers.as_mut_ptr(),
            seen: seen.as_mut_ptr(),
            ..words
        }
    }
}
