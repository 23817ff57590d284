//! Requests that ran in company against the same requests run alone. In f32 their tokens are equal but for ties: other
//! buckets have other kernels, and where two tokens are closer than the noise of f32 it decides between them.
//!
//! The noise is measured: both runs give logprobs, and until the first token that differs they are logprobs of the same
//! thing. Whether noise of that size decides between two tokens is asked of the CPU's sampler, with the logits of the
//! sequence up to there: raised for the one and lowered for the other by twice the noise, and the other way round, it
//! must choose the one and then the other. A routing score can tie too, and then another expert moves all logits at once.
//! Where that happened, the report has the sequence and what both runs found, and tests/gpu/oracle.py --soak shows
//! with transformers that a routing tie is all there is to it.

use super::drive::{Driver, Ended};
use super::load::{Ask, Fate, Random, Shape, ask};
use parking_lot::Mutex;
use serde::Serialize;
use std::collections::BTreeMap;
use tailgraph::backend::LogitsSink;
use tailgraph::backend::cpu::sample::{AnswerCounts, History, Sampler, SeenTokens};
use tailgraph::runtime::TokenLogprobs;
use tailgraph::sys::abi;
use tailgraph::{Error, Result};

/// Alternatives that come with each token of a request that is run twice.
const LOGPROBS: u32 = 20;
/// Logprobs of the same sequence that differ by more than this do not differ by rounding alone.
const JUMP: f64 = 1e-3;

/// What came of the comparison.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Comparison {
    pub requests: usize,
    pub equal: usize,
    /// Tokens of the equal requests, and the others' up to where they differ.
    pub equal_tokens: usize,
    /// The largest difference of logprobs of the same sequence at a position: median, 99th percentile and largest.
    pub noise: [f64; 3],
    /// Requests whose logprobs jump somewhere, tokens equal or not.
    pub jumps: Vec<Jump>,
    /// Each a tie by the noise at its place.
    pub ties: Vec<Difference>,
    pub wrong: Vec<Difference>,
}

/// A request whose tokens differ.
#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    pub number: u64,
    /// The new token's position, counted from the first of the prompt.
    pub position: usize,
    /// In company, and alone.
    pub tokens: [u32; 2],
    pub logprobs: [f64; 2],
    pub greedy: bool,
    /// Largest difference of logprobs up to there.
    pub noise: f64,
}

/// Where logprobs of the same sequence first differ by more than rounding.
#[derive(Debug, Clone, Serialize)]
pub struct Jump {
    pub number: u64,
    /// Prompt and new tokens so far.
    pub sequence: Vec<u32>,
    /// Log-probabilities of the most likely next tokens.
    pub in_company: Vec<(u32, f32)>,
    pub alone: Vec<(u32, f32)>,
    /// Largest difference of logprobs before.
    pub noise_before: f64,
}

/// Keeps the last logits that came.
#[derive(Default)]
pub struct LastLogits(Mutex<Vec<f32>>);

impl LogitsSink for LastLogits {
    fn rows(&self, _: u64, _: u32, logits: &[f32]) -> Result<()> {
        self.0.lock().clear();
        self.0.lock().extend_from_slice(logits);
        Ok(())
    }
}

/// `count` of the first `requests` requests that nothing ends early, by seed; with logprobs.
pub fn choose(seed: u64, requests: u64, count: usize, shape: &Shape) -> BTreeMap<u64, Ask> {
    let mut whole: Vec<Ask> = (0..requests)
        .map(|number| ask(seed, number, shape))
        .filter(|ask| ask.fate == Fate::Whole)
        .collect();
    let mut random = Random(seed);
    let mut chosen = BTreeMap::new();
    while chosen.len() < count && !whole.is_empty() {
        let at = random.below(whole.len() as u32) as usize;
        let mut ask = whole.swap_remove(at);
        ask.request.sampling.logprobs = Some(LOGPROBS);
        chosen.insert(ask.number, ask);
    }
    chosen
}

/// Runs `together`'s requests again, one at a time.
///
/// # Errors
/// The engine's, or an end that was not asked for.
pub fn compare(
    driver: &mut Driver,
    together: &[Ended],
    sink: &LastLogits,
    shape: &Shape,
) -> Result<Comparison> {
    let mut alone = Vec::with_capacity(together.len());
    let mut asks = together.iter().map(|ended| ended.ask.clone());
    driver.run(&mut asks, 1, &mut |ended| {
        alone.push(ended);
        Ok(())
    })?;
    let mut found = Comparison {
        requests: together.len(),
        ..Comparison::default()
    };
    let mut all_noise = Vec::new();
    for (company, alone) in together.iter().zip(&alone) {
        let pairs = company.tokens.iter().zip(&alone.tokens);
        let same = pairs.take_while(|(c, a)| c == a).count();
        let differs = same < company.tokens.len().max(alone.tokens.len());
        // Logprobs at the first token that differs are still of the same sequence.
        let pairs = company.logprobs.iter().zip(&alone.logprobs);
        let noise: Vec<f64> = pairs.take(same + 1).map(|(c, a)| distance(c, a)).collect();
        found.equal_tokens += same;
        if let Some(at) = noise.iter().position(|&noise| noise > JUMP) {
            found.jumps.push(Jump {
                number: company.ask.number,
                sequence: [&company.ask.request.prompt[..], &company.tokens[..at]].concat(),
                in_company: company.logprobs[at].top.clone(),
                alone: alone.logprobs[at].top.clone(),
                noise_before: largest(&noise[..at]),
            });
        }
        all_noise.extend_from_slice(&noise);
        if !differs {
            // The same tokens end a request in the same way.
            assert_eq!(company.reason, alone.reason, "{:?}", company.ask);
            found.equal += 1;
            continue;
        }
        let (Some(&mine), Some(&theirs)) = (company.tokens.get(same), alone.tokens.get(same))
        else {
            return Err(Error::Runtime(format!(
                "request {}: {} tokens in company ({:?}) and {} alone ({:?}), the shorter being the beginning of the longer",
                company.ask.number,
                company.tokens.len(),
                company.reason,
                alone.tokens.len(),
                alone.reason
            )));
        };
        let sequence = [&company.ask.request.prompt[..], &company.tokens[..same]].concat();
        driver.score_last(&sequence)?;
        let logits = std::mem::take(&mut *sink.0.lock());
        let difference = Difference {
            number: company.ask.number,
            position: sequence.len(),
            tokens: [mine, theirs],
            logprobs: [mine, theirs].map(|token| log_softmax(&logits, token)),
            greedy: company.ask.request.sampling.temperature == 0.0,
            noise: largest(&noise),
        };
        if is_tie(&company.ask, &sequence, logits, &difference, shape) {
            found.ties.push(difference);
        } else {
            found.wrong.push(difference);
        }
    }
    all_noise.sort_by(f64::total_cmp);
    if let Some(last) = all_noise.len().checked_sub(1) {
        found.noise = [last / 2, last * 99 / 100, last].map(|at| all_noise[at]);
    }
    Ok(found)
}

fn largest(noise: &[f64]) -> f64 {
    noise.iter().copied().fold(0.0, f64::max)
}

/// Largest difference of the logprobs that both have.
fn distance(a: &TokenLogprobs, b: &TokenLogprobs) -> f64 {
    let common = a.top.iter().filter_map(|&(token, logprob)| {
        let other = b.top.iter().find(|&&(other, _)| other == token)?;
        Some(f64::from(logprob - other.1).abs())
    });
    common.fold(0.0, f64::max)
}

fn log_softmax(logits: &[f32], token: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - max).exp()).sum();
    f64::from(logits[token as usize] - max) - sum.ln()
}

/// Whether noise of this size decides between the two tokens.
fn is_tie(
    ask: &Ask,
    sequence: &[u32],
    mut logits: Vec<f32>,
    difference: &Difference,
    shape: &Shape,
) -> bool {
    let sampling = &ask.request.sampling;
    let sampling = abi::tg_sampling {
        key: sampling.key,
        temperature: sampling.temperature.to_bits(),
        top_p: sampling.top_p.to_bits(),
        min_p: sampling.min_p.to_bits(),
        repetition_penalty: sampling.repetition_penalty.to_bits(),
        presence_penalty: sampling.presence_penalty.to_bits(),
        frequency_penalty: sampling.frequency_penalty.to_bits(),
        top_k: sampling.top_k,
        logprobs: abi::TG_LOGPROBS_NONE,
        stop_from: ask.request.prompt.len() as u32 + ask.request.min_new_tokens,
        ..Default::default()
    };
    let mut seen = SeenTokens::new(1, shape.vocab_size as usize);
    for &token in sequence {
        seen.insert(0, token);
    }
    let mut counts = AnswerCounts::new(1, shape.vocab_size as usize);
    for &token in &sequence[ask.request.prompt.len()..] {
        counts.add(0, token);
    }
    let biases: Vec<_> = (ask.request.biases.iter())
        .map(|&(id, bias)| abi::tg_bias {
            id,
            bias: bias.to_bits(),
        })
        .collect();
    let stop_ids: Vec<i32> = ask.request.stop_ids.iter().map(|&id| id as i32).collect();
    let history = History {
        seen: seen.of(0),
        counts: counts.of(0),
        biases: &biases,
        stop_ids: &stop_ids,
    };
    let mut sampler = Sampler::new(shape.vocab_size as usize);
    let by = 2.0 * difference.noise as f32;
    let [mine, theirs] = difference.tokens.map(|token| token as usize);
    let original = (logits[mine], logits[theirs]);
    let mut chosen = |mine_by: f32, theirs_by: f32| {
        logits[mine] = original.0 + mine_by;
        logits[theirs] = original.1 + theirs_by;
        let sampled = sampler.run(&logits, history, &sampling, sequence.len() as u32);
        sampled.token as usize
    };
    chosen(by, -by) == mine && chosen(-by, by) == theirs
}
