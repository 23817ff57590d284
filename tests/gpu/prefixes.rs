//! Prompts that begin alike, with their prefixes shared and without: the same answers.

use crate::common::engine::PATIENCE;
use crate::common::golden;
use crate::common::random::Random;
use crate::engine::{Collector, OPTIONS, Outcome, Setup, WAYS, engine_of, greedy, score};
use std::sync::{Arc, Mutex};
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::{LaunchWay, SharedSink};
use tailgraph::model::{DType, Model};
use tailgraph::runtime::request::{Border, Event};
use tailgraph::runtime::{EndReason, Engine, EngineOptions, Logits, Request};

/// Lengths of three prefixes, of which each goes on from the one before: none ends where a chunk or a tile does, the last where a page
/// does.
const BORDERS: [u32; 3] = [37, 89, 160];

/// Prompts that have none, one, two or all of the prefixes, with and without penalties and biases; some are scored.
fn requests(vocab_size: u32, logits: bool) -> Vec<Request> {
    let mut random = Random(81);
    let mut tokens = |count: u32| -> Vec<u32> {
        let ids = (0..count).map(|_| random.below(vocab_size));
        ids.collect()
    };
    let common = tokens(BORDERS[2]);
    let mut requests = vec![];
    for (i, shared) in [3, 1, 3, 2, 0, 3, 2, 1, 3, 3, 2, 0, 1, 3]
        .into_iter()
        .enumerate()
    {
        let length = if shared == 0 { 0 } else { BORDERS[shared - 1] };
        let mut prompt = common[..length as usize].to_vec();
        prompt.extend(tokens([1, 7, 64, 20][i % 4]));
        let mut request = match i {
            9 | 10 if logits => score(&prompt, Logits::Last),
            11 if logits => score(&prompt, Logits::All),
            _ => greedy(&prompt, 9 + i as u32),
        };
        if request.max_new_tokens > 0 {
            request.sampling.repetition_penalty = [1.0, 1.3, 1.0][i % 3];
            request.sampling.frequency_penalty = [0.0, 0.4, 0.0, 0.0, 0.3][i % 5];
            request.sampling.logprobs = Some(3);
            request.biases = (0..i as u32 % 3 * 20)
                .map(|id| (id, 0.1 * id as f32))
                .collect();
        }
        let border = |(i, &tokens): (usize, &u32)| Border {
            prefix: 5 + i as u32,
            tokens,
        };
        request.borders = BORDERS[..shared].iter().enumerate().map(border).collect();
        requests.push(request);
    }
    requests
}

/// What came of the requests, and how many tokens of their prompts they had from others.
fn run(
    gpu: &OpenGpu,
    model: &Arc<Model>,
    (setup, prefixes): (Setup, u32),
    requests: &[Request],
) -> (Vec<Outcome>, u32) {
    let collector = Arc::new(Collector {
        outcomes: Mutex::new(vec![Outcome::default(); requests.len()]),
        vocab_size: model.config.vocab_size,
    });
    let wants_logits = requests
        .iter()
        .any(|request| request.logits != Logits::None);
    let sink: SharedSink = if wants_logits {
        Some(collector.clone())
    } else {
        None
    };
    let options = EngineOptions {
        prefixes,
        ..OPTIONS
    };
    let mut engine = engine_of(gpu, model, setup, &sink, &options);
    for request in requests {
        assert!(engine.try_submit(request).unwrap().is_some());
    }
    engine.launch().unwrap();
    engine.drain();
    let (mut ended, mut cached) = (0, 0);
    let mut outcomes = vec![Outcome::default(); requests.len()];
    while ended < requests.len() {
        match engine.next_event(PATIENCE).unwrap().expect("an event") {
            Event::Token {
                request,
                token,
                logprobs,
                ..
            } => {
                let outcome = &mut outcomes[request as usize];
                outcome.tokens.push(token);
                outcome.logprobs.extend(logprobs);
            }
            Event::End { reason, timing, .. } => {
                assert_eq!(reason, EndReason::Length);
                (ended, cached) = (ended + 1, cached + timing.cached_tokens);
            }
        }
    }
    drop(engine);
    let delivered = std::mem::take(&mut *collector.outcomes.lock().unwrap());
    for (outcome, delivered) in outcomes.iter_mut().zip(delivered) {
        outcome.logits = delivered.logits;
        outcome.first_position = delivered.first_position;
    }
    (outcomes, cached)
}

fn close(a: f32, b: f32) -> bool {
    (a - b).abs() <= 1e-5 * b.abs().max(1.0)
}

fn check(gpu: &OpenGpu, variant: &str, ways: &[LaunchWay], stages: &[usize], logits: bool) {
    let model = golden::load(variant).model;
    let mut requests = requests(model.config.vocab_size as u32, logits);
    if !logits {
        requests.truncate(6);
        for request in &mut requests {
            request.max_new_tokens = 2;
        }
    }
    let setup = |launch, stages| Setup {
        dtype: DType::F32,
        launch,
        stages,
    };
    let (expected, cached) = run(gpu, &model, (setup(ways[0], 1), 0), &requests);
    assert_eq!(cached, 0);
    // Places for all prefixes, and for fewer than there are.
    for (launch, stages, prefixes) in ways.iter().flat_map(|&launch| {
        let stages = stages
            .iter()
            .flat_map(move |&stages| [(launch, stages, 8), (launch, stages, 2)]);
        stages.collect::<Vec<_>>()
    }) {
        let what = format!("golden {variant} {launch:?}, {stages} stages, {prefixes} prefixes");
        let (found, cached) = run(gpu, &model, (setup(launch, stages), prefixes), &requests);
        assert!(cached >= 74, "{what}: {cached} tokens from others");
        for (request, (found, expected)) in found.iter().zip(&expected).enumerate() {
            let what = format!("{what}, request {request}");
            assert_eq!(found.tokens, expected.tokens, "{what}");
            assert_eq!(found.first_position, expected.first_position, "{what}");
            assert_eq!(found.logits.len(), expected.logits.len(), "{what}");
            let mut logits = found.logits.iter().zip(&expected.logits);
            assert!(logits.all(|(&a, &b)| close(a, b)), "{what}: logits");
            let mut logprobs = found.logprobs.iter().zip(&expected.logprobs);
            let all = logprobs.all(|(a, b)| close(a.logprob, b.logprob));
            assert!(all, "{what}: logprobs");
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn shared_prefixes_change_no_answer() {
    let gpu = OpenGpu::new(0).unwrap();
    for variant in ["a", "b"] {
        check(&gpu, variant, &WAYS, &[1, 2], true);
    }
}

/// Few of them, by the kernels that the host runs, too: without logits on their way to it.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_shared_prefixes_change_no_answer() {
    let gpu = OpenGpu::new(0).unwrap();
    check(&gpu, "a", &[LaunchWay::HostKernels], &[1], false);
}
