//! Causal attention over a sequence's pages.

use super::batch::Batch;
use super::kv::KvPool;
use super::lanes::Isa;
use super::rope::HeadShape;
use rayon::prelude::*;

/// x = softmax(q k^T / sqrt(head_dim)) v for every row over positions 0 ..= its own: `qkv` is
/// `[rows, (heads + 2 kv_heads) head_dim]` after norm and rotation, x `[rows, heads head_dim]`.
pub fn attention(
    isa: Isa,
    batch: &Batch<'_>,
    shape: HeadShape,
    qkv: &[f32],
    kv: &KvPool,
    layer: usize,
    x: &mut [f32],
) {
    // Query heads that share a key-value head.
    let group = shape.heads / shape.kv_heads;
    x.par_chunks_mut(group * shape.head_dim)
        .enumerate()
        .for_each_init(Vec::new, |scores, (index, x)| {
            let (row, kv_head) = (index / shape.kv_heads, index % shape.kv_heads);
            let q = &qkv[row * shape.qkv() + kv_head * group * shape.head_dim..];
            let of = Context {
                kv,
                layer,
                table: batch.pages[batch.rows[row].sequence as usize],
                tokens: batch.rows[row].position as usize + 1,
                kv_head,
                shape,
            };
            for (q, x) in q.chunks(shape.head_dim).zip(x.chunks_mut(shape.head_dim)) {
                of.attend(isa, q, scores, x);
            }
        });
}

/// The keys and values that one row sees through one key-value head.
struct Context<'a> {
    kv: &'a KvPool,
    layer: usize,
    table: &'a [u32],
    tokens: usize,
    kv_head: usize,
    shape: HeadShape,
}

impl<'a> Context<'a> {
    /// Key and value `[head_dim]` of every position, ascending.
    fn positions(&self) -> impl Iterator<Item = (&'a [f32], &'a [f32])> {
        let (head_dim, stride) = (self.shape.head_dim, self.shape.kv());
        let start = self.kv_head * head_dim;
        let (kv, layer) = (self.kv, self.layer);
        self.table
            .iter()
            .flat_map(move |&page| {
                let (keys, values) = kv.page(layer, page);
                keys.chunks(stride).zip(values.chunks(stride))
            })
            .map(move |(key, value)| {
                (
                    &key[start..start + head_dim],
                    &value[start..start + head_dim],
                )
            })
            .take(self.tokens)
    }

    /// Two passes in ascending position: scores and their maximum; then exponentials, their sum (in f64) and
    /// the weighted values, divided by the sum at the end.
    fn attend(&self, isa: Isa, q: &[f32], scores: &mut Vec<f32>, x: &mut [f32]) {
        let scale = 1.0 / (self.shape.head_dim as f32).sqrt();
        scores.clear();
        scores.extend(self.positions().map(|(key, _)| isa.dot(q, key) * scale));
        let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let mut sum = 0.0f64;
        x.fill(0.0);
        for (score, (_, value)) in scores.iter().zip(self.positions()) {
            let weight = (score - max).exp();
            sum += f64::from(weight);
            for (x, value) in x.iter_mut().zip(value) {
                *x += weight * value;
            }
        }
        let sum = sum as f32;
        for x in x {
            *x /= sum;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::check::{Numbers, Sequences, assert_close};
    use crate::backend::cpu::rope::{QkWeights, qk_norm_rope};
    use crate::model::rotary::inverse_frequencies;

    const THETA: f64 = 1e6;
    const EPS: f32 = 1e-5;

    fn norm_rope(head: &[f32], weight: &[f32], position: usize) -> Vec<f64> {
        let head: Vec<f64> = head.iter().map(|&v| f64::from(v)).collect();
        let size = head.len();
        let mean = head.iter().map(|v| v * v).sum::<f64>() / size as f64;
        let normed: Vec<f64> = head
            .iter()
            .zip(weight)
            .map(|(v, &w)| v / (mean + f64::from(EPS)).sqrt() * f64::from(w))
            .collect();
        (0..size)
            .map(|i| {
                let pair = i % (size / 2);
                let angle = position as f64 / THETA.powf(2.0 * pair as f64 / size as f64);
                let other = if i < size / 2 {
                    -normed[i + size / 2]
                } else {
                    normed[i - size / 2]
                };
                normed[i] * angle.cos() + other * angle.sin()
            })
            .collect()
    }

    /// Norm, rotation and attention of a whole sequence in f64: `qkv` is `[tokens, (heads + 2 kv) D]`.
    fn naive(qkv: &[f32], q_norm: &[f32], k_norm: &[f32], shape: HeadShape) -> Vec<f64> {
        let size = shape.head_dim;
        let rows: Vec<_> = qkv.chunks(shape.qkv()).collect();
        let head = |row: usize, head: usize| &rows[row][head * size..][..size];
        let mut out = Vec::new();
        for t in 0..rows.len() {
            for h in 0..shape.heads {
                let q = norm_rope(head(t, h), q_norm, t);
                let kv_head = h * shape.kv_heads / shape.heads;
                let scores: Vec<f64> = (0..=t)
                    .map(|p| {
                        let k = norm_rope(head(p, shape.heads + kv_head), k_norm, p);
                        let dot: f64 = q.iter().zip(&k).map(|(a, b)| a * b).sum();
                        dot / (size as f64).sqrt()
                    })
                    .collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                for d in 0..size {
                    let value =
                        |p: usize| f64::from(head(p, shape.heads + shape.kv_heads + kv_head)[d]);
                    out.push(
                        (0..=t)
                            .map(|p| (scores[p] - max).exp() / sum * value(p))
                            .sum(),
                    );
                }
            }
        }
        out
    }

    #[test]
    fn chunked_attention_over_scattered_pages_is_the_formula_in_f64() {
        let mut numbers = Numbers::new(8);
        for (heads, kv_heads, head_dim, page_tokens) in [
            (4, 1, 64, 16),
            (4, 2, 128, 5),
            (3, 3, 10, 1),
            (6, 2, 64, 64),
        ] {
            let shape = HeadShape {
                heads,
                kv_heads,
                head_dim,
            };
            let tokens = 41usize;
            let pages: Vec<u32> = (0..tokens.div_ceil(page_tokens) as u32)
                .map(|p| p * 2 + 1)
                .rev()
                .collect();
            let mut kv = KvPool::new(2, 2 * pages.len() + 1, page_tokens, shape.kv());
            let (q_norm, k_norm) = (numbers.normal(head_dim), numbers.normal(head_dim));
            let qkv = numbers.normal(tokens * shape.qkv());
            let frequencies = inverse_frequencies(THETA, head_dim);
            let weights = QkWeights {
                q_norm: &q_norm,
                k_norm: &k_norm,
                eps: EPS,
                inverse_frequencies: &frequencies,
            };
            let mut found = Vec::new();
            for (start, end) in [(0, 7), (7, 8), (8, 40), (40, 41)] {
                let rows = (end - start) as u32;
                let sequences = Sequences::new(&[(0, start as u32, rows, &pages)]);
                let batch = sequences.batch();
                let mut qkv = qkv[start * shape.qkv()..end * shape.qkv()].to_vec();
                let mut x = vec![0.0; rows as usize * shape.q()];
                let isa = Isa::detect();
                qk_norm_rope(isa, &batch, &weights, shape, &mut qkv, &mut kv, 1);
                attention(isa, &batch, shape, &qkv, &kv, 1, &mut x);
                found.extend(x);
            }
            assert_close(&found, &naive(&qkv, &q_norm, &k_norm, shape), 2e-6);
        }
    }
}
