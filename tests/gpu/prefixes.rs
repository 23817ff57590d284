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

/// A model of six layers, each of the full size.
fn full_layers() -> Arc<Model> {
    let sizes = concat!(
        "random:",
        env!("CARGO_MANIFEST_DIR"),
        "/tests/gpu/lfm2-8b-a1b-6-layers.json"
    );
    Arc::new(Model::load(&ModelSource::parse(sizes).unwrap()).unwrap())
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
        model: &full_layers(),
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

/// The first of 256 requests gets the same answer whether none, one or all of the others share its prefix: each of its steps is in the same
/// bucket, beside all others. Those that do not share are a step ahead, and have a token more.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_has_the_same_bits_beside_any_number_of_sharers() {
    const SHARED: usize = 23;
    const PROMPT: usize = 32;
    const ROWS: usize = 256;
    let gpu = OpenGpu::new(0).unwrap();
    let model = full_layers();
    let sizes = BucketSizes {
        decode: vec![ROWS as u32],
        mixed: vec![(ROWS * PROMPT) as u32],
        score: vec![(ROWS * PROMPT) as u32],
    };
    let plan = Plan::new(Arc::new(model.config.clone()), sizes, 1, None).unwrap();
    let options = EngineOptions {
        max_seqs: ROWS as u32,
        max_context: 64,
        pages: 4 * ROWS as u32,
        step_tokens: (ROWS * PROMPT) as u32,
        chunk_tokens: (ROWS * PROMPT) as u32,
        prefixes: 8,
        ..OPTIONS
    };
    for dtype in [DType::BF16, DType::F32] {
        let first_beside = |sharers: usize| {
            let mut random = Random(7);
            let mut request = |row: usize, common: &[u32]| {
                let own = (0..PROMPT).map(|_| random.below(model.config.vocab_size as u32));
                let mut prompt: Vec<u32> = own.collect();
                prompt[..common.len()].copy_from_slice(common);
                let shares = row == 0 || !common.is_empty();
                let mut request = greedy(&prompt, if shares { 20 } else { 21 });
                request.sampling.logprobs = Some(3);
                if shares {
                    request.borders = vec![Border {
                        prefix: 1,
                        tokens: SHARED as u32,
                    }];
                }
                request
            };
            let mut requests = vec![request(0, &[])];
            let common = requests[0].prompt[..SHARED].to_vec();
            for row in 1..ROWS {
                requests.push(request(row, if row <= sharers { &common } else { &[] }));
            }
            let setup = Setup {
                dtype,
                launch: LaunchWay::DeviceGraph,
                stages: 1,
            };
            let (mut outcomes, cached) = run(&gpu, &model, setup, (&plan, &options), &requests);
            assert_eq!(cached as usize, SHARED * sharers);
            outcomes.swap_remove(0)
        };
        let alone = first_beside(0);
        assert_eq!(alone.tokens.len(), 20);
        for sharers in [1, ROWS - 1] {
            assert_eq!(first_beside(sharers), alone, "{dtype:?}, {sharers} sharers");
        }
    }
}

/// One request of 256, whose last steps few others are beside, in the bucket of all.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_has_the_same_bits_beside_any_number_of_rows() {
    let gpu = OpenGpu::new(0).unwrap();
    let mut wrong = vec![];
    for (name, change) in [
        ("all", &[][..]),
        ("dense", &["dense"]),
        ("convs", &["convs"]),
        ("conv-dense", &["dense", "convs"]),
    ] {
        let model = variant(change);
        let sizes = BucketSizes {
            decode: vec![256],
            mixed: vec![8192],
            score: vec![8192],
        };
        let plan = Plan::new(Arc::new(model.config.clone()), sizes, 1, None).unwrap();
        let options = EngineOptions {
            max_seqs: 256,
            max_context: 64,
            pages: 1024,
            step_tokens: 8192,
            chunk_tokens: 8192,
            ..OPTIONS
        };
        for dtype in [DType::BF16, DType::F32] {
            let first_beside = |others: usize| {
                let mut random = Random(7);
                let requests: Vec<Request> = (0..256)
                    .map(|row| {
                        let prompt: Vec<u32> = (0..32)
                            .map(|_| random.below(model.config.vocab_size as u32))
                            .collect();
                        let mut request = greedy(&prompt, if row <= others { 24 } else { 20 });
                        request.sampling.logprobs = Some(3);
                        request
                    })
                    .collect();
                let setup = Setup {
                    dtype,
                    launch: LaunchWay::DeviceGraph,
                    stages: 1,
                };
                run(&gpu, &model, setup, (&plan, &options), &requests)
                    .0
                    .swap_remove(0)
            };
            let alone = first_beside(255);
            for others in [255, 0, 1, 31] {
                let found = first_beside(others);
                let mut both = found.logprobs.iter().zip(&alone.logprobs);
                if let Some(at) = both.position(|(a, b)| a != b) {
                    wrong.push(format!("{name} {dtype:?} {others} others: token {at}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

fn variant(change: &[&str]) -> Arc<Model> {
    let text = include_str!("lfm2-8b-a1b-6-layers.json");
    let mut config: serde_json::Value = serde_json::from_str(text).unwrap();
    for &change in change {
        match change {
            "dense" => config["num_dense_layers"] = 6.into(),
            _ => config["layer_types"] = vec!["conv"; 6].into(),
        }
    }
    let path = std::env::temp_dir().join(format!("variant-{}.json", change.join("-")));
    std::fs::write(&path, config.to_string()).unwrap();
    let source = format!("random:{}", path.display());
    Arc::new(Model::load(&ModelSource::parse(&source).unwrap()).unwrap())
}
