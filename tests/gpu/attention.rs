//! Queries, keys and values, and attention over pages, against f64.

mod layer;

use crate::common::random::Random;
use crate::rig::{OPERANDS, Step, assert_close, assert_same_bits, rounded, rounding};
use crate::support::Gpu;
use layer::{Arrays, Layer};
use std::sync::atomic::Ordering;
use tailgraph::model::DType;
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
        // Then its last rows alone, or its last one, their keys so far being in the pages.
        for rows in [37, 1] {
            let before_them = 200 - rows;
            let mut alone = step.clone();
            alone.chunks = Vec::new();
            alone.chunk(3, before_them as u32, rows);
            let from = 178 - rows;
            let mut qkv = before.qkv[from * layer.width()..][..rows * layer.width()].to_vec();
            qkv.resize(256 * layer.width(), f32::NAN);
            let mut again = Arrays {
                qkv,
                k: before.k.clone(),
                v: before.v.clone(),
            };
            let vectors = (0..before_them).flat_map(|p| (0..kv_heads).map(move |h| (p, h)));
            for (position, kv_head) in vectors {
                let at = d * step.vector(3, position, kv_head, kv_heads);
                again.k[at..][..d].copy_from_slice(&after.k[at..][..d]);
                again.v[at..][..d].copy_from_slice(&after.v[at..][..d]);
            }
            let (_, y) = layer.run(&alone, &again, StepKind::Mixed, true);
            let row = heads * d;
            assert_same_bits(
                &format!("{dtype:?}, {rows} rows"),
                &y[..rows * row],
                &x[from * row..][..rows * row],
            );
        }
    }
}

/// Tiles of 192 pairs of a row and a head, of which a step has many for every multiprocessor, also ragged ones; and some of its rows
/// alone, in tiles of 128: the same bits. In f32 all tiles have 64.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_prompts_are_those_of_f64_in_tiles_of_either_size() {
    let gpu = Gpu::new();
    let mut random = Random(40);
    for dtype in OPERANDS {
        for shape in [(64, 1, 64), (32, 2, 128), (32, 8, 64)] {
            let layer = Layer::new(&gpu, &mut random, dtype, shape);
            let (heads, kv_heads, d) = shape;
            let prompt = layer.rig.kernels.attention_prompt.as_ref();
            let expect_tiles_of = |pairs: usize| {
                let rows = (pairs * kv_heads / heads) as u32;
                let listed = layer.tile_rows.load(Ordering::Relaxed);
                assert!(
                    prompt.is_none() || listed == rows,
                    "{shape:?}: {listed} rows"
                );
            };
            // Half of the rows of 8 tiles a multiprocessor and some more, at the beginning; as many behind others; and one.
            let multiprocessors = prompt.map_or(4, |prompt| prompt.multiprocessors as usize);
            let tiles = (8 * multiprocessors).div_ceil(kv_heads);
            let half = tiles * 192 * kv_heads / heads / 2;
            let mut step = Step::with_slots(&mut random, 3, half as u32 + 300, 48);
            step.chunk(2, 17, 1);
            step.chunk(0, 0, half + 5);
            step.chunk(1, 150, half + 7);
            let bucket = step.rows().len() + 9;
            let before = layer.arrays(&mut random, &step, bucket);
            let (after, x) = layer.run(&step, &before, StepKind::Mixed, true);
            expect_tiles_of(192);
            let every = step.rows().len() * heads / 500 + 1;
            layer.check_attention(&step, &after, &x, every);

            let rows = half.min(40);
            let mut alone = step.clone();
            alone.chunks = Vec::new();
            alone.chunk(1, (150 + half + 7 - rows) as u32, rows);
            let from = step.rows().len() - rows;
            let mut qkv = before.qkv[from * layer.width()..][..rows * layer.width()].to_vec();
            qkv.resize(bucket * layer.width(), f32::NAN);
            let (k, v) = (after.k, after.v);
            let (_, y) = layer.run(&alone, &Arrays { qkv, k, v }, StepKind::Mixed, true);
            expect_tiles_of(128);
            let row = heads * d;
            let (of_alone, of_step) = (&y[..rows * row], &x[from * row..][..rows * row]);
            assert_same_bits(&format!("{dtype:?} {shape:?}"), of_alone, of_step);
        }
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

/// Rows of up to five chunks in buckets whose blocks have 8 warps and fewer, beside rows of one chunk.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_chunks_of_keys_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(39);
    for dtype in OPERANDS {
        for (shape, positions, bucket) in [
            ((8, 2, 64), vec![1100], 1),
            ((4, 2, 128), vec![700, 3, 257, 0], 4),
            ((20, 2, 64), vec![513, 600], 2),
            ((16, 16, 64), vec![1030, 2500, 77], 8),
            ((2, 1, 64), vec![5000, 2049, 1], 300),
        ] {
            let layer = Layer::new(&gpu, &mut random, dtype, shape);
            let step = decode_step(&mut random, &positions, 48);
            let before = layer.arrays(&mut random, &step, bucket);
            let (normed, _) = layer.run(&step, &before, StepKind::Decode, false);
            let (_, x) = layer.run_either(&step, &before, StepKind::Decode, true, true);
            layer.check_attention(&step, &normed, &x, 1);
        }
    }
}

/// More chunks than blocks that take them: a block has several, one after the other.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_block_takes_several_chunks() {
    let gpu = Gpu::new();
    let mut random = Random(38);
    // Blocks of 8, 4, 2, 1 and 1 warps (f32: of 8, 2, 1, 1 and 1). The first: 16 kv heads, so 128 blocks for first chunks in a bucket
    // of 8, and as many for others; both take several of all others. The last: more first chunks than blocks have room at once, so
    // that the 576 others (f32: twice as many) are left to 512 blocks more.
    let cases = [
        ((16, 16, 64), 8, [6000, 2, 7000]),
        ((256, 1, 64), 16, [14_000, 13_999, 12_500]),
        ((256, 1, 64), 32, [16_400, 16_500, 20_000]),
        ((256, 1, 64), 64, [14_000, 13_999, 12_500]),
        ((256, 1, 64), 128, [14_000, 13_999, 12_500]),
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

/// Rows whose pages are those of others, and the same keys and values in pages of each one's own: the same bits. A few rows begin alike as far
/// as `shared` says of each, in whole pages; others with nobody, or with a row that is not beside them.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rows_that_share_pages_have_the_bits_that_they_have_alone() {
    let gpu = Gpu::new();
    let mut random = Random(41);
    // A row's position, the row whose pages its first ones are, and how many keys these have.
    let short = [
        (2300, 0, 0),
        (2117, 0, 2117),
        (1500, 1, 700),
        (2301, 1, 1990),
        (2090, 3, 2000),
        (2240, 3, 1300),
        (5, 0, 5),
        (2112, 1, 2112),
        (2080, 8, 0),
        (2113, 8, 2060),
        (300, 10, 0),
        (310, 10, 290),
        (2500, 12, 0),
    ];
    let long = [
        (5000, 0, 0),
        (5090, 0, 4990),
        (2600, 0, 2600),
        (2580, 0, 2500),
    ];
    for dtype in OPERANDS {
        // Blocks of 8, 4, 2 and 1 warps.
        for (shape, bucket, rows) in [
            ((8, 2, 64), 32, &long[..]),
            ((8, 2, 64), 200, &short),
            ((8, 2, 64), 400, &short),
            ((3, 1, 64), 1100, &short),
            ((2, 2, 128), 600, &short[..5]),
        ] {
            let layer = Layer::new(&gpu, &mut random, dtype, shape);
            let (heads, kv_heads, d) = layer.shape();
            let page_tokens = [16, 20, 64][random.below(3)];
            let positions: Vec<u32> = rows.iter().map(|row| row.0).collect();
            let apart = decode_step(&mut random, &positions, page_tokens);
            let mut together = apart.clone();
            for (slot, &(_, with, keys)) in rows.iter().enumerate() {
                let pages = (keys / page_tokens) as usize;
                let [from, to] = [with, slot].map(|slot| slot * apart.max_pages as usize);
                together.pages.copy_within(from..from + pages, to);
            }
            let mut shared = layer.arrays(&mut random, &together, bucket);
            // A value that its neighbours would see even with a weight of 0.
            let infinite = positions[1] as usize - 1;
            if rows[1].2 / page_tokens * page_tokens <= infinite as u32 {
                shared.v[d * together.vector(1, infinite, 0, kv_heads)] = f32::INFINITY;
            }
            let mut own = Arrays {
                qkv: shared.qkv.clone(),
                k: vec![f32::NAN; shared.k.len()],
                v: vec![f32::NAN; shared.v.len()],
            };
            for (slot, &position) in positions.iter().enumerate() {
                for (position, kv_head) in
                    (0..position as usize).flat_map(|p| (0..kv_heads).map(move |h| (p, h)))
                {
                    let at = |step: &Step| d * step.vector(slot, position, kv_head, kv_heads);
                    let (from, to) = (at(&together), at(&apart));
                    own.k[to..][..d].copy_from_slice(&shared.k[from..][..d]);
                    own.v[to..][..d].copy_from_slice(&shared.v[from..][..d]);
                }
            }
            let (_, x) = layer.run_either(&together, &shared, StepKind::Decode, true, true);
            let (_, y) = layer.run_either(&apart, &own, StepKind::Decode, true, true);
            for (r, (x, y)) in x.chunks(heads * d).zip(y.chunks(heads * d)).enumerate() {
                let what = format!("{dtype:?} {shape:?} row {r} of {page_tokens} a page");
                let finite = |x: &[f32]| x.iter().all(|v| v.is_finite());
                assert!(r == 1 || r >= rows.len() || finite(x), "{what}");
                if r != 1 || finite(y) {
                    assert_same_bits(&what, x, y);
                }
            }
        }
    }
}
