//! Draws against exact probabilities, each filter alone and together, ties, penalty and logprobs.

use super::*;
use crate::backend::cpu::check::Numbers;

fn plain() -> abi::tg_sampling {
    abi::tg_sampling {
        key: 0x1234_5678_9abc_def0,
        temperature: 1f32.to_bits(),
        top_p: 1f32.to_bits(),
        min_p: 0,
        repetition_penalty: 1f32.to_bits(),
        top_k: 0,
        logprobs: abi::TG_LOGPROBS_NONE,
        ..Default::default()
    }
}

fn seen(seen: &[u32]) -> History<'_> {
    History {
        seen,
        ..History::default()
    }
}

fn greedy() -> abi::tg_sampling {
    abi::tg_sampling {
        temperature: 0,
        ..plain()
    }
}

fn token(logits: &[f32], bits: &[u32], sampling: &abi::tg_sampling, position: u32) -> u32 {
    let sampled = Sampler::new(logits.len()).run(logits, seen(bits), sampling, position);
    sampled.token as u32
}

/// That draws at many positions follow `expected` (0 where a token must never come): chi-square against
/// its mean plus five standard deviations.
fn assert_distribution(logits: &[f32], sampling: &abi::tg_sampling, expected: &[f64]) {
    const DRAWS: u32 = 20_000;
    let total: f64 = expected.iter().sum();
    let mut counts = vec![0.0; logits.len()];
    let mut sampler = Sampler::new(logits.len());
    for position in 0..DRAWS {
        let sampled = sampler.run(logits, seen(&[0]), sampling, position);
        counts[sampled.token as usize] += 1.0;
    }
    let (mut chi_square, mut freedom) = (0.0, -1.0f64);
    for (&count, &weight) in counts.iter().zip(expected) {
        if weight == 0.0 {
            assert_eq!(count, 0.0, "a removed token came: {counts:?}");
            continue;
        }
        let mean = weight / total * f64::from(DRAWS);
        chi_square += (count - mean).powi(2) / mean;
        freedom += 1.0;
    }
    let limit = freedom + 5.0 * (2.0 * freedom).sqrt();
    assert!(chi_square <= limit, "{chi_square} > {limit}: {counts:?}");
}

fn logits_of(probabilities: &[f64]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln() as f32).collect()
}

#[test]
fn draws_follow_the_softmax() {
    let p = [0.05, 0.3, 0.02, 0.13, 0.2, 0.1, 0.04, 0.06, 0.1];
    assert_distribution(&logits_of(&p), &plain(), &p);
    let halved: Vec<f64> = p.iter().map(|p| p.powf(2.0)).collect();
    let sampling = abi::tg_sampling {
        temperature: 0.5f32.to_bits(),
        ..plain()
    };
    assert_distribution(&logits_of(&p), &sampling, &halved);
}

#[test]
fn top_k_keeps_all_that_tie_with_the_kth() {
    let p = [0.1, 0.4, 0.1, 0.05, 0.1, 0.25];
    let sampling = abi::tg_sampling {
        top_k: 3,
        ..plain()
    };
    assert_distribution(&logits_of(&p), &sampling, &[0.1, 0.4, 0.1, 0.0, 0.1, 0.25]);
}

#[test]
fn top_p_removes_the_tail_and_keeps_one() {
    let p = [0.1, 0.45, 0.15, 0.3];
    for (top_p, expected) in [
        (0.95f32, [0.1, 0.45, 0.15, 0.3]),
        (0.85, [0.0, 0.45, 0.15, 0.3]),
        (0.7, [0.0, 0.45, 0.0, 0.3]),
        (0.0, [0.0, 1.0, 0.0, 0.0]),
    ] {
        let sampling = abi::tg_sampling {
            top_p: top_p.to_bits(),
            ..plain()
        };
        assert_distribution(&logits_of(&p), &sampling, &expected);
    }
}

#[test]
fn top_p_removes_the_higher_id_of_a_tie_first() {
    let sampling = abi::tg_sampling {
        top_p: 0.6f32.to_bits(),
        ..plain()
    };
    assert_distribution(&[0.0; 4], &sampling, &[1.0, 1.0, 1.0, 0.0]);
}

#[test]
fn min_p_is_relative_to_the_largest() {
    let p = [0.1, 0.5, 0.15, 0.25];
    for (min_p, expected) in [
        (0.25f32, [0.0, 0.5, 0.15, 0.25]),
        (0.45, [0.0, 0.5, 0.0, 0.25]),
        (1.0, [0.0, 1.0, 0.0, 0.0]),
    ] {
        let sampling = abi::tg_sampling {
            min_p: min_p.to_bits(),
            ..plain()
        };
        assert_distribution(&logits_of(&p), &sampling, &expected);
    }
}

#[test]
fn filters_apply_one_after_the_other() {
    // top-k leaves .4 .3 .2; of these, renormalised (.44 .33 .22), top-p 0.7 removes .22; temperature 2
    // flattens what is left and comes first.
    let p: Vec<f64> = [0.4, 0.3, 0.2, 0.06, 0.04].to_vec();
    let squared: Vec<f64> = p.iter().map(|p| p * p).collect();
    let sampling = abi::tg_sampling {
        temperature: 2f32.to_bits(),
        top_k: 3,
        top_p: 0.7f32.to_bits(),
        ..plain()
    };
    assert_distribution(&logits_of(&squared), &sampling, &[0.4, 0.3, 0.0, 0.0, 0.0]);
}

#[test]
fn greedy_takes_the_lowest_of_the_largest() {
    assert_eq!(token(&[1.0, 3.0, -1.0, 3.0], &[0], &greedy(), 0), 1);
    assert_eq!(token(&[-0.0, 0.0], &[0], &greedy(), 0), 0);
}

#[test]
fn the_penalty_pushes_seen_tokens_down_from_either_side() {
    let sampling = abi::tg_sampling {
        repetition_penalty: 2f32.to_bits(),
        ..greedy()
    };
    let seen = |ids: &[u32]| {
        let mut seen = SeenTokens::new(2, 40);
        ids.iter().for_each(|&id| seen.insert(1, id));
        assert!(seen.of(0).iter().all(|&word| word == 0));
        seen
    };
    let mut logits = vec![-9.0f32; 40];
    (logits[3], logits[35], logits[20]) = (4.0, 2.5, 1.0);
    assert_eq!(token(&logits, seen(&[]).of(1), &sampling, 0), 3);
    assert_eq!(token(&logits, seen(&[3]).of(1), &sampling, 0), 35);
    assert_eq!(token(&logits, seen(&[3, 35]).of(1), &sampling, 0), 3);
    let negative = [-1.0, -1.5];
    assert_eq!(token(&negative, &[0], &sampling, 0), 0);
    assert_eq!(token(&negative, &[1], &sampling, 0), 1);
    let mut seen = seen(&[3, 35]);
    seen.clear(1);
    assert!(seen.of(1).iter().all(|&word| word == 0));
}

/// All that comes before the temperature, against the formulas in f64.
#[test]
fn biases_penalties_and_least_lengths_are_their_formulas() {
    let mut numbers = Numbers::new(35);
    for case in 0..40u32 {
        let vocabulary = 3 + case as usize * 7;
        let logits = numbers.normal(vocabulary);
        let every = |n: u32| (0..vocabulary as u32).filter(move |id| id % n == case % n);
        let mut counts = AnswerCounts::new(2, vocabulary);
        for id in every(3) {
            (0..=id % 5).for_each(|_| counts.add(1, id));
        }
        assert!(counts.of(0).iter().all(|&count| count == 0));
        let mut seen = SeenTokens::new(2, vocabulary);
        every(2).for_each(|id| seen.insert(1, id));
        let mut biases: Vec<_> = every(4)
            .map(|id| abi::tg_bias {
                id,
                bias: (id as f32 - 3.5).to_bits(),
            })
            .collect();
        // A model may have no such token.
        biases.push(abi::tg_bias {
            id: vocabulary as u32,
            bias: 1,
        });
        let stop_ids = [0, 2, vocabulary as i32, -1];
        let history = History {
            seen: seen.of(1),
            counts: counts.of(1),
            biases: &biases,
            stop_ids: &stop_ids,
        };
        let (repetition, presence, frequency) = (1.3f32, 0.7f32, -0.2f32);
        let on = |bit: u32, value: f32, none: f32| match case >> bit & 1 {
            1 => value,
            _ => none,
        };
        let repetition = on(0, repetition, 1.0);
        let (presence, frequency) = (on(1, presence, 0.0), on(2, frequency, 0.0));
        let sampling = abi::tg_sampling {
            repetition_penalty: repetition.to_bits(),
            presence_penalty: presence.to_bits(),
            frequency_penalty: frequency.to_bits(),
            stop_from: 10,
            ..greedy()
        };
        let position = 9 + case % 2;
        let mut sampler = Sampler::new(vocabulary);
        let sampled = sampler.run(&logits, history, &sampling, position);
        let expected: Vec<f64> = (0..vocabulary as u32)
            .map(|id| {
                let mut l = f64::from(logits[id as usize]);
                if id % 4 == case % 4 {
                    l += f64::from(id) - 3.5;
                }
                if id % 2 == case % 2 {
                    let p = f64::from(repetition);
                    l = if l < 0.0 { l * p } else { l / p };
                }
                if id % 3 == case % 3 {
                    l -= f64::from(presence) + f64::from(frequency) * f64::from(1 + id % 5);
                }
                if position < 10 && (id == 0 || id == 2) {
                    f64::NEG_INFINITY
                } else {
                    l
                }
            })
            .collect();
        for (id, (&score, &l)) in sampler.scores.iter().zip(&expected).enumerate() {
            let close = f64::from(score) == l || (f64::from(score) - l).abs() < 1e-4;
            assert!(close, "case {case}, id {id}: {score}, expected {l}");
        }
        let best = expected.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert!(
            best - expected[sampled.token as usize] < 1e-4,
            "case {case}"
        );
    }
}

#[test]
fn counts_end_where_16_bits_do() {
    let mut counts = AnswerCounts::new(1, 3);
    (0..70_000).for_each(|_| counts.add(0, 1));
    assert_eq!(counts.of(0), [0, u16::MAX, 0]);
    counts.clear(0);
    assert_eq!(counts.of(0), [0; 3]);
}

#[test]
fn a_draw_depends_on_key_position_and_logits_only() {
    let mut numbers = Numbers::new(11);
    let logits = numbers.normal(500);
    let draws = |key: u64| -> Vec<u32> {
        let sampling = abi::tg_sampling { key, ..plain() };
        (0..50)
            .map(|position| token(&logits, &[0], &sampling, position))
            .collect()
    };
    assert_eq!(draws(7), draws(7));
    assert_ne!(draws(7), draws(8));
    assert_ne!(draws(7), draws(7 | 1 << 32));
    // Filters that remove nothing change nothing.
    let loose = abi::tg_sampling {
        top_k: 499,
        top_p: 0.999_999f32.to_bits(),
        min_p: 1e-9f32.to_bits(),
        key: 7,
        ..plain()
    };
    let filtered: Vec<u32> = (0..50)
        .map(|position| token(&logits, &[0], &loose, position))
        .collect();
    assert_eq!(filtered, draws(7));
}

#[test]
fn gumbel_is_finite_for_every_word() {
    for word in [0, 255, 256, u32::MAX / 2, u32::MAX - 255, u32::MAX] {
        assert!(gumbel(word).is_finite(), "{word:#x}");
    }
    assert!((gumbel(1 << 31) - -(2f64.ln().ln())).abs() < 1e-6);
}

#[test]
fn logprobs_are_of_the_raw_logits() {
    let logits = [1.0f32, 3.0, -2.0, 3.0, 0.5];
    let sampling = abi::tg_sampling {
        repetition_penalty: 100f32.to_bits(),
        logprobs: 3,
        ..greedy()
    };
    let sampled = Sampler::new(5).run(&logits, seen(&[0b01010]), &sampling, 4);
    let sum: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
    let close = |bits: u32, logit: f64| {
        assert!((f64::from(f32::from_bits(bits)) - (logit - sum.ln())).abs() < 1e-6);
    };
    assert_eq!(sampled.token, 0);
    close(sampled.logprob, 1.0);
    assert_eq!(sampled.top_ids[..4], [1, 3, 0, 0]);
    close(sampled.top_logprobs[0], 3.0);
    close(sampled.top_logprobs[1], 3.0);
    close(sampled.top_logprobs[2], 1.0);
    assert_eq!(sampled.top_logprobs[3], 0);
}

#[test]
fn more_alternatives_than_tokens_are_all_tokens() {
    let sampling = abi::tg_sampling {
        logprobs: abi::TG_MAX_LOGPROBS,
        ..greedy()
    };
    let sampled = Sampler::new(2).run(&[0.0, 1.0], seen(&[0]), &sampling, 1);
    assert_eq!(sampled.top_ids[..2], [1, 0]);
}

#[test]
fn a_logit_that_is_not_finite_leaves_no_token() {
    let asking = abi::tg_sampling {
        logprobs: 2,
        ..plain()
    };
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for sampling in [greedy(), plain(), asking] {
            let sampled = Sampler::new(2).run(&[0.0, wrong], seen(&[0]), &sampling, 9);
            assert_eq!(sampled.token, -1, "{wrong}");
        }
    }
}
