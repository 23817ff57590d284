//! A state block as the scheduler core would leave it, as far as a backend reads it.

use crate::machine::Job;
use tailgraph::runtime::EngineOptions;
use tailgraph::sys::abi;

/// A step before it is written down.
#[derive(Default)]
pub struct Composed {
    pub kind: u32,
    pub rows: Vec<abi::tg_row>,
    pub sequences: Vec<abi::tg_sequence>,
    pub sample_rows: Vec<u32>,
}

/// 128 bytes, aligned as the state block must be.
#[repr(align(128))]
#[derive(Clone, Copy)]
struct Line(#[allow(dead_code)] [u8; 128]);

/// A state block with the tables that a backend reads.
pub struct Block {
    memory: Vec<Line>,
}

impl Block {
    pub fn new(options: &EngineOptions) -> Self {
        let max_pages = options.max_context.div_ceil(options.page_tokens);
        let (slots, steps) = (options.max_seqs as usize, options.steps_in_flight as usize);
        let mut bytes = size_of::<abi::tg_state>();
        let mut table = |size: usize, count: usize| {
            let offset = bytes.next_multiple_of(128);
            bytes = offset + size * count;
            offset as u64
        };
        let slot_table = table(size_of::<abi::tg_slot>(), slots);
        let page_table = table(4, slots * max_pages as usize);
        let tables: Vec<[u64; 4]> = (0..steps)
            .map(|_| {
                [
                    table(size_of::<abi::tg_row>(), options.step_tokens as usize),
                    table(size_of::<abi::tg_sequence>(), slots),
                    table(4, slots),
                    table(size_of::<abi::tg_sampled>(), slots),
                ]
            })
            .collect();
        let mut block = Self {
            memory: vec![Line([0; 128]); bytes.div_ceil(128)],
        };
        // SAFETY: the block is large enough and zeros are a valid tg_state.
        let state = unsafe { &mut *block.state() };
        state.config.slots = options.max_seqs;
        state.config.steps_in_flight = options.steps_in_flight;
        state.config.page_tokens = options.page_tokens;
        state.max_pages = max_pages;
        state.slot_table = slot_table;
        state.page_table = page_table;
        for (step, [rows, sequences, samples, sampled]) in state.steps.iter_mut().zip(tables) {
            step.row_table = rows;
            step.sequence_table = sequences;
            step.sample_table = samples;
            step.sampled_table = sampled;
        }
        block
    }

    pub fn state(&mut self) -> *mut abi::tg_state {
        self.memory.as_mut_ptr().cast()
    }

    /// Entry `index` of a table.
    fn entry<T>(&mut self, offset: u64, index: usize) -> &mut T {
        let at = offset as usize + index * size_of::<T>();
        assert!(at + size_of::<T>() <= self.memory.len() * 128);
        // SAFETY: in bounds; tables are 128-byte aligned and hold integers only.
        unsafe { &mut *self.memory.as_mut_ptr().cast::<u8>().add(at).cast() }
    }

    fn head(&mut self) -> &mut abi::tg_state {
        self.entry(0, 0)
    }

    pub fn admit(&mut self, slot: u32, request: u64, job: &Job, pages: &[u32]) {
        let (slots, table) = (self.head().slot_table, self.head().page_table);
        let columns = self.head().max_pages as usize;
        *self.entry(slots, slot as usize) = abi::tg_slot {
            request,
            flags: job.flags,
            last_token: -1,
            prompt_tokens: job.prompt.len() as u32,
            sampling: job.sampling,
            ..Default::default()
        };
        for column in 0..columns {
            // What lies past the sequence's own pages must never be read.
            *self.entry(table, slot as usize * columns + column) =
                pages.get(column).copied().unwrap_or(u32::MAX);
        }
    }

    pub fn set_last_token(&mut self, slot: u32, token: i32) {
        let slots = self.head().slot_table;
        self.entry::<abi::tg_slot>(slots, slot as usize).last_token = token;
    }

    pub fn write(&mut self, number: u64, composed: &Composed) {
        let place = self.place(number);
        let step = &mut self.head().steps[place];
        step.number = number;
        step.kind = composed.kind;
        step.rows = composed.rows.len() as u32;
        step.sequences = composed.sequences.len() as u32;
        step.sample_rows = composed.sample_rows.len() as u32;
        let (rows, sequences, samples) = (step.row_table, step.sequence_table, step.sample_table);
        for (index, &row) in composed.rows.iter().enumerate() {
            *self.entry(rows, index) = row;
        }
        for (index, &sequence) in composed.sequences.iter().enumerate() {
            *self.entry(sequences, index) = sequence;
        }
        for (index, &row) in composed.sample_rows.iter().enumerate() {
            *self.entry(samples, index) = row;
        }
    }

    fn place(&mut self, number: u64) -> usize {
        (number % u64::from(self.head().config.steps_in_flight)) as usize
    }

    pub fn sampled(&mut self, number: u64, index: usize) -> abi::tg_sampled {
        let place = self.place(number);
        let table = self.head().steps[place].sampled_table;
        *self.entry(table, index)
    }
}
