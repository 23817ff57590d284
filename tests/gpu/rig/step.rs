//! A step to run kernels for, as a test says it and in the GPU's memory.

use crate::common::random::Random;
use crate::support::{Gpu, append, bytes};
use tailgraph::backend::cuda::driver::Address;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::sys::abi;

/// Consecutive rows of one slot.
#[derive(Debug, Clone)]
pub struct Chunk {
    pub slot: u32,
    pub first_position: u32,
    pub tokens: Vec<i32>,
    /// The last row is sampled.
    pub sampled: bool,
}

/// A step and the slots behind it.
#[derive(Debug, Clone, Default)]
pub struct Step {
    pub slots: Vec<abi::tg_slot>,
    pub page_tokens: u32,
    pub max_pages: u32,
    /// `[slots, max_pages]`
    pub pages: Vec<u32>,
    /// The biases of each slot; slots past the end have none.
    pub biases: Vec<Vec<abi::tg_bias>>,
    pub chunks: Vec<Chunk>,
    /// What some chunks share, in sequences that say nothing else, beside their index.
    pub shared: Vec<(usize, abi::tg_sequence)>,
}

/// A step in the GPU's memory.
pub struct StepOnGpu {
    pub block: Buffer,
    sampled_table: usize,
    pub rows: usize,
    pub sampled: usize,
}

impl Step {
    /// `slots` slots that hold up to `tokens` tokens each, in pages of `page_tokens` dealt at random.
    pub fn with_slots(random: &mut Random, slots: usize, tokens: u32, page_tokens: u32) -> Self {
        let max_pages = tokens.div_ceil(page_tokens);
        let mut pages: Vec<u32> = (0..slots as u32 * max_pages).collect();
        for i in (1..pages.len()).rev() {
            pages.swap(i, random.below(i + 1));
        }
        Self {
            slots: vec![abi::tg_slot::default(); slots],
            page_tokens,
            max_pages,
            pages,
            biases: Vec::new(),
            chunks: Vec::new(),
            shared: Vec::new(),
        }
    }

    pub fn chunk(&mut self, slot: usize, first_position: u32, rows: usize) {
        self.chunks.push(Chunk {
            slot: slot as u32,
            first_position,
            tokens: vec![0; rows],
            sampled: false,
        });
    }

    /// Rows of which nothing matters but that they are there.
    pub fn of_rows(rows: usize) -> Self {
        let mut step = Self::with_slots(&mut Random(0), 1, rows as u32, 1);
        step.chunk(0, 0, rows);
        step
    }

    /// (slot, position) of each row.
    pub fn rows(&self) -> Vec<(usize, usize)> {
        let rows = self.chunks.iter().flat_map(|chunk| {
            let first = chunk.first_position as usize;
            (0..chunk.tokens.len()).map(move |i| (chunk.slot as usize, first + i))
        });
        rows.collect()
    }

    /// Which vector of the pool, of one kv head of so many, a slot's position has.
    pub fn vector(&self, slot: usize, position: usize, kv_head: usize, kv_heads: usize) -> usize {
        let page_tokens = self.page_tokens as usize;
        let page = self.pages[slot * self.max_pages as usize + position / page_tokens];
        (page as usize * kv_heads + kv_head) * page_tokens + position % page_tokens
    }

    pub fn upload(&self, gpu: &Gpu) -> StepOnGpu {
        let mut rows = Vec::new();
        let mut sequences = Vec::new();
        let mut samples: Vec<u32> = Vec::new();
        for (index, chunk) in self.chunks.iter().enumerate() {
            let first_row = rows.len() as u32;
            for (i, &token) in chunk.tokens.iter().enumerate() {
                rows.push(abi::tg_row {
                    slot: chunk.slot,
                    position: chunk.first_position + i as u32,
                    token,
                    sequence: index as u32,
                });
            }
            let first = match (chunk.first_position, chunk.tokens.len()) {
                (0, _) => abi::TG_SEQUENCE_FIRST,
                (_, 1) => abi::TG_SEQUENCE_DECODE,
                _ => 0,
            };
            let shared = self.shared.iter().find(|(of, _)| *of == index);
            let shared = shared.map_or(abi::tg_sequence::UNSHARED, |(_, shared)| *shared);
            sequences.push(abi::tg_sequence {
                slot: chunk.slot,
                first_row,
                rows: chunk.tokens.len() as u32,
                first_position: chunk.first_position,
                sample: if chunk.sampled {
                    samples.len() as u32
                } else {
                    u32::MAX
                },
                flags: shared.flags | first | (u32::from(chunk.sampled) * abi::TG_SEQUENCE_LAST),
                ..shared
            });
            if chunk.sampled {
                samples.push(rows.len() as u32 - 1);
            }
        }
        let mut block = vec![0; size_of::<abi::tg_state>()];
        let bias_capacity = self.biases.iter().map(Vec::len).max().unwrap_or(0);
        let mut biases = vec![abi::tg_bias::default(); self.slots.len() * bias_capacity];
        for (slot, own) in self.biases.iter().enumerate() {
            biases[slot * bias_capacity..][..own.len()].copy_from_slice(own);
        }
        let mut state = abi::tg_state {
            slot_table: append(&mut block, &self.slots),
            bias_table: append(&mut block, &biases),
            page_table: append(&mut block, &self.pages),
            max_pages: self.max_pages,
            ..abi::tg_state::default()
        };
        state.config.slots = self.slots.len() as u32;
        state.config.bias_capacity = bias_capacity as u32;
        state.config.page_tokens = self.page_tokens;
        state.config.steps_in_flight = 1;
        let sampled = vec![abi::tg_sampled::default(); samples.len()];
        let sampled_table = append(&mut block, &sampled);
        state.steps[0] = abi::tg_step {
            rows: rows.len() as u32,
            sequences: sequences.len() as u32,
            sample_rows: samples.len() as u32,
            shares: self.shared.len() as u32,
            row_table: append(&mut block, &rows),
            sequence_table: append(&mut block, &sequences),
            sample_table: append(&mut block, &samples),
            sampled_table,
            ..abi::tg_step::default()
        };
        block[..size_of::<abi::tg_state>()].copy_from_slice(bytes(&[state]));
        StepOnGpu {
            block: gpu.put(&block),
            sampled_table: sampled_table as usize,
            rows: rows.len(),
            sampled: samples.len(),
        }
    }
}

impl StepOnGpu {
    /// What sampling left behind.
    pub fn sampled(&self, gpu: &Gpu) -> Vec<abi::tg_sampled> {
        let mut sampled = vec![abi::tg_sampled::default(); self.sampled];
        let bytes = size_of_val(&sampled[..]);
        // SAFETY: plain integers throughout: any bytes are valid, and all are written.
        let view =
            unsafe { std::slice::from_raw_parts_mut(sampled.as_mut_ptr().cast::<u8>(), bytes) };
        self.block
            .read(&gpu.stream, self.sampled_table, view)
            .unwrap();
        sampled
    }

    pub fn step(&self) -> Address {
        self.block.at(std::mem::offset_of!(abi::tg_state, steps))
    }
}
