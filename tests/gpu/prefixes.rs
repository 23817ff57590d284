//! Prompts that begin alike, with their prefixes shared and without: the same answers.

use crate::common::engine::PATIENCE;
use crate::common::golden;
use crate::common::random::Random;
use crate::engine::{Collector, OPTIONS, Outcome, Setup, WAYS, device, greedy, plan, score};
use std::sync::{Arc, Mutex};
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::device::EngineSpec;
use tailgraph::backend::{LaunchWay, SharedSink};
use tailgraph::model::{DType, Model, ModelSource};
use tailgraph::plan::{BucketSizes, Plan};
use tailgraph::runtime::request::{Border, Event};
use tailgraph::runtime::{EndReason, Engine, EngineOptions, Logits, Request, SingleEngine};

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

/// A model of six layers, each of the full size, but without "experts" or "attention".
fn full_layers(without: &[&str]) -> Arc<Model> {
    let text = include_str!("lfm2-8b-a1b-6-layers.json");
    let mut config: serde_json::Value = serde_json::from_str(text).unwrap();
    if without.contains(&"experts") {
        config["num_dense_layers"] = 6.into();
    }
    if without.contains(&"attention") {
        config["layer_types"] = vec!["conv"; 6].into();
    }
    // Each call has a folder of its own, since tests run at the same time.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, config.to_string()).unwrap();
    let source = format!("random:{}", path.display());
    Arc::new(Model::load(&ModelSource::parse(&source).unwrap()).unwrap())
}

/// What came of the requests, and how many tokens of their prompts they had from others.
fn run(
    gpu: &OpenGpu,
    model: &Arc<Model>,
    setup: Setup,
    (plan, options): (&Plan, &EngineOptions),
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
    let spec = EngineSpec {
        model,
        plan,
        options,
        sink: &sink,
    };
    let device = device(gpu, setup.dtype, setup.launch);
    let mut engine = SingleEngine::on(&device, &spec).unwrap();
    engine.watch(PATIENCE);
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

/// What is compared: a model's answers with and without sharing.
struct Comparison<'a> {
    name: &'a str,
    model: &'a Arc<Model>,
    ways: &'a [LaunchWay],
    stages: &'a [usize],
    logits: bool,
    /// How far logits and logprobs may lie apart, as a share of the expected one, or of 1 where that is less; in f32.
    tolerance: f32,
}

impl Comparison<'_> {
    fn close(&self, a: f32, b: f32) -> bool {
        (a - b).abs() <= self.tolerance * b.abs().max(1.0)
    }

    fn check(&self, gpu: &OpenGpu) {
        let mut requests = requests(self.model.config.vocab_size as u32, self.logits);
        if !self.logits {
            requests.truncate(6);
            for request in &mut requests {
                request.max_new_tokens = 2;
            }
        }
        let run = |launch, stages, prefixes| {
            let setup = Setup {
                dtype: DType::F32,
                launch,
                stages,
            };
            let options = EngineOptions {
                prefixes,
                ..OPTIONS
            };
            let plan = plan(self.model, stages);
            run(gpu, self.model, setup, (&plan, &options), &requests)
        };
        let (expected, cached) = run(self.ways[0], 1, 0);
        assert_eq!(cached, 0);
        // Places for all prefixes, and for fewer than there are.
        for (launch, stages, prefixes) in self.ways.iter().flat_map(|&launch| {
            let stages = self.stages.iter();
            stages.flat_map(move |&stages| [(launch, stages, 8), (launch, stages, 2)])
        }) {
            let name = self.name;
            let what = format!("{name} {launch:?}, {stages} stages, {prefixes} prefixes");
            let (found, cached) = run(launch, stages, prefixes);
            assert!(cached >= 74, "{what}: {cached} tokens from others");
            for (request, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let what = format!("{what}, request {request}");
                assert_eq!(found.tokens, expected.tokens, "{what}");
                assert_eq!(found.first_position, expected.first_position, "{what}");
                assert_eq!(found.logits.len(), expected.logits.len(), "{what}");
                let mut logits = found.logits.iter().zip(&expected.logits);
                assert!(logits.all(|(&a, &b)| self.close(a, b)), "{what}: logits");
                let mut logprobs = found.logprobs.iter().zip(&expected.logprobs);
                let all = logprobs.all(|(a, b)| self.close(a.logprob, b.logprob));
                assert!(all, "{what}: logprobs");
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn shared_prefixes_change_no_answer() {
    let gpu = OpenGpu::new(0).unwrap();
    for variant in ["a", "b"] {
        Comparison {
            name: variant,
            model: &golden::load(variant).model,
            ways: &WAYS,
            stages: &[1, 2],
            logits: true,
            tolerance: 1e-5,
        }
        .check(&gpu);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn shared_prefixes_change_no_answer_at_full_shapes() {
    Comparison {
        name: "six full layers",
        model: &full_layers(&[]),
        ways: &[LaunchWay::DeviceGraph],
        stages: &[1],
        logits: true,
        tolerance: 1e-4,
    }
    .check(&OpenGpu::new(0).unwrap());
}

/// Few of them, by the kernels that the host runs, too: without logits on their way to it.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_shared_prefixes_change_no_answer() {
    Comparison {
        name: "a",
        model: &golden::load("a").model,
        ways: &[LaunchWay::HostKernels],
        stages: &[1],
        logits: false,
        tolerance: 1e-5,
    }
    .check(&OpenGpu::new(0).unwrap());
}

const ROWS: usize = 256;
const PROMPT: usize = 32;

/// One bucket a kind of step, in which [`ROWS`] requests of [`PROMPT`] tokens go together.
fn one_bucket(model: &Model) -> (Plan, EngineOptions) {
    let tokens = (ROWS * PROMPT) as u32;
    let sizes = BucketSizes {
        decode: vec![ROWS as u32],
        mixed: vec![tokens],
        score: vec![tokens],
    };
    let plan = Plan::new(Arc::new(model.config.clone()), sizes, 1, None).unwrap();
    let options = EngineOptions {
        max_seqs: ROWS as u32,
        max_context: 64,
        // A prefix has a page of its own, where it ends.
        pages: 5 * ROWS as u32,
        step_tokens: tokens,
        chunk_tokens: tokens,
        prefixes: 8,
        ..OPTIONS
    };
    (plan, options)
}

fn random_request(random: &mut Random, vocab_size: usize, new_tokens: u32) -> Request {
    let prompt: Vec<u32> = (0..PROMPT)
        .map(|_| random.below(vocab_size as u32))
        .collect();
    let mut request = greedy(&prompt, new_tokens);
    request.sampling.logprobs = Some(3);
    request
}

fn by_device_graph(dtype: DType) -> Setup {
    Setup {
        dtype,
        launch: LaunchWay::DeviceGraph,
        stages: 1,
    }
}

/// The first of 256 requests gets the same answer whether none, one or all of the others share its prefix: each of its steps is in the same
/// bucket. Those that do not share are a step ahead, and have a token more, so that all end together.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_has_the_same_bits_beside_any_number_of_sharers() {
    const SHARED: usize = 23;
    let gpu = OpenGpu::new(0).unwrap();
    let model = full_layers(&[]);
    let (plan, options) = one_bucket(&model);
    for dtype in [DType::BF16, DType::F32] {
        let first_beside = |sharers: usize| {
            let mut random = Random(7);
            let mut requests: Vec<Request> = vec![];
            for row in 0..ROWS {
                let shares = row <= sharers;
                let new_tokens = if shares { 20 } else { 21 };
                let mut request = random_request(&mut random, model.config.vocab_size, new_tokens);
                if shares {
                    if let Some(first) = requests.first() {
                        request.prompt[..SHARED].copy_from_slice(&first.prompt[..SHARED]);
                    }
                    request.borders = vec![Border {
                        prefix: 1,
                        tokens: SHARED as u32,
                    }];
                }
                requests.push(request);
            }
            let setup = by_device_graph(dtype);
            let (mut outcomes, cached) = run(&gpu, &model, setup, (&plan, &options), &requests);
            assert_eq!(cached as usize, SHARED * sharers);
            outcomes.swap_remove(0)
        };
        let beside_none = first_beside(0);
        assert_eq!(beside_none.tokens.len(), 20);
        for sharers in [1, ROWS - 1] {
            let what = format!("{dtype:?}, {sharers} sharers");
            assert_eq!(first_beside(sharers), beside_none, "{what}");
        }
    }
}

/// The first of 256 requests gets the same answer whether few or many others go on with it to the end, all in one bucket.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_has_the_same_bits_beside_any_number_of_rows() {
    let gpu = OpenGpu::new(0).unwrap();
    for without in [&[][..], &["experts"], &["attention"]] {
        let model = full_layers(without);
        let (plan, options) = one_bucket(&model);
        for dtype in [DType::BF16, DType::F32] {
            let first_beside = |others: usize| {
                let mut random = Random(7);
                let request = |row| {
                    let new_tokens = if row <= others { 24 } else { 20 };
                    random_request(&mut random, model.config.vocab_size, new_tokens)
                };
                let requests: Vec<Request> = (0..ROWS).map(request).collect();
                let setup = by_device_graph(dtype);
                let (mut outcomes, _) = run(&gpu, &model, setup, (&plan, &options), &requests);
                outcomes.swap_remove(0)
            };
            let beside_all = first_beside(ROWS - 1);
            for others in [0, 1, 31] {
                let what = format!("without {without:?}, {dtype:?}, {others} others");
                assert_eq!(first_beside(others), beside_all, "{what}");
            }
        }
    }
}
