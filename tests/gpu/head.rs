//! LM heads that stream their weights: the logits of the dense one against those of the kernels for any step (skinny.rs has the
//! others'), and their word of where the best ones are: sampling by it against sampling that reads all logits, and against the
//! logits themselves.

use crate::common::random::Random;
use crate::rig::{
    Enqueue, Rig, SKINNY, Step, StepOnGpu, TYPES, assert_rows_close, config, encode, matrix,
    rounded,
};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::head::{Found, LogitsPart, Noted, seen_words};
use tailgraph::backend::cuda::matrix::Matrix;
use tailgraph::backend::cuda::memory::arena::{best_words, count_stride};
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::tuning::limits::{HEAD_ROWS, MEETING_BYTES, SWAP_AB_ROWS};
use tailgraph::backend::cuda::tuning::variants::{Experts, Linear, Variant};
use tailgraph::model::{DType, ModelConfig, WeightFormat};
use tailgraph::plan::Precision;
use tailgraph::plan::StepKind;
use tailgraph::sys::abi;

/// (vocabulary, H): ragged tiles, more than one a block, one stage and many; of 1,024 the last stage's parts of f32 rows lie in
/// the first buffer.
const SHAPES: [(usize, usize); 4] = [(17_003, 32), (33_000, 288), (20_003, 1024), (65_536, 128)];
/// (bucket, rows): every tile, and row tiles that are shared.
const ROWS: [(usize, usize); 12] = [
    (1, 1),
    (8, 5),
    (16, 16),
    (20, 17),
    (32, 31),
    (64, 40),
    (70, 70),
    (128, 128),
    (128, 90),
    (200, 129),
    (256, 100),
    (256, 256),
];

/// Buckets and rows of steps whose other products are those of many rows.
const MANY_ROWS: [(usize, usize); 2] = [(512, 300), (512, 512)];

/// A head and what it is given.
struct Case {
    /// `[rows, H]`
    x: Vec<f32>,
    /// `[V, H]`
    w: Vec<f32>,
}

impl Case {
    /// With logits that are equal, some of them neighbours or all of a row, and rows of which one is not finite.
    fn new(
        random: &mut Random,
        types: Precision,
        rows: usize,
        vocabulary: usize,
        hidden: usize,
    ) -> Self {
        let scale = 1.7 / (hidden as f32).sqrt();
        let mut w = random.values(vocabulary * hidden, scale);
        let mut x = random.values(rows * hidden, 2.0);
        // Every row likes some id more than all others, and that one again elsewhere.
        for row in x.chunks_mut(hidden) {
            let a = random.below(vocabulary);
            let b = match random.below(2) {
                0 => random.below(vocabulary),
                _ => (a + 1 + random.below(15)).min(vocabulary - 1),
            };
            let liked: Vec<f32> = row.iter().map(|x| x * scale * 2.0).collect();
            w[a * hidden..][..hidden].copy_from_slice(&liked);
            w[b * hidden..][..hidden].copy_from_slice(&liked);
        }
        for row in x.chunks_mut(hidden) {
            row[0] = 0.0;
            match random.below(8) {
                0 => row[random.below(hidden)] = f32::NAN,
                // with what the weights have there, more than f32 holds
                1 => row[0] = [-8.0, 8.0][random.below(2)],
                2 => row.fill(0.0),
                _ => {}
            }
        }
        if types.weights == WeightFormat::BF16 {
            w[random.below(vocabulary) * hidden] = -3e38;
        }
        Self {
            x: rounded(types.compute, &x),
            w: rounded(types.weights, &w),
        }
    }
}

fn greedy() -> abi::tg_sampling {
    abi::tg_sampling {
        top_p: 1.0_f32.to_bits(),
        repetition_penalty: 1.0_f32.to_bits(),
        logprobs: abi::TG_LOGPROBS_NONE,
        ..abi::tg_sampling::default()
    }
}

/// How a row is sampled.
#[derive(Clone, Copy, PartialEq)]
enum How {
    Greedy,
    Drawn,
    Penalized,
    Counted,
    Biased,
    /// A stop id must not come yet.
    Early,
    /// A stop id may come.
    Late,
    WithLogprobs,
}

/// Rows take these in turn.
const HOWS: usize = 10;
const MIXED: [How; HOWS] = [
    How::Greedy,
    How::Greedy,
    How::Drawn,
    How::Penalized,
    How::WithLogprobs,
    How::Counted,
    How::Late,
    How::Biased,
    How::Early,
    How::Greedy,
];
const DRAWN: [How; HOWS] = [How::Drawn; HOWS];

/// Decode rows.
fn step(gpu: &Gpu, rows: usize, how: [How; HOWS]) -> StepOnGpu {
    let mut step = Step::with_slots(&mut Random(5), rows, 16, 4);
    for slot in 0..rows {
        let sampling = &mut step.slots[slot].sampling;
        *sampling = abi::tg_sampling {
            key: slot as u64,
            ..greedy()
        };
        let mut biases = vec![];
        match how[slot % HOWS] {
            How::Greedy => {}
            How::Counted => sampling.frequency_penalty = 0.5_f32.to_bits(),
            How::Biased => {
                let (id, bias) = (slot as u32 % 3, 1.0_f32.to_bits());
                biases = vec![abi::tg_bias { id, bias }];
                sampling.bias_count = 1;
            }
            How::Early | How::Late => {
                // The token that is sampled stands at position 4.
                sampling.stop_from = 4 + u32::from(how[slot % HOWS] == How::Early);
                step.slots[slot].stop_count = 2;
                step.slots[slot].stop_ids[..2].copy_from_slice(&[0, 1 << 30]);
            }
            How::Drawn => sampling.temperature = 0.7_f32.to_bits(),
            How::Penalized => sampling.repetition_penalty = 1.3_f32.to_bits(),
            How::WithLogprobs => sampling.logprobs = 0,
        }
        step.biases.push(biases);
        step.chunk(slot, 3, 1);
    }
    for chunk in &mut step.chunks {
        chunk.sampled = true;
    }
    step.upload(gpu)
}

/// The lowest id of the largest logit, or -1 where one is not finite.
fn best_of(logits: &[f32]) -> i32 {
    if logits.iter().any(|l| !l.is_finite()) {
        return -1;
    }
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter().position(|&l| l == best).unwrap() as i32
}

/// Each row's logits by the kernels for any step, f32 `[bucket, V]`, and whatever past the rows.
fn plain_logits(rig: &Rig, on_gpu: &StepOnGpu, bucket: usize, x: &Buffer, w: Matrix) -> Vec<f32> {
    let gpu = rig.gpu;
    let enqueue = rig.enqueue(on_gpu, StepKind::Mixed, bucket);
    let logits = gpu.poisoned(bucket * rig.config.vocab_size * 4);
    let part = LogitsPart::Sampled;
    // SAFETY: the arrays have the shapes that the operation asks for; where logits are delivered nothing of the best is left.
    let found =
        unsafe { enqueue.run(|to| to.lm_head(part, true, logits.at(0), 0, (x.at(0), 0), w)) };
    assert_eq!(found, None);
    gpu.get_values(DType::F32, &logits)
}

fn run(rig: &Rig, linear: Linear, case: &Case, (bucket, rows): (usize, usize)) {
    let (gpu, types, config) = (rig.gpu, rig.kernels.precision, &rig.config);
    let (vocabulary, hidden) = (config.vocab_size, config.hidden_size);
    let on_gpu = step(gpu, rows, MIXED);
    let variant = Variant {
        linear,
        experts: Experts::Tiled,
    };
    let enqueue = rig.enqueue_by(&on_gpu, bucket, variant).unwrap();
    let weights = gpu.values(types.weights, &case.w);
    let w = matrix(&weights, types.weights, [vocabulary, hidden]);
    let logits = gpu.poisoned(bucket * vocabulary * 4);
    let best = gpu.poisoned(best_words(bucket) * 8);
    let seen = gpu.poisoned(rows * seen_words(vocabulary) * 4);
    let counts = gpu.poisoned(rows * count_stride(vocabulary) * 2);
    let noted = Noted {
        seen: seen.at(0),
        counts: counts.at(0),
    };
    let meetings = gpu.put(&vec![0_u8; bucket * MEETING_BYTES]);
    let sample = |found: Option<Found>, logits: &Buffer, best: &Buffer| {
        let part = LogitsPart::Sampled;
        // SAFETY: the arrays have the shapes that the operation asks for.
        unsafe {
            enqueue.run(|to| {
                to.sample(part, logits.at(0), noted, best.at(0), found, meetings.at(0));
            });
        }
        let tokens = on_gpu.sampled(gpu);
        tokens.iter().map(|s| s.token).collect::<Vec<i32>>()
    };
    let input = |dtype: DType| {
        let x = gpu.poisoned(bucket * hidden * dtype.bytes());
        x.write(&gpu.stream, 0, &encode(dtype, &case.x)).unwrap();
        x
    };
    let x = match enqueue.skinny() {
        Some(_) => input(DType::F32),
        None => input(types.compute),
    };
    let norm = gpu.values(DType::F32, &vec![1.0; hidden]);
    let head = |enqueue: &Enqueue, logits: &Buffer| {
        let (logits, best, x) = (logits.at(0), best.at(0), x.at(0));
        // SAFETY: the arrays have the shapes that the operations ask for.
        let found = unsafe {
            enqueue.run(|to| match to.skinny() {
                Some(skinny) => {
                    Some(to.skinny_project(skinny, (logits, best), x, norm.at(0), &w, None))
                }
                None => to.lm_head(LogitsPart::Sampled, false, logits, best, (x, 0), w),
            })
        };
        found.expect("these tiles fill a GPU")
    };
    // Logits are stored but of rows that are greedy and no more.
    let drawn = step(gpu, rows, DRAWN);
    let whole = gpu.poisoned(bucket * vocabulary * 4);
    head(&rig.enqueue_by(&drawn, bucket, variant).unwrap(), &whole);
    best.fill(&gpu.stream, 0xff).unwrap();
    let found = head(&enqueue, &logits);
    let plain = match enqueue.skinny() {
        Some(_) => None,
        None => Some(plain_logits(rig, &on_gpu, bucket, &x, w)),
    };
    let what = format!("{types:?} {linear:?} {rows} rows of {bucket}, {vocabulary} x {hidden}");
    let tokens = sample(Some(found), &logits, &best);
    let stored = gpu.get_values(DType::F32, &logits);
    let values = gpu.get_values(DType::F32, &whole);
    for (r, (stored, whole)) in stored
        .chunks(vocabulary)
        .zip(values.chunks(vocabulary))
        .take(rows)
        .enumerate()
    {
        let same = || (stored.iter().zip(whole)).all(|(a, b)| a.to_bits() == b.to_bits());
        match MIXED[r % HOWS] {
            How::Greedy | How::Late => assert!(
                stored.iter().all(|l| l.is_nan()),
                "{what}: row {r} is greedy, and its logits were written"
            ),
            _ => assert!(same(), "{what}: row {r} is another beside greedy ones"),
        }
    }
    for (r, line) in stored.chunks(vocabulary).enumerate().skip(rows) {
        assert!(
            line.iter().all(|l| l.is_nan()),
            "{what}: padding {r} was written"
        );
    }
    if let Some(plain) = plain {
        // The tolerance is that of tiled.rs.
        let limit = if types.compute == DType::F32 {
            3e-6
        } else {
            3e-5
        };
        for (r, lines) in values
            .chunks(vocabulary)
            .zip(plain.chunks(vocabulary))
            .enumerate()
        {
            if r >= rows {
                assert!(
                    lines.0.iter().all(|l| l.is_nan()),
                    "{what}: padding was written"
                );
            } else if best_of(lines.0) >= 0 && best_of(lines.1) >= 0 {
                assert_rows_close(
                    &format!("{what}: row {r}"),
                    [lines.0, lines.1],
                    vocabulary,
                    1,
                    limit,
                );
            }
        }
    }
    for (r, line) in values.chunks(vocabulary).take(rows).enumerate() {
        let expected = best_of(line);
        let best = matches!(MIXED[r % HOWS], How::Greedy | How::Late | How::WithLogprobs);
        if best || expected == -1 {
            assert_eq!(tokens[r], expected, "{what}: row {r}");
        }
    }
    let other = gpu.poisoned(best_words(bucket) * 8);
    assert_eq!(tokens, sample(None, &whole, &other), "{what}");
}

/// But for weights in 8 bits, beside which the head is bf16's.
fn for_every_rig(mut test: impl FnMut(&Rig, &mut Random)) {
    let gpu = Gpu::new();
    let mut random = Random(91);
    let types = TYPES.into_iter();
    for types in types.filter(|types| types.weights != WeightFormat::E4M3) {
        for (vocab_size, hidden_size) in SHAPES {
            let config = ModelConfig {
                vocab_size,
                hidden_size,
                ..config()
            };
            test(&Rig::new(&gpu, config, types), &mut random);
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_swap_ab_head_knows_the_best() {
    for_every_rig(|rig, random| {
        if !rig.serves(rig.kernels.products.swap_ab.is_some(), |(major, _)| {
            major == 9
        }) {
            return;
        }
        let (vocabulary, hidden) = (rig.config.vocab_size, rig.config.hidden_size);
        for rows in ROWS {
            let case = Case::new(random, rig.kernels.precision, rows.1, vocabulary, hidden);
            run(rig, Linear::SwapAb, &case, rows);
        }
        if rig.kernels.precision.compute == DType::F32 {
            return;
        }
        for rows in MANY_ROWS {
            assert!(rows.0 > SWAP_AB_ROWS as usize && rows.0 <= HEAD_ROWS as usize);
            let case = Case::new(random, rig.kernels.precision, rows.1, vocabulary, hidden);
            run(rig, Linear::Persistent, &case, rows);
        }
    });
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_head_of_few_rows_knows_the_best() {
    for_every_rig(|rig, random| {
        if !rig.serves(rig.kernels.products.skinny.is_some(), |capability| {
            capability >= (9, 0)
        }) {
            return;
        }
        let (vocabulary, hidden) = (rig.config.vocab_size, rig.config.hidden_size);
        for rows in [(1, 1), (2, 2), (4, 3), (8, 8), (8, 5)] {
            let case = Case::new(random, rig.kernels.precision, rows.1, vocabulary, hidden);
            run(rig, SKINNY, &case, rows);
        }
    });
}
