//! Sampling against a plain implementation of the same rules: the same tokens.

use crate::common::random::Random;
use crate::rig::{Chunk, Rig, Step, StepOnGpu, config, operand};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::head::{LogitsPart, seen_words};
use tailgraph::backend::cuda::memory::arena::best_words;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::model::{DType, ModelConfig};
use tailgraph::plan::StepKind;
use tailgraph::sys::abi;

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let a = 0xd251_1f53_u64 * u64::from(counter[0]);
        let b = 0xcd9e_8d57_u64 * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [
            key[0].wrapping_add(0x9e37_79b9),
            key[1].wrapping_add(0xbb67_ae85),
        ];
    }
    counter
}

#[test]
fn the_generator_here_is_philox() {
    let known = [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8];
    assert_eq!(philox([0; 4], [0; 2]), known);
}

/// One sampled row.
struct Row {
    logits: Vec<f32>,
    /// Ids of the sequence so far.
    seen: Vec<u32>,
    sampling: abi::tg_sampling,
    /// Of the row; the new token's is one more.
    position: u32,
}

impl Row {
    fn scores(&self) -> Vec<f32> {
        let penalty = f32::from_bits(self.sampling.repetition_penalty);
        let temperature = f32::from_bits(self.sampling.temperature);
        let score = |(id, &l): (usize, &f32)| {
            let seen = penalty != 1.0 && self.seen.contains(&(id as u32));
            let l = match seen {
                true if l < 0.0 => l * penalty,
                true => l / penalty,
                false => l,
            };
            if temperature == 0.0 {
                l
            } else {
                l / temperature
            }
        };
        self.logits.iter().enumerate().map(score).collect()
    }

    fn token(&self) -> usize {
        let scores = self.scores();
        let mut ids: Vec<usize> = (0..scores.len()).collect();
        // best first, ties: lower id first
        ids.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]).then(a.cmp(&b)));
        if f32::from_bits(self.sampling.temperature) == 0.0 {
            return ids[0];
        }
        let best = scores[ids[0]];
        let mass = |id: usize| f64::from(scores[id] - best).exp();
        if self.sampling.top_k > 0 {
            let kth = scores[ids[ids.len().min(self.sampling.top_k as usize) - 1]];
            ids.retain(|&id| scores[id] >= kth);
        }
        let top_p = f32::from_bits(self.sampling.top_p);
        if top_p < 1.0 {
            let total: f64 = ids.iter().rev().map(|&id| mass(id)).sum();
            let removable = (1.0 - f64::from(top_p)) * total;
            let mut running = 0.0;
            while ids.len() > 1 {
                running += mass(ids[ids.len() - 1]);
                if running > removable {
                    break;
                }
                ids.pop();
            }
        }
        let min_p = f64::from(f32::from_bits(self.sampling.min_p));
        ids.retain(|&id| mass(id) >= min_p);
        let key = [self.sampling.key as u32, (self.sampling.key >> 32) as u32];
        let value = |id: usize| {
            let counter = [id as u32 / 4, self.position + 1, 0x7361_6d70, 0];
            let word = philox(counter, key)[id % 4];
            let u = (f64::from(word >> 8) + 0.5) / f64::from(1 << 24);
            f64::from(scores[id]) - (-u.ln()).ln()
        };
        ids.sort_by(|&a, &b| value(b).total_cmp(&value(a)).then(a.cmp(&b)));
        ids[0]
    }

    fn check(&self, what: &str, sampled: &abi::tg_sampled) {
        assert_eq!(
            sampled.token as usize,
            self.token(),
            "{what} {:?}",
            self.sampling
        );
        let Some(count) = Some(self.sampling.logprobs).filter(|&n| n != abi::TG_LOGPROBS_NONE)
        else {
            assert_eq!(sampled.logprob, 0, "{what}: nobody asked");
            return;
        };
        let max = self
            .logits
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = self.logits.iter().map(|&l| f64::from(l - max).exp()).sum();
        let close = |bits: u32, id: usize| {
            let expected = f64::from(self.logits[id]) - f64::from(max) - sum.ln();
            let found = f64::from(f32::from_bits(bits));
            assert!(
                (found - expected).abs() <= 1e-6 * (1.0 + expected.abs()),
                "{what}: logprob of {id}"
            );
        };
        close(sampled.logprob, sampled.token as usize);
        let mut ids: Vec<usize> = (0..self.logits.len()).collect();
        ids.sort_by(|&a, &b| self.logits[b].total_cmp(&self.logits[a]).then(a.cmp(&b)));
        for (i, &id) in ids.iter().enumerate().take(count as usize) {
            assert_eq!(sampled.top_ids[i] as usize, id, "{what}: place {i}");
            close(sampled.top_logprobs[i], id);
        }
    }
}

fn sampling(random: &mut Random) -> abi::tg_sampling {
    let pick = |random: &mut Random, values: [f32; 4]| values[random.below(4)].to_bits();
    abi::tg_sampling {
        key: random.next(),
        temperature: pick(random, [0.0, 0.3, 1.0, 1.7]),
        top_p: pick(random, [1.0, 0.05, 0.6, 0.95]),
        min_p: pick(random, [0.0, 0.0, 0.02, 0.4]),
        repetition_penalty: pick(random, [1.0, 1.3, 1.1, 0.8]),
        top_k: [0, 1, 7, 60][random.below(4)],
        logprobs: [abi::TG_LOGPROBS_NONE, 0, 3, 20][random.below(4)],
    }
}

/// Logits with a few likely ids; in steps of an eighth for every second case, so that many tie.
fn logits(random: &mut Random, vocabulary: usize) -> Vec<f32> {
    let spread = 1.0 + random.below(8) as f32;
    let coarse = random.below(2) == 0;
    let values = random.values(vocabulary, 1.0).into_iter();
    values
        .map(|v| {
            let v = v.powi(3) * spread * 3.0;
            if coarse {
                (v * 8.0).round() / 8.0 + 0.0
            } else {
                v
            }
        })
        .collect()
}

/// A slot's tokens over two steps: the second samples. Returns what was sampled.
fn run(gpu: &Gpu, rig: &Rig, rows: &[Row], score: bool) -> Vec<abi::tg_sampled> {
    let vocabulary = rig.config.vocab_size;
    let mut step = Step::with_slots(&mut Random(0), rows.len(), 64, 16);
    let seen: Buffer = gpu.poisoned(rows.len() * seen_words(vocabulary) * 4);
    for (slot, row) in step.slots.iter_mut().zip(rows) {
        slot.sampling = row.sampling;
        slot.last_token = row.seen.last().map_or(-1, |&id| id as i32);
    }
    let last_of = |row: &Row| row.seen.len() - 1;
    let mut before = step.clone();
    for (slot, row) in rows.iter().enumerate() {
        let tokens = row.seen[..last_of(row)]
            .iter()
            .map(|&id| id as i32)
            .collect();
        before.chunks.push(Chunk {
            slot: slot as u32,
            first_position: 0,
            tokens,
            sampled: false,
        });
        // Every other row is a decode row: its token is its slot's newest.
        let token = if slot % 2 == 0 {
            -1
        } else {
            row.seen[last_of(row)] as i32
        };
        step.chunks.push(Chunk {
            slot: slot as u32,
            first_position: row.position,
            tokens: vec![token],
            sampled: true,
        });
    }
    let before = before.upload(gpu);
    let enqueue = rig.enqueue(&before, StepKind::Mixed, before.rows);
    // SAFETY: `seen` has a bitmap for each slot.
    unsafe { enqueue.run(|to| to.mark_seen(seen.at(0))) };

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
    // SAFETY: the arrays have the shapes that the operations ask for.
    unsafe {
        enqueue.run(|to| {
            if score {
                to.mark_seen(seen.at(0));
            }
            to.sample(part, logits.at(0), seen.at(0), best.at(0), None);
        });
    }
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
                .map(|_| {
                    let seen = 2 + random.below(40);
                    Row {
                        logits: logits(&mut random, vocabulary),
                        seen: (0..seen).map(|_| random.below(vocabulary) as u32).collect(),
                        sampling: sampling(&mut random),
                        position: seen as u32 - 1,
                    }
                })
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
            seen: vec![0, 1],
            sampling: abi::tg_sampling {
                repetition_penalty: 1.0_f32.to_bits(),
                temperature: 1.0_f32.to_bits(),
                top_p: 0.25_f32.to_bits(),
                logprobs: abi::TG_LOGPROBS_NONE,
                key,
                ..abi::tg_sampling::default()
            },
            position: 1,
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
                seen: vec![0, 1],
                sampling: abi::tg_sampling {
                    key: (chunk * 500 + i) as u64,
                    temperature: 1.0_f32.to_bits(),
                    top_p: 1.0_f32.to_bits(),
                    repetition_penalty: 1.0_f32.to_bits(),
                    logprobs: abi::TG_LOGPROBS_NONE,
                    ..abi::tg_sampling::default()
                },
                position: 1,
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
    let greedy = abi::tg_sampling {
        top_p: 1.0_f32.to_bits(),
        repetition_penalty: 1.0_f32.to_bits(),
        logprobs: abi::TG_LOGPROBS_NONE,
        ..abi::tg_sampling::default()
    };
    let row = |change: &dyn Fn(&mut [f32]), temperature: f32| {
        let mut logits = vec![-0.0; 70];
        change(&mut logits);
        Row {
            logits,
            seen: vec![0, 1],
            sampling: abi::tg_sampling {
                temperature: temperature.to_bits(),
                ..greedy
            },
            position: 1,
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
            rows.push(Row {
                logits,
                seen: vec![0, 0],
                sampling: abi::tg_sampling {
                    top_p: 1.0_f32.to_bits(),
                    repetition_penalty: 1.0_f32.to_bits(),
                    logprobs: abi::TG_LOGPROBS_NONE,
                    ..abi::tg_sampling::default()
                },
                position: 1,
            });
        }
        let sampled = run(&gpu, &rig, &rows, false);
        let tokens: Vec<i32> = sampled.iter().map(|s| s.token).collect();
        assert_eq!(tokens, expected, "vocabulary {vocabulary}, {count} rows");
    }
}
