//! The whole product on the CPU against what Hugging Face transformers computed (tests/fixtures/goldens):
//! logits of every position, greedy continuations, and identical bits however the work is cut up.

mod common;

use common::engine::{by_request, request, serve};
use common::golden::{self, Golden, relative_error};
use std::collections::HashMap;
use std::sync::Arc;
use tailgraph::backend::{LogitsSink, cpu};
use tailgraph::error::Result;
use tailgraph::model::Model;
use tailgraph::plan::{BucketSizes, Plan};
use tailgraph::runtime::{EndReason, EngineOptions, Logits, Request, SingleEngine};

const VARIANTS: [&str; 7] = ["a", "b", "c", "d", "e", "f", "g"];
/// Greedy continuations in the goldens have this many tokens.
const CONTINUATION: u32 = 32;

/// How the same work is cut up.
#[derive(Debug, Clone, Copy)]
struct Cut {
    max_seqs: u32,
    chunk: u32,
    step_tokens: u32,
    page_tokens: u32,
    stages: usize,
    /// Requests of other lengths run in between.
    company: bool,
}

const PLAIN: Cut = Cut {
    max_seqs: 16,
    chunk: 64,
    step_tokens: 512,
    page_tokens: 64,
    stages: 1,
    company: false,
};

/// Logits by request number and position, as the sink received them.
#[derive(Default)]
struct Collected(parking_lot::Mutex<HashMap<(u64, u32), Vec<f32>>>);

impl LogitsSink for Collected {
    fn rows(&self, request: u64, first_position: u32, logits: &[f32]) -> Result<()> {
        let mut rows = self.0.lock();
        let previous = rows.insert((request, first_position), logits.to_vec());
        assert!(
            previous.is_none(),
            "delivered twice: request {request} at {first_position}"
        );
        Ok(())
    }
}

impl Collected {
    /// All positions of one request in order: `[T, V]`.
    fn of(&self, request: u64) -> Vec<f32> {
        let rows = self.0.lock();
        let mut pieces: Vec<_> = rows.iter().filter(|((r, _), _)| *r == request).collect();
        pieces.sort_by_key(|((_, position), _)| *position);
        pieces
            .iter()
            .flat_map(|(_, logits)| logits.iter().copied())
            .collect()
    }
}

fn scored(prompt: &[u32]) -> Request {
    Request {
        logits: Logits::All,
        ..request(prompt.iter().copied(), 0)
    }
}

/// Runs all requests and gives each one's tokens, and the logits that were asked for.
fn run(model: &Arc<Model>, cut: Cut, requests: &[Request]) -> (Vec<Vec<u32>>, Arc<Collected>) {
    let tops = |count: u32| vec![count.max(cut.step_tokens)];
    let bucket_sizes = BucketSizes {
        decode: vec![1, 2, cut.max_seqs.max(3)],
        mixed: tops(1),
        score: tops(1),
    };
    let plan = Arc::new(
        Plan::new(
            Arc::new(model.config.clone()),
            bucket_sizes.clone(),
            cut.stages,
            None,
        )
        .unwrap(),
    );
    let longest = requests
        .iter()
        .map(|r| r.prompt.len() as u32 + r.max_new_tokens)
        .max()
        .unwrap();
    let options = EngineOptions {
        max_seqs: cut.max_seqs,
        max_context: longest,
        page_tokens: cut.page_tokens,
        pages: cut.max_seqs * longest.div_ceil(cut.page_tokens),
        step_tokens: cut.step_tokens,
        chunk_tokens: cut.step_tokens,
        chunk_share: 0,
        chunk_align: cut.chunk,
        steps_in_flight: cut.stages as u32,
        prefixes: 0,
        record: false,
    };
    let sink = Arc::new(Collected::default());
    let stages = cpu::stages(model, &plan, &options, &Some(sink.clone() as _)).unwrap();
    let mut engine = SingleEngine::start(stages, &bucket_sizes, &options).unwrap();
    let ended = by_request(&serve(&mut engine, requests), requests.len());
    let tokens = ended.into_iter().map(|(tokens, end)| {
        assert_eq!(end, EndReason::Length);
        tokens
    });
    (tokens.collect(), sink)
}

/// Scores and continues every prompt under `cut`: (logits, continuations), in the order of the prompts.
fn everything(golden: &Golden, cut: Cut) -> (Vec<Vec<f32>>, Vec<Vec<u32>>) {
    let mut requests = vec![];
    let prompts = golden.prompts();
    for (index, prompt) in prompts.iter().enumerate() {
        requests.push(scored(prompt));
        requests.push(request(prompt.iter().copied(), CONTINUATION));
        if cut.company {
            let other: Vec<u32> = prompt
                .iter()
                .rev()
                .cycle()
                .take(3 + 29 * index)
                .copied()
                .collect();
            requests.push(request(other, 5 + index as u32));
        }
    }
    let stride = if cut.company { 3 } else { 2 };
    let (tokens, sink) = run(&golden.model, cut, &requests);
    let logits = (0..prompts.len())
        .map(|i| sink.of((i * stride) as u64))
        .collect();
    let continuations = (0..prompts.len())
        .map(|i| tokens[i * stride + 1].clone())
        .collect();
    (logits, continuations)
}

fn bits(logits: &[Vec<f32>]) -> Vec<Vec<u32>> {
    logits
        .iter()
        .map(|prompt| prompt.iter().map(|x| x.to_bits()).collect())
        .collect()
}

#[test]
fn logits_and_greedy_continuations_are_transformers() {
    for name in VARIANTS {
        let golden = golden::load(name);
        let (logits, continuations) = everything(&golden, PLAIN);
        let expected = (0..logits.len()).map(|i| golden.f32s(&format!("logits.{i}")));
        let expected: Vec<Vec<f32>> = expected.collect();
        let pairs = logits.iter().zip(&expected);
        let error = relative_error(pairs.map(|(found, expected)| (&found[..], &expected[..])));
        println!("{name}: relative error {error:.2e}");
        assert!(
            error <= 1e-5,
            "{name}: relative error {error:.2e} of all logits, at most 1e-5 allowed"
        );
        for (index, found) in continuations.iter().enumerate() {
            let expected = &golden.ids(&format!("greedy.{index}"));
            assert_eq!(
                found, expected,
                "{name}: greedy continuation of prompt {index}"
            );
        }
    }
}

#[test]
fn bits_do_not_depend_on_how_the_work_is_cut() {
    let one_by_one = |chunk: u32| Cut {
        max_seqs: 1,
        chunk,
        step_tokens: chunk + 1,
        ..PLAIN
    };
    let cuts = [
        one_by_one(1),
        one_by_one(7),
        one_by_one(16),
        one_by_one(64),
        Cut {
            chunk: 7,
            step_tokens: 24,
            ..PLAIN
        },
        Cut {
            page_tokens: 16,
            ..PLAIN
        },
        Cut {
            stages: 2,
            chunk: 16,
            step_tokens: 48,
            ..PLAIN
        },
        Cut { stages: 3, ..PLAIN },
        Cut {
            company: true,
            ..PLAIN
        },
        Cut {
            company: true,
            stages: 3,
            page_tokens: 16,
            chunk: 16,
            step_tokens: 40,
            ..PLAIN
        },
    ];
    for name in VARIANTS {
        let golden = golden::load(name);
        let (logits, continuations) = everything(&golden, PLAIN);
        let expected = bits(&logits);
        for cut in cuts {
            let (logits, found) = everything(&golden, cut);
            assert!(
                bits(&logits) == expected,
                "{name}: logits differ in bits under {cut:?}"
            );
            assert_eq!(
                found, continuations,
                "{name}: continuations differ under {cut:?}"
            );
        }
    }
}

/// Greedy answers with biases, penalties and stop ids that must not come: each token is the best by the formulas over the
/// logits of its position, scored afterwards. A slot serves one after the other.
#[test]
fn penalized_tokens_are_the_best_by_the_formulas() {
    for (name, cut) in [
        ("a", PLAIN),
        (
            "b",
            Cut {
                max_seqs: 2,
                stages: 2,
                chunk: 16,
                step_tokens: 48,
                ..PLAIN
            },
        ),
    ] {
        let golden = golden::load(name);
        let vocabulary = golden.model.config.vocab_size;
        let prompts = golden.prompts();
        let plain: Vec<Request> = prompts
            .iter()
            .map(|prompt| request(prompt.iter().copied(), CONTINUATION))
            .collect();
        let (unpenalized, _) = run(&golden.model, cut, &plain);
        let of = |index: usize, mut request: Request| {
            let sampling = &mut request.sampling;
            sampling.presence_penalty = [0.0, 1.5, -0.5, 0.0][index % 4];
            sampling.frequency_penalty = [0.75, 0.0, -0.1, 0.0][index % 4];
            sampling.repetition_penalty = [1.0, 1.2][index % 2];
            // What would have been said is held back, and some of it is also pushed.
            let said = &unpenalized[index];
            request.biases = vec![(said[1], -2.0), ((said[1] + 1) % vocabulary as u32, 0.5)];
            request.stop_ids = vec![said[0], said[1]];
            request.min_new_tokens = CONTINUATION;
            request
        };
        let asked: Vec<Request> = (plain.into_iter().enumerate())
            .map(|(index, request)| of(index, request))
            .collect();
        let (answers, _) = run(&golden.model, cut, &asked);
        let whole = |(request, answer): (&Request, &Vec<u32>)| {
            scored(&[&request.prompt[..], answer].concat())
        };
        let whole: Vec<Request> = asked.iter().zip(&answers).map(whole).collect();
        let (_, sink) = run(&golden.model, cut, &whole);
        for (index, (request, answer)) in asked.iter().zip(&answers).enumerate() {
            assert_ne!(answer, &unpenalized[index], "{name}, prompt {index}");
            let logits = sink.of(index as u64);
            for (place, &token) in answer.iter().enumerate() {
                let position = request.prompt.len() - 1 + place;
                let mut scores = logits[position * vocabulary..][..vocabulary].to_vec();
                for &(id, bias) in &request.biases {
                    scores[id as usize] += bias;
                }
                let (how, so_far) = (request.sampling, &answer[..place]);
                for (id, score) in scores.iter_mut().enumerate() {
                    let is = |token: &&u32| **token as usize == id;
                    if request.prompt.iter().chain(so_far).any(|token| is(&token)) {
                        *score *= if *score < 0.0 {
                            how.repetition_penalty
                        } else {
                            1.0 / how.repetition_penalty
                        };
                    }
                    let times = so_far.iter().filter(is).count();
                    if times > 0 {
                        *score -= how.presence_penalty + how.frequency_penalty * times as f32;
                    }
                }
                for &id in &request.stop_ids {
                    scores[id as usize] = f32::NEG_INFINITY;
                }
                let best = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                // 1 / p is rounded once more.
                let slack = best.abs() * 1e-6;
                assert!(
                    best - scores[token as usize] <= slack,
                    "{name}, prompt {index}, token {place}: {token} has {}, the best {best}",
                    scores[token as usize]
                );
            }
        }
    }
}
