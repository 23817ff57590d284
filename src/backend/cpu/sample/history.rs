//! What sampling knows of a sequence beside its logits.

use crate::sys::abi;

/// A row's sequence, as far as its tokens are known.
#[derive(Debug, Clone, Copy, Default)]
pub struct History<'a> {
    /// A bit for each id that it holds; read where there is a repetition penalty
    pub seen: &'a [u32],
    /// `[V]`: how often each id stands in the answer; read where there is a presence or frequency penalty
    pub counts: &'a [u16],
    pub biases: &'a [abi::tg_bias],
    pub stop_ids: &'a [i32],
}

/// Token ids that a slot's sequence holds so far; behind the slots, those of shared prefixes.
pub struct SeenTokens {
    /// `[places, words]`, a bit per id
    bits: Vec<u32>,
    words: usize,
}

impl SeenTokens {
    pub fn new(places: usize, vocab_size: usize) -> Self {
        let words = vocab_size.div_ceil(32);
        Self {
            bits: vec![0; places * words],
            words,
        }
    }

    /// Gives one place the ids of another.
    pub fn copy(&mut self, from: usize, to: usize) {
        let words = self.words;
        let from = from * words..(from + 1) * words;
        self.bits.copy_within(from, to * words);
    }

    pub fn clear(&mut self, slot: u32) {
        self.bits[slot as usize * self.words..][..self.words].fill(0);
    }

    pub fn insert(&mut self, slot: u32, token: u32) {
        self.bits[slot as usize * self.words + token as usize / 32] |= 1 << (token % 32);
    }

    /// The slot's bits.
    pub fn of(&self, slot: u32) -> &[u32] {
        &self.bits[slot as usize * self.words..][..self.words]
    }
}

/// How often each token stands in the answer of a slot's sequence so far. Kept for slots that ask
/// ([`counts_answer`]) alone: memory that nobody touches is none.
pub struct AnswerCounts {
    /// `[slots, V]`; none goes past 65535
    counts: Vec<u16>,
    vocab_size: usize,
}

impl AnswerCounts {
    pub fn new(slots: usize, vocab_size: usize) -> Self {
        Self {
            counts: vec![0; slots * vocab_size],
            vocab_size,
        }
    }

    pub fn clear(&mut self, slot: u32) {
        self.counts[slot as usize * self.vocab_size..][..self.vocab_size].fill(0);
    }

    pub fn add(&mut self, slot: u32, token: u32) {
        let count = &mut self.counts[slot as usize * self.vocab_size + token as usize];
        *count = count.saturating_add(1);
    }

    /// The slot's counts.
    pub fn of(&self, slot: u32) -> &[u16] {
        &self.counts[slot as usize * self.vocab_size..][..self.vocab_size]
    }
}

/// Whether sampling reads how often tokens stand in the answer.
pub fn counts_answer(sampling: &abi::tg_sampling) -> bool {
    f32::from_bits(sampling.presence_penalty) != 0.0
        || f32::from_bits(sampling.frequency_penalty) != 0.0
}
