//! From logits to a token.
//!
//! In this order; 2 and 4 to 7 as transformers' logits processor of that name defines it, 1 and 3 as the OpenAI format:
//! 1. biases: l + bias. Stop ids before position `stop_from` are out: l is -infinity, whatever is done to it
//! 2. repetition penalty p over all ids of the sequence so far: l < 0 ? l * p : l / p
//! 3. presence and frequency penalty of an id that stands n > 0 times in the answer: l - (presence + frequency n)
//! 4. temperature t: l / t. Temperature 0 is greedy: the largest l, ties to the lower id; nothing below applies
//! 5. top-k: keeps l >= the k-th largest (so all that tie with it)
//! 6. top-p: in ascending order of l (ties: higher id first), removes while the running sum of the softmax of
//!    what is left so far is <= 1 - top_p; the last one stays
//! 7. min-p: removes softmax(l) < min_p * max softmax, which is exp(l - max l) < min_p
//!
//! Then the Gumbel-max rule draws from the softmax of the survivors: the largest l + g, ties to the lower id,
//! with g = -ln(-ln u), u = ((word >> 8) + 0.5) 2^-24, word = element (id mod 4) of
//! Philox4x32-10(counter = (id / 4, position of the new token, "samp", 0), key = the row's sampling key, low
//! half first). So a draw depends on the key, the position and the logits, never on slot or order.
//!
//! Each operation up to 4 rounds to f32; exponentials, their sums, u and g are f64.

mod history;

pub use history::{AnswerCounts, History, SeenTokens, counts_answer};

use crate::model::philox::philox4x32_10;
use crate::sys::abi;

/// "samp": keeps these draws apart from every other use of the generator.
const STREAM: u32 = 0x7361_6d70;

/// Scratch for one row at a time.
pub struct Sampler {
    /// `[V]`: logits after biases, penalties and temperature
    scores: Vec<f32>,
    /// Ids still in.
    survivors: Vec<u32>,
    ranked: Vec<f32>,
}

impl Sampler {
    pub fn new(vocab_size: usize) -> Self {
        Self {
            scores: vec![0.0; vocab_size],
            survivors: Vec::with_capacity(vocab_size),
            ranked: Vec::with_capacity(vocab_size),
        }
    }

    /// The token (and log-probabilities) for `logits` `[V]`; `position` is where the new token will stand. The
    /// token is -1 where a logit is not finite: nothing can be said about the distribution then.
    pub fn run(
        &mut self,
        logits: &[f32],
        history: History<'_>,
        sampling: &abi::tg_sampling,
        position: u32,
    ) -> abi::tg_sampled {
        if !logits.iter().all(|l| l.is_finite()) {
            return abi::tg_sampled {
                token: -1,
                ..Default::default()
            };
        }
        let token = self.token(logits, history, sampling, position);
        let mut sampled = abi::tg_sampled {
            token: token as i32,
            ..Default::default()
        };
        if sampling.logprobs != abi::TG_LOGPROBS_NONE {
            self.logprobs(logits, token, sampling.logprobs as usize, &mut sampled);
        }
        sampled
    }

    fn token(
        &mut self,
        logits: &[f32],
        history: History<'_>,
        sampling: &abi::tg_sampling,
        position: u32,
    ) -> u32 {
        self.scores.copy_from_slice(logits);
        self.alter(history, sampling, position);
        let temperature = f32::from_bits(sampling.temperature);
        if temperature == 0.0 {
            return argmax(&self.scores);
        }
        self.scores
            .iter_mut()
            .for_each(|score| *score /= temperature);
        self.survivors.clear();
        self.survivors.extend(0..self.scores.len() as u32);
        self.keep_top_k(sampling.top_k as usize);
        self.keep_top_p(f32::from_bits(sampling.top_p));
        self.keep_min_p(f32::from_bits(sampling.min_p));
        self.draw(sampling.key, position)
    }

    /// All that comes before the temperature.
    fn alter(&mut self, history: History<'_>, sampling: &abi::tg_sampling, position: u32) {
        let scores = &mut self.scores;
        // An id past the vocabulary has no logit.
        for entry in history.biases {
            if let Some(score) = scores.get_mut(entry.id as usize) {
                *score += f32::from_bits(entry.bias);
            }
        }
        penalize(
            scores,
            history.seen,
            f32::from_bits(sampling.repetition_penalty),
        );
        if counts_answer(sampling) {
            let presence = f32::from_bits(sampling.presence_penalty);
            let frequency = f32::from_bits(sampling.frequency_penalty);
            for (score, &count) in scores.iter_mut().zip(history.counts) {
                if count > 0 {
                    *score -= presence + frequency * f32::from(count);
                }
            }
        }
        if position < sampling.stop_from {
            for &id in history.stop_ids {
                if let Some(score) = scores.get_mut(id as usize) {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
    }

    fn keep_top_k(&mut self, k: usize) {
        if k == 0 || k >= self.survivors.len() {
            return;
        }
        self.ranked.clone_from(&self.scores);
        let (_, &mut kth, _) = self
            .ranked
            .select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        let scores = &self.scores;
        self.survivors.retain(|&id| scores[id as usize] >= kth);
    }

    fn keep_top_p(&mut self, top_p: f32) {
        if top_p >= 1.0 {
            return;
        }
        let scores = &self.scores;
        let score = |id: u32| scores[id as usize];
        self.survivors
            .sort_unstable_by(|&a, &b| score(a).total_cmp(&score(b)).then(b.cmp(&a)));
        let Some(&best) = self.survivors.last() else {
            return;
        };
        let weight = |id: u32| f64::from(score(id) - score(best)).exp();
        let sum: f64 = self.survivors.iter().map(|&id| weight(id)).sum();
        let removable = (1.0 - f64::from(top_p)) * sum;
        let mut running = 0.0;
        let removed = self
            .survivors
            .iter()
            .take_while(|&&id| {
                running += weight(id);
                running <= removable
            })
            .count()
            .min(self.survivors.len() - 1);
        self.survivors.drain(..removed);
    }

    fn keep_min_p(&mut self, min_p: f32) {
        if min_p <= 0.0 {
            return;
        }
        let scores = &self.scores;
        let max = self
            .survivors
            .iter()
            .map(|&id| scores[id as usize])
            .fold(f32::NEG_INFINITY, f32::max);
        self.survivors.retain(|&id| {
            let score = scores[id as usize];
            score == max || f64::from(score - max).exp() >= f64::from(min_p)
        });
    }

    fn draw(&self, key: u64, position: u32) -> u32 {
        let key = [key as u32, (key >> 32) as u32];
        let mut best = (f64::NEG_INFINITY, u32::MAX);
        let mut block = (u32::MAX, [0; 4]);
        for &id in &self.survivors {
            if block.0 != id / 4 {
                block = (id / 4, philox4x32_10([id / 4, position, STREAM, 0], key));
            }
            let value = f64::from(self.scores[id as usize]) + gumbel(block.1[id as usize % 4]);
            if value > best.0 || (value == best.0 && id < best.1) {
                best = (value, id);
            }
        }
        best.1
    }

    /// Log-softmax of the raw logits at `token` and at the `count` best ids, best first, ties to the lower id.
    fn logprobs(
        &mut self,
        logits: &[f32],
        token: u32,
        count: usize,
        sampled: &mut abi::tg_sampled,
    ) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
        let logprob = |id: u32| {
            let shifted = f64::from(logits[id as usize]) - f64::from(max);
            ((shifted - sum.ln()) as f32).to_bits()
        };
        sampled.logprob = logprob(token);
        let count = count.min(logits.len()).min(sampled.top_ids.len());
        if count == 0 {
            return;
        }
        let better = |&a: &u32, &b: &u32| {
            logits[b as usize]
                .total_cmp(&logits[a as usize])
                .then(a.cmp(&b))
        };
        self.survivors.clear();
        self.survivors.extend(0..logits.len() as u32);
        self.survivors.select_nth_unstable_by(count - 1, better);
        self.survivors.truncate(count);
        self.survivors.sort_unstable_by(better);
        for (index, &id) in self.survivors.iter().enumerate() {
            sampled.top_ids[index] = id as i32;
            sampled.top_logprobs[index] = logprob(id);
        }
    }
}

fn penalize(scores: &mut [f32], seen: &[u32], penalty: f32) {
    if penalty == 1.0 {
        return;
    }
    for (word, &bits) in seen.iter().enumerate() {
        let mut bits = bits;
        while bits != 0 {
            let score = &mut scores[word * 32 + bits.trailing_zeros() as usize];
            *score = if *score < 0.0 {
                *score * penalty
            } else {
                *score / penalty
            };
            bits &= bits - 1;
        }
    }
}

/// The largest, ties to the lower index.
fn argmax(scores: &[f32]) -> u32 {
    let mut best = 0;
    for (id, score) in scores.iter().enumerate() {
        if *score > scores[best] {
            best = id;
        }
    }
    best as u32
}

/// -ln(-ln u), u in (0, 1) from the upper 24 bits.
fn gumbel(word: u32) -> f64 {
    let u = (f64::from(word >> 8) + 0.5) / f64::from(1 << 24);
    -(-u.ln()).ln()
}

#[cfg(test)]
mod tests;
