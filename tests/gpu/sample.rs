//! Sampling against a plain implementation of the same rules: the same tokens.

mod plain;
mod random;

use self::random::row;
use crate::common::random::Random;
use crate::rig::{Chunk, Rig, Step, StepOnGpu, config, operand};
use crate::support::Gpu;
use plain::Row;
use tailgraph::backend::cuda::families::head::{LogitsPart, Noted, seen_words};
use tailgraph::backend::cuda::memory::arena::{best_words, count_stride};
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::tuning::limits::MEETING_BYTES;
use tailgraph::model::{DType, ModelConfig};
use tailgraph::plan::StepKind;
use tailgraph::sys::abi;

/// What penalties look at, of so many slots; whatever was there before.
struct Notes {
    seen: Buffer,
    counts: Buffer,
}

impl Notes {
    fn new(gpu: &Gpu, slots: usize, vocabulary: usize) -> Self {
        Self {
            seen: gpu.poisoned(slots * seen_words(vocabulary) * 4),
            counts: gpu.poisoned(slots * count_stride(vocabulary) * 2),
        }
    }

    fn at(&self) -> Noted {
        Noted {
            seen: self.seen.at(0),
            counts: self.counts.at(0),
        }
    }
}

/// One step a token of the answers, which are equally long, after one of the prompts; the last samples. Returns what was
/// sampled.
fn run(gpu: &Gpu, rig: &Rig, rows: &[Row], score: bool) -> Vec<abi::tg_sampled> {
    let vocabulary = rig.config.vocab_size;
    let mut slots = Step::with_slots(&mut Random(0), rows.len(), 64, 16);
    let notes = Notes::new(gpu, rows.len(), vocabulary);
    for (slot, row) in slots.slots.iter_mut().zip(rows) {
        slot.sampling = row.sampling;
        slot.prompt_tokens = (row.seen.len() - row.answered) as u32;
        slot.last_token = row.seen.last().map_or(-1, |&id| id as i32);
        slot.stop_count = row.stop_ids.len() as u32;
        slot.stop_ids[..row.stop_ids.len()].copy_from_slice(&row.stop_ids);
        slots.biases.push(row.biases.clone());
    }
    let answered = rows[0].answered;
    assert!(rows.iter().all(|row| row.answered == answered));
    let chunk = |slot: usize, first: usize, tokens: &[u32], sampled| Chunk {
        slot: slot as u32,
        first_position: first as u32,
        tokens: tokens.iter().map(|&id| id as i32).collect(),
        sampled,
    };
    for before in 0..answered {
        let mut step = slots.clone();
        for (slot, row) in rows.iter().enumerate() {
            let end = row.seen.len() - answered + before;
            let first = if before == 0 { 0 } else { end - 1 };
            step.chunks
                .push(chunk(slot, first, &row.seen[first..end], false));
        }
        let step = step.upload(gpu);
        let enqueue = rig.enqueue(&step, StepKind::Mixed, step.rows);
        // SAFETY: there are notes of each slot.
        unsafe { enqueue.run(|to| to.mark_seen(notes.at())) };
    }
    let mut step = slots;
    for (slot, row) in rows.iter().enumerate() {
        let last = row.seen.len() - 1;
        let mut chunk = chunk(slot, row.position as usize, &row.seen[last..], true);
        // Every other row's token is its slot's newest.
        if slot % 2 == 0 {
            chunk.tokens[0] = -1;
        }
        step.chunks.push(chunk);
    }

    let on_gpu: StepOnGpu = step.upload(gpu);
    let values: Vec<f32> = rows.iter().flat_map(|row| row.logits.clone()).collect();
    let logits = gpu.values(DType::F32, &values);
    let kind = if score {
        StepKind::Score
    } else {
        StepKind::Decode
    };
    let enqueue = rig.enqueue(&on_gpu, kind, rows.len());
    let part = if score {
        LogitsPart::Tile(0)
    } else {
        LogitsPart::Sampled
    };
    let best = gpu.poisoned(best_words(rows.len()) * 8);
    let meetings = gpu.put(&vec![0_u8; rows.len() * MEETING_BYTES]);
    // SAFETY: the arrays have the shapes that the operations ask for.
    unsafe {
        enqueue.run(|to| {
            if score {
                to.mark_seen(notes.at());
            }
            let (logits, best, meetings) = (logits.at(0), best.at(0), meetings.at(0));
            to.sample(part, logits, notes.at(), best, None, meetings);
        });
    }
    assert!(
        gpu.get(&meetings).iter().all(|&byte| byte == 0),
        "meetings are not as they were"
    );
    let after = gpu.get_values(DType::F32, &logits);
    let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits();
    assert!(
        after.iter().zip(&values).all(same),
        "the logits are not as they were"
    );
    on_gpu.sampled(gpu)
}

fn rig(gpu: &Gpu, vocab_size: usize) -> Rig<'_> {
    let config = ModelConfig {
        vocab_size,
        ..config()
    };
    Rig::new(gpu, config, operand(DType::BF16))
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn tokens_are_those_of_the_plain_implementation() {
    let gpu = Gpu::new();
    let mut random = Random(51);
    for (vocabulary, count) in [
        (301, 64),
        (50, 64),
        (8_190, 150),
        (65_536, 24),
        (128_000, 8),
    ] {
        let rig = rig(&gpu, vocabulary);
        for score in [false, true] {
            let rows: Vec<Row> = (0..count)
                .map(|_| row(&mut random, vocabulary, 9))
                .collect();
            let sampled = run(&gpu, &rig, &rows, score);
            assert_eq!(sampled.len(), rows.len());
            for (index, (row, sampled)) in rows.iter().zip(&sampled).enumerate() {
                row.check(
                    &format!("vocabulary {vocabulary} score {score} row {index}"),
                    sampled,
                );
            }
        }
    }
}

/// What is left of whoever had a slot before: counts end at 65535, and begin at 0 with a prompt.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn counts_begin_with_a_prompt_and_end_where_16_bits_do() {
    let gpu = Gpu::new();
    for vocabulary in [50, 301, 8_190] {
        let rig = rig(&gpu, vocabulary);
        let notes = Notes::new(&gpu, 2, vocabulary);
        notes.counts.fill(&gpu.stream, 0xff).unwrap();
        let mut step = Step::with_slots(&mut Random(0), 2, 64, 16);
        for slot in &mut step.slots {
            slot.sampling.frequency_penalty = 1.0_f32.to_bits();
            slot.prompt_tokens = 5;
        }
        step.chunk(0, 7, 1);
        step.chunk(1, 0, 5);
        let step = step.upload(&gpu);
        let enqueue = rig.enqueue(&step, StepKind::Mixed, step.rows);
        // SAFETY: there are notes of each slot.
        unsafe { enqueue.run(|to| to.mark_seen(notes.at())) };
        let mut counts = vec![0; 2 * count_stride(vocabulary) * 2];
        notes.counts.read(&gpu.stream, 0, &mut counts).unwrap();
        let (full, empty) = counts.split_at(count_stride(vocabulary) * 2);
        assert!(full.iter().all(|&byte| byte == 0xff), "{vocabulary}");
        assert!(empty.iter().all(|&byte| byte == 0), "{vocabulary}");
    }
}

/// A slot, the position of its first token, its tokens, and what it shares.
type Shared<'a> = (usize, usize, &'a [u32], abi::tg_sequence);

/// Prefixes have the bits of their own tokens, whoever computes them, and of those before; slots begin with these where they have a
/// repetition penalty.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn what_penalties_know_comes_with_a_prefix() {
    const SLOTS: usize = 5;
    let gpu = Gpu::new();
    let mut random = Random(53);
    for vocabulary in [301, 8_190, 65_536] {
        let rig = rig(&gpu, vocabulary);
        let (prefixes, words) = (3, seen_words(vocabulary));
        let notes = Notes::new(&gpu, SLOTS + prefixes, vocabulary);
        let mut tokens = |count: usize| -> Vec<u32> {
            let ids = (0..count).map(|_| random.below(vocabulary as u32));
            ids.collect()
        };
        let [a, b, c, d, e, f, g] = [700, 30, 5, 41, 8, 9, 3].map(&mut tokens);
        let mut slots = Step::with_slots(&mut Random(0), SLOTS, 1024, 16);
        for (slot, sampling) in slots.slots.iter_mut().zip([
            [1.0_f32, 0.0],
            [1.5, 0.0],
            [1.5, 0.5],
            [1.0, 0.5],
            [1.0, 0.0],
        ]) {
            slot.sampling.repetition_penalty = sampling[0].to_bits();
            slot.sampling.frequency_penalty = sampling[1].to_bits();
            slot.prompt_tokens = 1024;
        }
        let unshared = abi::tg_sequence::UNSHARED;
        let computes = |computes: u32| abi::tg_sequence {
            computes,
            ..unshared
        };
        let from = |from: u32| abi::tg_sequence { from, ..unshared };
        let at = [0, a.len(), a.len() + b.len(), a.len() + b.len() + c.len()];
        let border = abi::TG_SEQUENCE_BORDER;
        // Slot 0 computes prefix 2 in two steps, then with slot 3 those that go on from it.
        let steps: [&[Shared<'_>]; 4] = [
            &[
                (0, at[0], &a, computes(2)),
                (1, 0, &d, unshared),
                (4, 0, &d, unshared),
            ],
            &[(
                0,
                at[1],
                &b,
                abi::tg_sequence {
                    flags: border,
                    ..computes(2)
                },
            )],
            &[
                (
                    0,
                    at[2],
                    &c,
                    abi::tg_sequence {
                        from: 2,
                        flags: border,
                        ..computes(0)
                    },
                ),
                (2, at[2], &e, from(2)),
                (
                    3,
                    at[2],
                    &f,
                    abi::tg_sequence {
                        from: 2,
                        ..computes(1)
                    },
                ),
            ],
            &[(1, at[3], &g, from(0))],
        ];
        for chunks in steps {
            let mut step = slots.clone();
            for (index, &(slot, first, tokens, shared)) in chunks.iter().enumerate() {
                step.chunks.push(Chunk {
                    slot: slot as u32,
                    first_position: first as u32,
                    tokens: tokens.iter().map(|&id| id as i32).collect(),
                    sampled: false,
                });
                step.shared.push((index, shared));
            }
            let step = step.upload(&gpu);
            let enqueue = rig.enqueue(&step, StepKind::Mixed, step.rows);
            // SAFETY: there are notes of each slot and prefix.
            unsafe { enqueue.run(|to| to.mark_seen(notes.at())) };
        }
        let seen = gpu.get_u32(&notes.seen);
        let poison = vec![u32::MAX; words];
        let of = |ids: &[&[u32]]| {
            let mut bits = vec![0; words];
            for &id in ids.iter().copied().flatten() {
                bits[id as usize / 32] |= 1 << (id % 32);
            }
            bits
        };
        for (place, (found, expected)) in (seen.chunks(words))
            .zip([
                poison.clone(),
                of(&[&a, &b, &c, &g]),
                of(&[&a, &b, &e]),
                of(&[]),
                poison,
                of(&[&a, &b, &c]),
                of(&[&a, &b, &f]),
                of(&[&a, &b]),
            ])
            .enumerate()
        {
            assert!(*found == expected, "vocabulary {vocabulary}, place {place}");
        }
        let counts = gpu.get(&notes.counts);
        for (slot, counts) in (counts.chunks(2 * count_stride(vocabulary)).take(SLOTS)).enumerate()
        {
            let expected = if matches!(slot, 2 | 3) { 0 } else { 0xff };
            assert!(counts.iter().all(|&byte| byte == expected), "slot {slot}");
        }
    }
}

/// Masses of more tokens than 2^44 each fit 64 bits: of two million equal ones top-p keeps its share, the lower ids.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_large_flat_vocabulary_keeps_its_top_p() {
    const VOCABULARY: usize = 1 << 21;
    let gpu = Gpu::new();
    let rig = rig(&gpu, VOCABULARY);
    let rows: Vec<Row> = (0..6)
        .map(|key| Row {
            logits: vec![0.5; VOCABULARY],
            sampling: abi::tg_sampling {
                temperature: 1.0_f32.to_bits(),
                top_p: 0.25_f32.to_bits(),
                key,
                ..Row::default().sampling
            },
            ..Row::default()
        })
        .collect();
    let sampled = run(&gpu, &rig, &rows, false);
    for (index, (row, sampled)) in rows.iter().zip(&sampled).enumerate() {
        row.check(&format!("row {index}"), sampled);
        assert!((sampled.token as usize) < VOCABULARY / 4, "row {index}");
    }
}

/// Many draws from one small distribution, against its probabilities.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn draws_follow_the_softmax() {
    const DRAWS: usize = 4000;
    let gpu = Gpu::new();
    let rig = rig(&gpu, 6);
    let logits = vec![0.0_f32, 1.0, -1.0, 2.0, 0.5, -3.0];
    let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let mut counts = [0.0; 6];
    for chunk in 0..DRAWS / 500 {
        let rows: Vec<Row> = (0..500)
            .map(|i| Row {
                logits: logits.clone(),
                sampling: abi::tg_sampling {
                    key: (chunk * 500 + i) as u64,
                    temperature: 1.0_f32.to_bits(),
                    ..Row::default().sampling
                },
                ..Row::default()
            })
            .collect();
        for sampled in run(&gpu, &rig, &rows, false) {
            counts[sampled.token as usize] += 1.0;
        }
    }
    let chi_square: f64 = logits
        .iter()
        .zip(counts)
        .map(|(&l, count)| {
            let expected = f64::from(l).exp() / total * DRAWS as f64;
            (count - expected) * (count - expected) / expected
        })
        .sum();
    // Five degrees of freedom: one fair generator in a million exceeds this.
    assert!(
        chi_square < 36.0,
        "chi-square {chi_square}, counts {counts:?}"
    );
}

/// Greedy takes the lower of two ties, and a logit that is no number gives no token.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ties_and_broken_logits() {
    let gpu = Gpu::new();
    let rig = rig(&gpu, 70);
    let row = |change: &dyn Fn(&mut [f32]), temperature: f32| {
        let mut logits = vec![-0.0; 70];
        change(&mut logits);
        Row {
            logits,
            sampling: abi::tg_sampling {
                temperature: temperature.to_bits(),
                ..Row::default().sampling
            },
            ..Row::default()
        }
    };
    let rows = [
        row(&|l| (l[66], l[40]) = (1.0, 1.0), 0.0),
        row(&|l| l[9] = 0.0, 0.0),
        row(&|l| l[33] = f32::NAN, 0.0),
        row(&|l| l[5] = f32::INFINITY, 1.0),
    ];
    let tokens: Vec<i32> = run(&gpu, &rig, &rows, false)
        .iter()
        .map(|s| s.token)
        .collect();
    assert_eq!(tokens, [40, 0, -1, -1]);
}

/// The same wherever in a row they are: parts of it are searched by other blocks, more of them where there are few rows.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ties_and_broken_logits_in_any_part() {
    let gpu = Gpu::new();
    let mut random = Random(52);
    let sizes = [1, 7, 16, 17, 1000, 1003, 65_536]
        .into_iter()
        .flat_map(|vocabulary| [5, 40, 130, 300].map(|rows| (vocabulary, rows)));
    for (vocabulary, count) in sizes {
        let rig = rig(&gpu, vocabulary);
        let mut rows = Vec::new();
        let mut expected = Vec::new();
        for case in 0..count {
            let mut logits = random.values(vocabulary, 1.0);
            let (a, b) = (random.below(vocabulary), random.below(vocabulary));
            let broken = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN];
            (logits[a], logits[b]) = (2.0, 2.0);
            expected.push(a.min(b) as i32);
            if case % 2 == 1 {
                logits[random.below(vocabulary)] = broken[case / 2 % 4];
                expected[case] = -1;
            }
            let mut row = Row {
                logits,
                seen: vec![0, 0],
                ..Row::default()
            };
            // Whose scores are searched too, by blocks that share them: some of the ids with the largest logits lose by it.
            if case % 3 == 0 {
                row.sampling.frequency_penalty = 0.5_f32.to_bits();
                row.biases = vec![abi::tg_bias {
                    id: a as u32,
                    bias: (-0.25_f32).to_bits(),
                }];
                row.sampling.bias_count = 1;
                if expected[case] >= 0 {
                    expected[case] = row.token() as i32;
                }
            }
            rows.push(row);
        }
        let sampled = run(&gpu, &rig, &rows, false);
        let tokens: Vec<i32> = sampled.iter().map(|s| s.token).collect();
        assert_eq!(tokens, expected, "vocabulary {vocabulary}, {count} rows");
    }
}
