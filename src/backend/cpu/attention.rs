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
