//! Norms and rotary positions of queries and keys.

use super::batch::Batch;
use super::kv::KvPool;
use super::lanes::Isa;
use super::norm::inverse_rms;
use crate::model::ModelConfig;
use rayon::prelude::*;

/// Heads of a row of `[q | k | v]`.
#[derive(Debug, Clone, Copy)]
pub struct HeadShape {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

impl HeadShape {
    pub fn new(config: &ModelConfig) -> Self {
        Self {
            heads: config.num_attention_heads,
            kv_heads: config.num_key_value_heads,
            head_dim: config.head_dim,
        }
    }

    /// Elements of q.
    pub fn q(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Elements of k, and of v.
    pub fn kv(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// Elements of a row: q, then k, then v.
    pub fn qkv(&self) -> usize {
        self.q() + 2 * self.kv()
    }
}

/// Rotates the halves of one head: (a, b) -> (a cos - b sin, b cos + a sin).
fn rotate(head: &mut [f32], cos_sin: &[(f32, f32)]) {
    let (first, second) = head.split_at_mut(cos_sin.len());
    for ((a, b), (cos, sin)) in first.iter_mut().zip(second).zip(cos_sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

/// What QkNormRope needs of a layer and the model.
pub struct QkWeights<'a> {
    /// `[head_dim]` each
    pub q_norm: &'a [f32],
    pub k_norm: &'a [f32],
    pub eps: f32,
    /// `[head_dim / 2]`
    pub inverse_frequencies: &'a [f32],
}

/// Norms and rotates q and k in `qkv` `[rows, (heads + 2 kv_heads) head_dim]`, then stores k and v in their
/// pages. The angle is the f32 product of position and inverse frequency; its cosine and sine are taken with
/// full range reduction.
pub fn qk_norm_rope(
    isa: Isa,
    batch: &Batch<'_>,
    weights: &QkWeights<'_>,
    shape: HeadShape,
    qkv: &mut [f32],
    kv: &mut KvPool,
    layer: usize,
) {
    qkv.par_chunks_mut(shape.qkv())
        .with_min_len(4)
        .enumerate()
        .for_each_init(Vec::new, |cos_sin, (row, qkv)| {
            let position = batch.rows[row].position as f32;
            cos_sin.clear();
            cos_sin.extend(weights.inverse_frequencies.iter().map(|frequency| {
                let angle = position * frequency;
                (angle.cos(), angle.sin())
            }));
            let (q, rest) = qkv.split_at_mut(shape.q());
            let k = &mut rest[..shape.kv()];
            for (heads, norm) in [(q, weights.q_norm), (k, weights.k_norm)] {
                for head in heads.chunks_mut(shape.head_dim) {
                    let scale = inverse_rms(isa, head, weights.eps);
                    for (value, weight) in head.iter_mut().zip(norm) {
                        *value = *value * scale * weight;
                    }
                    rotate(head, cos_sin);
                }
            }
        });
    for (row, qkv) in batch.rows.iter().zip(qkv.chunks(shape.qkv())) {
        let (key, value) = qkv[shape.q()..].split_at(shape.kv());
        let table = batch.pages[row.sequence as usize];
        kv.write(layer, table, row.position as usize, key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn far_angles_are_reduced_in_full() {
        for position in [100_000u32, 127_999, 4_000_000] {
            let angle = position as f32 * 0.9f32;
            assert!((f64::from(angle.cos()) - f64::from(angle).cos()).abs() < 1e-7);
            assert!((f64::from(angle.sin()) - f64::from(angle).sin()).abs() < 1e-7);
        }
    }

    #[test]
    fn rotation_turns_each_pair_by_its_angle() {
        let mut head = [1.0, 0.0, 0.0, 2.0];
        rotate(&mut head, &[(0.0, 1.0), (0.6, 0.8)]);
        assert_eq!(head, [0.0, -1.6, 1.0, 1.2]);
    }
}
