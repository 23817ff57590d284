//! Queries, keys and values, and attention over pages, against f64.

use crate::common::random::Random;
use crate::rig::{
    OPERANDS, Rig, Step, StepOnGpu, assert_close, assert_same_bits, config, decode, encode,
    operand, rounded, rounding,
};
use crate::support::Gpu;
use rayon::prelude::*;
use tailgraph::backend::cuda::families::attention::{
    Attention, PagePool, QUERY_TILE_BYTES, most_query_tiles,
};
use tailgraph::backend::cuda::families::key_split::KeySplit;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::model::{DType, ModelConfig};
use tailgraph::plan::StepKind;

/// (query heads, kv heads, head_dim)
const SHAPES: [(usize, usize, usize); 6] = [
    (4, 2, 64),
    (8, 2, 128),
    (3, 1, 64),
    (2, 2, 128),
    (20, 2, 64),
    (70, 1, 64),
];

struct Layer<'g> {
    rig: Rig<'g>,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    inverse_frequencies: Vec<f32>,
}

/// A step's arrays, before or after.
struct Arrays {
    /// `[bucket, (heads + 2 kv_heads) D]`
    qkv: Vec<f32>,
    /// `[pages, kv_heads, page_tokens, D]`
    k: Vec<f32>,
    v: Vec<f32>,
}

impl<'g> Layer<'g> {
    fn new(gpu: &'g Gpu, random: &mut Random, dtype: DType, shape: (usize, usize, usize)) -> Self {
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
            rig: Rig::new(gpu, config, operand(dtype)),
        }
    }

    fn dtype(&self) -> DType {
        self.rig.kernels.types.operand
    }

    fn shape(&self) -> (usize, usize, usize) {
        let config = &self.rig.config;
        (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
    }

    fn width(&self) -> usize {
        let (heads, kv_heads, d) = self.shape();
        (heads + 2 * kv_heads) * d
    }

    /// Random projections, and pages that hold random vectors for the positions before each chunk and poison
    /// everywhere else.
    fn arrays(&self, random: &mut Random, step: &Step, bucket: usize) -> Arrays {
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
    fn run(
        &self,
        step: &Step,
        before: &Arrays,
        kind: StepKind,
        attend: bool,
    ) -> (Arrays, Vec<f32>) {
        self.run_either(step, before, kind, attend, false)
    }

    /// `fused`: both in one kernel, which leaves qkv as it is.
    fn run_either(
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
        let tile_count = gpu.poisoned(4);
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
        let get = |buffer: &Buffer| decode(self.dtype(), &gpu.get(buffer));
        let after = Arrays {
            qkv: get(&qkv),
            k: get(&k),
            v: get(&v),
        };
        (after, get(&x))
    }

    /// A head of q or k, normed and rotated.
    fn normed_and_rotated(&self, head: &[f32], weight: &[f32], position: usize) -> Vec<f64> {
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
                match i < d / 2 {
                    true => normed[i] * cos - normed[i + d / 2] * sin,
                    false => normed[i] * cos + normed[pair] * sin,
                }
            })
            .collect()
    }

    fn check_rope(&self, step: &Step, before: &Arrays, after: &Arrays) {
        let (heads, kv_heads, d) = self.shape();
        let mut pool = (before.k.clone(), before.v.clone());
        for (r, (slot, position)) in step.rows().into_iter().enumerate() {
            let row = &before.qkv[r * self.width()..][..self.width()];
            let at = |kv_head| d * step.vector(slot, position, kv_head, kv_heads);
            for head in 0..heads + kv_heads {
                let (weight, found) = match head < heads {
                    true => (&self.q_norm, &after.qkv[r * self.width() + head * d..][..d]),
                    false => (&self.k_norm, &after.k[at(head - heads)..][..d]),
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
    fn expected(&self, step: &Step, arrays: &Arrays, r: usize, head: usize) -> Vec<f64> {
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

    fn check_attention(&self, step: &Step, arrays: &Arrays, x: &[f32], every: usize) {
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

/// A step of a random chunk for each slot.
fn random_step(random: &mut Random, slots: usize, tokens: usize, longest: usize) -> Step {
    let page_tokens = [16, 64, 48][random.below(3)];
    let mut step = Step::with_slots(random, slots, tokens as u32, page_tokens);
    for slot in 0..slots {
        let rows = 1 + random.below(longest);
        let first = match random.below(3) {
            0 => 0,
            _ => random.below(tokens - rows + 1),
        };
        step.chunk(slot, first as u32, rows);
    }
    step
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn queries_and_keys_are_normed_and_rotated_and_paged() {
    let gpu = Gpu::new();
    let mut random = Random(31);
    for dtype in OPERANDS {
        for shape in SHAPES {
            let layer = Layer::new(&gpu, &mut random, dtype, shape);
            let step = random_step(&mut random, 6, 300, 40);
            let bucket = step.rows().len() + 3;
            let before = layer.arrays(&mut random, &step, bucket);
            let (after, _) = layer.run(&step, &before, StepKind::Mixed, false);
            layer.check_rope(&step, &before, &after);
        }
    }
}

/// Angles far beyond what a fast cosine reduces.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rotation_is_right_at_the_end_of_the_context() {
    let gpu = Gpu::new();
    let mut random = Random(32);
    let layer = Layer::new(&gpu, &mut random, DType::F32, (4, 2, 64));
    let mut step = Step::with_slots(&mut random, 1, 128_000, 64);
    step.chunk(0, 127_900, 100);
    let mut before = layer.arrays(&mut random, &Step::of_rows(100), 100);
    let pool = step.pages.len() * 64 * 2 * 64;
    (before.k, before.v) = (vec![0.0; pool], vec![0.0; pool]);
    let (after, _) = layer.run(&step, &before, StepKind::Mixed, false);
    layer.check_rope(&step, &before, &after);
}

/// A head whose sum of squares is past f32 is all zeros, as 1 / sqrt(inf) says, and no NaN that its neighbours would see.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_head_with_squares_past_f32_is_zero() {
    let gpu = Gpu::new();
    let mut random = Random(36);
    for dtype in [DType::F32, DType::BF16] {
        let layer = Layer::new(&gpu, &mut random, dtype, (4, 2, 64));
        let (heads, kv_heads, d) = layer.shape();
        let step = random_step(&mut random, 5, 200, 1);
        let mut before = layer.arrays(&mut random, &step, step.rows().len());
        // The second query head of each row, and its first key head.
        for row in before.qkv.chunks_mut((heads + 2 * kv_heads) * d) {
            for head in [1, heads] {
                row[head * d..][..d].fill(1e25);
            }
        }
        before.qkv = rounded(dtype, &before.qkv);
        let (after, separate) = layer.run(&step, &before, StepKind::Decode, true);
        for (r, (slot, position)) in step.rows().into_iter().enumerate() {
            let query = &after.qkv[r * layer.width() + d..][..d];
            assert!(query.iter().all(|&v| v == 0.0), "{dtype:?}: {query:?}");
            let key = &after.k[d * step.vector(slot, position, 0, kv_heads)..][..d];
            assert!(key.iter().all(|&v| v == 0.0), "{dtype:?}: {key:?}");
        }
        let (fused, x) = layer.run_either(&step, &before, StepKind::Decode, true, true);
        for (r, (slot, position)) in step.rows().into_iter().enumerate() {
            let key = &fused.k[d * step.vector(slot, position, 0, kv_heads)..][..d];
            assert!(key.iter().all(|&v| v == 0.0), "{dtype:?} row {r}: {key:?}");
        }
        let finite = |x: &[f32]| x.iter().all(|v| v.is_finite());
        assert!(finite(&separate) && finite(&x), "{dtype:?}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn attention_is_that_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(33);
    for dtype in OPERANDS {
        for shape in SHAPES {
            let layer = Layer::new(&gpu, &mut random, dtype, shape);
            for (kind, longest) in [
                (StepKind::Decode, 1),
                (StepKind::Mixed, 1),
                (StepKind::Mixed, 150),
            ] {
                let step = random_step(&mut random, 7, 400, longest);
                let bucket = step.rows().len() + random.below(20);
                let before = layer.arrays(&mut random, &step, bucket);
                let (after, x) = layer.run(&step, &before, kind, true);
                layer.check_attention(&step, &after, &x, 3);
            }
        }
        let layer = Layer::new(&gpu, &mut random, dtype, (32, 8, 64));
        for (kind, rows) in [(StepKind::Decode, 1), (StepKind::Mixed, 700)] {
            let mut step = Step::with_slots(&mut random, 2, 4096, 64);
            step.chunk(1, (4096 - rows) as u32, rows);
            step.chunk(0, 0, 1);
            let before = layer.arrays(&mut random, &step, rows + 1);
            let (after, x) = layer.run(&step, &before, kind, true);
            layer.check_attention(&step, &after, &x, if rows == 1 { 1 } else { 601 });
        }
    }
}

/// The same rows alone, after others, and in chunks cut elsewhere: the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_of_attention_does_not_depend_on_its_companions_or_its_chunk() {
    let gpu = Gpu::new();
    let mut random = Random(34);
    for dtype in OPERANDS {
        let layer = Layer::new(&gpu, &mut random, dtype, (8, 2, 64));
        let (heads, kv_heads, d) = layer.shape();
        // Slot 3 at positions 100 .. 200 in one chunk, behind others.
        let mut step = Step::with_slots(&mut random, 4, 256, 16);
        step.chunk(1, 30, 1);
        step.chunk(0, 0, 77);
        step.chunk(3, 100, 100);
        let before = layer.arrays(&mut random, &step, 256);
        let (after, x) = layer.run(&step, &before, StepKind::Mixed, true);
        // Then its last 37 rows alone, their keys so far being in the pages.
        let mut alone = step.clone();
        alone.chunks = Vec::new();
        alone.chunk(3, 163, 37);
        let from = (78 + 63) * layer.width();
        let mut qkv = before.qkv[from..][..37 * layer.width()].to_vec();
        qkv.resize(256 * layer.width(), f32::NAN);
        let mut again = Arrays {
            qkv,
            k: before.k.clone(),
            v: before.v.clone(),
        };
        for (position, kv_head) in (0..163).flat_map(|p| (0..kv_heads).map(move |h| (p, h))) {
            let at = d * step.vector(3, position, kv_head, kv_heads);
            again.k[at..][..d].copy_from_slice(&after.k[at..][..d]);
            again.v[at..][..d].copy_from_slice(&after.v[at..][..d]);
        }
        let (_, y) = layer.run(&alone, &again, StepKind::Mixed, true);
        let row = heads * d;
        assert_same_bits(
            &format!("{dtype:?}"),
            &y[..37 * row],
            &x[(78 + 63) * row..][..37 * row],
        );
    }
}

/// One kernel for what two do, but for how it was rounded: x, and keys and values in the same places of their pages.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn attention_that_norms_and_rotates_is_that_of_two_kernels() {
    let gpu = Gpu::new();
    let mut random = Random(35);
    for dtype in OPERANDS {
        for shape in SHAPES {
            let layer = Layer::new(&gpu, &mut random, dtype, shape);
            let (heads, _, d) = layer.shape();
            for bucket_more in [0, 9] {
                let step = random_step(&mut random, 7, 400, 1);
                let rows = step.rows().len();
                let before = layer.arrays(&mut random, &step, rows + bucket_more);
                let (one, x) = layer.run_either(&step, &before, StepKind::Decode, true, true);
                let (two, y) = layer.run_either(&step, &before, StepKind::Decode, true, false);
                let what = format!("{dtype:?} {shape:?} {rows} rows");
                let f64s =
                    |values: &[f32]| values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
                assert_same_bits(&format!("{what}: v"), &one.v, &two.v);
                // where nothing was written there is no number in either
                let written = |k: &[f32]| -> Vec<f32> {
                    let or_zero = |&v: &f32| if v.is_nan() { 0.0 } else { v };
                    k.iter().map(or_zero).collect()
                };
                let (found, expected) = (written(&one.k), f64s(&written(&two.k)));
                assert_close(&format!("{what}: k"), &found, &expected, |_, k| {
                    2.0 * rounding(dtype) * k.abs() + 1e-6
                });
                let (x, padding) = x.split_at(rows * heads * d);
                assert!(padding.iter().all(|v| v.is_nan()), "{what}: padding");
                let expected = f64s(&y[..x.len()]);
                let largest = expected.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
                assert_close(&what, x, &expected, |_, _| {
                    (2.0 * rounding(dtype)).max(1e-5) * largest
                });
            }
        }
    }
}

/// A decode row in each of as many slots as there are positions.
fn decode_step(random: &mut Random, positions: &[u32], page_tokens: u32) -> Step {
    let tokens = positions.iter().max().map_or(1, |most| most + 1);
    let mut step = Step::with_slots(random, positions.len(), tokens, page_tokens);
    for (slot, &position) in positions.iter().enumerate() {
        step.chunk(slot, position, 1);
    }
    step
}

/// Rows of one chunk and of many, at the chunks' edges and where chunks grow, in buckets of every way to cut keys.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn keys_that_blocks_share_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(36);
    let edges = [0, 1, 255, 256, 257, 511, 512, 513, 8191, 8192, 8193, 20_011];
    for dtype in OPERANDS {
        for shape in [(8, 2, 64), (4, 2, 128), (20, 2, 64)] {
            let layer = Layer::new(&gpu, &mut random, dtype, shape);
            let mut steps: Vec<(Vec<u32>, usize)> =
                edges.iter().map(|&position| (vec![position], 1)).collect();
            steps.push((vec![1024, 3, 1025, 5000, 0, 2048, 77], 8));
            steps.push((vec![4096, 4097, 40, 12_000], 32));
            let ragged = |i: u32| [30 + 7 * i, 2047 + i][usize::from(i.is_multiple_of(9))];
            steps.push((vec![40_000, 6], 100)); // 20 chunks
            // with 2 groups of query heads, blocks of 8, 4, 2 and 1 warps
            let buckets = [70, 200, 400, 600];
            steps.extend(buckets.map(|bucket| ((0..39).map(ragged).collect(), bucket)));
            for (positions, bucket) in steps {
                let page_tokens = [16, 64, 48][random.below(3)];
                let step = decode_step(&mut random, &positions, page_tokens);
                let before = layer.arrays(&mut random, &step, bucket);
                let (normed, _) = layer.run(&step, &before, StepKind::Decode, false);
                let (_, x) = layer.run_either(&step, &before, StepKind::Decode, true, true);
                layer.check_attention(&step, &normed, &x, 1 + positions.len() / 8);
            }
        }
    }
}

/// More chunks than blocks that take them: a block has several, one after the other.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_block_takes_several_chunks() {
    let gpu = Gpu::new();
    let mut random = Random(38);
    // Blocks of 8, 4, 2 and 1 warps (f32: of 8, 2, 1 and 1). The first: 16 kv heads, so 128 blocks for first chunks in a bucket
    // of 8, and as many for the 176 others.
    let cases = [
        ((16, 16, 64), 8, [6000, 2, 7000]),
        ((256, 1, 64), 16, [14_000, 13_999, 12_500]),
        ((256, 1, 64), 32, [16_400, 16_500, 20_000]),
        ((256, 1, 64), 64, [14_000, 13_999, 12_500]),
    ];
    for dtype in OPERANDS {
        for (shape, bucket, positions) in cases {
            let layer = Layer::new(&gpu, &mut random, dtype, shape);
            let step = decode_step(&mut random, &positions, 64);
            let before = layer.arrays(&mut random, &step, bucket);
            let (normed, _) = layer.run(&step, &before, StepKind::Decode, false);
            let (_, x) = layer.run_either(&step, &before, StepKind::Decode, true, true);
            layer.check_attention(&step, &normed, &x, 1 + shape.0 / 20);
        }
    }
}

/// Alone, and in another place among others: the same bits, of one chunk and of several.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_decode_row_of_attention_does_not_depend_on_its_companions() {
    let gpu = Gpu::new();
    let mut random = Random(37);
    for dtype in OPERANDS {
        let layer = Layer::new(&gpu, &mut random, dtype, (8, 2, 64));
        let (heads, _, d) = layer.shape();
        let (width, row) = (layer.width(), heads * d);
        for bucket in [8, 70, 200, 400, 600] {
            let positions = [3000, 17, 9001, 2048, 0, 300];
            let step = decode_step(&mut random, &positions, 48);
            let before = layer.arrays(&mut random, &step, bucket);
            let (_, x) = layer.run_either(&step, &before, StepKind::Decode, true, true);
            for (r, &position) in positions.iter().enumerate() {
                let mut alone = step.clone();
                alone.chunks = Vec::new();
                alone.chunk(r, position, 1);
                let mut qkv = before.qkv[r * width..][..width].to_vec();
                qkv.resize(bucket * width, f32::NAN);
                let arrays = Arrays {
                    qkv,
                    k: before.k.clone(),
                    v: before.v.clone(),
                };
                let (_, y) = layer.run_either(&alone, &arrays, StepKind::Decode, true, true);
                let what = format!("{dtype:?} position {position} in a bucket of {bucket}");
                assert_same_bits(&what, &y[..row], &x[r * row..][..row]);
            }
        }
    }
}
