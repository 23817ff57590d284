//! An attention layer on the GPU beside the same in f64.

use crate::common::random::Random;
use crate::rig::{
    Rig, Step, StepOnGpu, assert_close, assert_same_bits, config, decode, encode, operand, rounded,
    rounding,
};
use crate::support::Gpu;
use rayon::prelude::*;
use std::sync::atomic::{AtomicU32, Ordering};
use tailgraph::backend::cuda::families::attention::KeySplit;
use tailgraph::backend::cuda::families::attention::{Attention, PagePool, most_query_tiles};
use tailgraph::backend::cuda::memory::arena::QUERY_TILE_BYTES;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::model::{DType, ModelConfig};
use tailgraph::plan::StepKind;

pub struct Layer<'g> {
    pub rig: Rig<'g>,
    pub q_norm: Vec<f32>,
    pub k_norm: Vec<f32>,
    pub inverse_frequencies: Vec<f32>,
    /// Most rows of a query tile of the last run, where it had a list of tiles.
    pub tile_rows: AtomicU32,
}

/// A step's arrays, before or after.
pub struct Arrays {
    /// `[bucket, (heads + 2 kv_heads) D]`
    pub qkv: Vec<f32>,
    /// `[pages, kv_heads, page_tokens, D]`
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

impl<'g> Layer<'g> {
    pub fn new(
        gpu: &'g Gpu,
        random: &mut Random,
        dtype: DType,
        shape: (usize, usize, usize),
    ) -> Self {
        let (heads, kv_heads, head_dim) = shape;
        let config = ModelConfig {
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            head_dim,
            hidden_size: 32,
            ..config()
        };
        let norm = |random: &mut Random| {
            let values = random.values(head_dim, 0.5);
            values.iter().map(|v| 1.0 + v).collect()
        };
        Self {
            q_norm: norm(random),
            k_norm: norm(random),
            inverse_frequencies: (0..head_dim / 2)
                .map(|i| 1.0 / 1e6_f64.powf(2.0 * i as f64 / head_dim as f64) as f32)
                .collect(),
            tile_rows: AtomicU32::new(0),
            rig: Rig::new(gpu, config, operand(dtype)),
        }
    }

    pub fn dtype(&self) -> DType {
        self.rig.kernels.precision.compute
    }

    pub fn shape(&self) -> (usize, usize, usize) {
        let config = &self.rig.config;
        (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
    }

    pub fn width(&self) -> usize {
        let (heads, kv_heads, d) = self.shape();
        (heads + 2 * kv_heads) * d
    }

    /// Random projections, and pages that hold random vectors for the positions before each chunk and poison
    /// everywhere else.
    pub fn arrays(&self, random: &mut Random, step: &Step, bucket: usize) -> Arrays {
        let (_, kv_heads, d) = self.shape();
        let pool = step.pages.len() * step.page_tokens as usize * kv_heads * d;
        let mut arrays = Arrays {
            qkv: random.values(step.rows().len() * self.width(), 2.0),
            k: vec![f32::NAN; pool],
            v: vec![f32::NAN; pool],
        };
        arrays.qkv.resize(bucket * self.width(), f32::NAN);
        for chunk in &step.chunks {
            for position in 0..chunk.first_position as usize {
                for kv_head in 0..kv_heads {
                    let at = d * step.vector(chunk.slot as usize, position, kv_head, kv_heads);
                    arrays.k[at..at + d].copy_from_slice(&random.values(d, 2.0));
                    arrays.v[at..at + d].copy_from_slice(&random.values(d, 2.0));
                }
            }
        }
        for values in [&mut arrays.qkv, &mut arrays.k, &mut arrays.v] {
            *values = rounded(self.dtype(), values);
        }
        arrays
    }

    /// The arrays as qk_norm_rope leaves them, and attention's output where it is wanted.
    pub fn run(
        &self,
        step: &Step,
        before: &Arrays,
        kind: StepKind,
        attend: bool,
    ) -> (Arrays, Vec<f32>) {
        self.run_either(step, before, kind, attend, false)
    }

    /// `fused`: both in one kernel, which leaves qkv as it is.
    pub fn run_either(
        &self,
        step: &Step,
        before: &Arrays,
        kind: StepKind,
        attend: bool,
        fused: bool,
    ) -> (Arrays, Vec<f32>) {
        let gpu = self.rig.gpu;
        let (heads, kv_heads, d) = self.shape();
        let on_gpu: StepOnGpu = step.upload(gpu);
        let bucket = before.qkv.len() / self.width();
        let put = |values: &[f32]| gpu.put(&encode(self.dtype(), values));
        let [qkv, k, v] = [&before.qkv, &before.k, &before.v].map(|values| put(values));
        let x = gpu.poisoned(bucket * heads * d * self.dtype().bytes());
        let f32s = |values: &[f32]| gpu.values(DType::F32, values);
        let (q_norm, k_norm) = (f32s(&self.q_norm), f32s(&self.k_norm));
        let frequencies = f32s(&self.inverse_frequencies);
        let most = most_query_tiles(bucket as u32, bucket as u32, heads as u32, kv_heads as u32);
        let tiles = gpu.poisoned(most as usize * QUERY_TILE_BYTES);
        let tile_count = gpu.poisoned(8);
        let max_context = step.max_pages * step.page_tokens;
        let pieces = KeySplit::most_pieces(bucket as u32, max_context) as usize;
        let partials = gpu.poisoned((pieces * heads * (d + 2) * 4).max(4));
        let done = gpu.put(&vec![0; bucket * heads * 4]);
        let attention = Attention {
            x: x.at(0),
            qkv: qkv.at(0),
            k_pages: k.at(0),
            v_pages: v.at(0),
            q_norm: q_norm.at(0),
            k_norm: k_norm.at(0),
            inverse_frequencies: frequencies.at(0),
            query_tiles: tiles.at(0),
            query_tile_count: tile_count.at(0),
            partials: partials.at(0),
            done: done.at(0),
            max_context,
            pool: PagePool {
                pages: step.pages.len() as u32,
                page_tokens: step.page_tokens,
            },
        };
        let enqueue = self.rig.enqueue(&on_gpu, kind, bucket);
        // SAFETY: the arrays have the shapes that `Attention` asks for.
        unsafe {
            enqueue.run(|to| {
                if fused {
                    to.attention_decode(&attention);
                } else {
                    to.qk_norm_rope(&attention);
                    if attend {
                        to.attention(&attention);
                    }
                }
            });
        }
        assert!(gpu.get_u32(&done).iter().all(|&done| done == 0));
        let listed = gpu.get_u32(&tile_count)[1];
        self.tile_rows.store(listed, Ordering::Relaxed);
        let get = |buffer: &Buffer| decode(self.dtype(), &gpu.get(buffer));
        let after = Arrays {
            qkv: get(&qkv),
            k: get(&k),
            v: get(&v),
        };
        (after, get(&x))
    }

    /// A head of q or k, normed and rotated.
    pub fn normed_and_rotated(&self, head: &[f32], weight: &[f32], position: usize) -> Vec<f64> {
        let d = head.len();
        let squares: f64 = head.iter().map(|&v| f64::from(v).powi(2)).sum();
        let scale = 1.0 / (squares / d as f64 + f64::from(self.rig.config.norm_eps)).sqrt();
        let normed: Vec<f64> = head
            .iter()
            .zip(weight)
            .map(|(&v, &w)| f64::from(v) * scale * f64::from(w))
            .collect();
        (0..d)
            .map(|i| {
                let pair = i % (d / 2);
                // The product rounds to f32, by definition.
                let angle = f64::from(self.inverse_frequencies[pair] * position as f32);
                let (sin, cos) = angle.sin_cos();
                if i < d / 2 {
                    normed[i] * cos - normed[i + d / 2] * sin
                } else {
                    normed[i] * cos + normed[pair] * sin
                }
            })
            .collect()
    }

    pub fn check_rope(&self, step: &Step, before: &Arrays, after: &Arrays) {
        let (heads, kv_heads, d) = self.shape();
        let mut pool = (before.k.clone(), before.v.clone());
        for (r, (slot, position)) in step.rows().into_iter().enumerate() {
            let row = &before.qkv[r * self.width()..][..self.width()];
            let at = |kv_head| d * step.vector(slot, position, kv_head, kv_heads);
            for head in 0..heads + kv_heads {
                let (weight, found) = if head < heads {
                    (&self.q_norm, &after.qkv[r * self.width() + head * d..][..d])
                } else {
                    (&self.k_norm, &after.k[at(head - heads)..][..d])
                };
                let expected = self.normed_and_rotated(&row[head * d..][..d], weight, position);
                let what = format!("{:?} position {position} head {head}", self.dtype());
                let allowed = |_, v: f64| rounding(self.dtype()) * v.abs() + 3e-6;
                assert_close(&what, found, &expected, allowed);
            }
            for kv_head in 0..kv_heads {
                let (at, v) = (at(kv_head), &row[(heads + kv_heads + kv_head) * d..][..d]);
                pool.1[at..at + d].copy_from_slice(v);
                pool.0[at..at + d].copy_from_slice(&after.k[at..at + d]);
            }
        }
        assert_same_bits("v pages, and nothing else written", &after.v, &pool.1);
        assert_same_bits("k pages, and nothing else written", &after.k, &pool.0);
    }

    /// x of one row and head from what attention reads.
    pub fn expected(&self, step: &Step, arrays: &Arrays, r: usize, head: usize) -> Vec<f64> {
        let (heads, kv_heads, d) = self.shape();
        let (slot, position) = step.rows()[r];
        let q = &arrays.qkv[r * self.width() + head * d..][..d];
        let vectors = |position| {
            let at = d * step.vector(slot, position, head / (heads / kv_heads), kv_heads);
            (&arrays.k[at..][..d], &arrays.v[at..][..d])
        };
        let scores: Vec<f64> = (0..=position)
            .map(|t| {
                let products = q.iter().zip(vectors(t).0);
                let dot: f64 = products.map(|(&q, &k)| f64::from(q) * f64::from(k)).sum();
                dot / (d as f64).sqrt()
            })
            .collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let mut x = vec![0.0; d];
        for (t, score) in scores.iter().enumerate() {
            let weight = (score - max).exp() / sum;
            for (x, &v) in x.iter_mut().zip(vectors(t).1) {
                *x += weight * f64::from(v);
            }
        }
        x
    }

    pub fn check_attention(&self, step: &Step, arrays: &Arrays, x: &[f32], every: usize) {
        let (heads, _, d) = self.shape();
        let rows = step.rows().len();
        let what = format!("{:?} {:?}", self.dtype(), self.shape());
        let (written, padding) = x.split_at(rows * heads * d);
        assert!(written.iter().all(|v| v.is_finite()), "{what}: unwritten");
        assert!(
            padding.iter().all(|v| v.is_nan()),
            "{what}: padding written"
        );
        // Weights of at most 1 are rounded once in bf16 and f16, and the result once.
        let allowed = match self.dtype() {
            DType::F32 => 5e-6,
            dtype => 4.0 * rounding(dtype),
        };
        (0..rows * heads)
            .into_par_iter()
            .step_by(every)
            .for_each(|i| {
                let expected = self.expected(step, arrays, i / heads, i % heads);
                let what = format!("{what} row {} head {}", i / heads, i % heads);
                assert_close(&what, &written[i * d..][..d], &expected, |_, _| allowed);
            });
    }
}
