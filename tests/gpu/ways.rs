//! The three ways to launch a model's steps: the same bits, whoever launches.

use crate::common::golden;
use crate::engine::{OPTIONS, Outcome, Setup, WAYS, drive, engine, greedy, plan, run, score};
use crate::goldens;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailgraph::backend::LaunchWay;
use tailgraph::backend::LogitsSink;
use tailgraph::backend::cpu;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::model::{DType, Model, ModelSource};
use tailgraph::runtime::{Engine, Logits, Request, SingleEngine};
use tailgraph::{Error, Result};

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

/// Requests of every kind: more than fit at once, so that prompts come in while others decode.
pub fn requests(prompts: &[Vec<u32>]) -> Vec<Request> {
    let mut requests = Vec::new();
    for (i, prompt) in prompts.iter().enumerate() {
        requests.push(greedy(prompt, 24));
        requests.push(score(prompt, Logits::All));
        let mut sampled = greedy(prompt, 16 + i as u32);
        sampled.sampling.temperature = 0.8;
        sampled.sampling.top_k = 50;
        sampled.sampling.top_p = 0.9;
        sampled.sampling.repetition_penalty = 1.2;
        sampled.sampling.presence_penalty = [0.0, 0.4][i % 2];
        sampled.sampling.frequency_penalty = [0.3, 0.0][i % 2];
        sampled.biases = (0..i as u32 % 8 * 40)
            .map(|id| (id, 0.01 * id as f32))
            .collect();
        // These must not come, and it ends by its length.
        sampled.stop_ids = (0..i as u32 % 17).collect();
        sampled.min_new_tokens = sampled.max_new_tokens;
        sampled.sampling.key = i as u64;
        sampled.sampling.logprobs = Some(3);
        requests.push(sampled);
        requests.push(score(prompt, Logits::Last));
    }
    requests
}

/// Names the first thing whose bits differ.
pub fn assert_same(found: &[Outcome], expected: &[Outcome], what: &str) {
    for (request, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.tokens, expected.tokens, "{what}, request {request}");
        assert_eq!(
            found.logits.len(),
            expected.logits.len(),
            "{what}, request {request}"
        );
        let mut pairs = found.logits.iter().zip(&expected.logits);
        let differs = pairs.position(|(f, e)| f.to_bits() != e.to_bits());
        assert_eq!(
            differs, None,
            "{what}, request {request}: first logit that differs"
        );
        assert!(
            found == expected,
            "{what}, request {request}: logprobs differ"
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn all_ways_and_stages_give_the_same_bits() {
    let gpu = OpenGpu::new(0).unwrap();
    for variant in goldens::VARIANTS {
        let golden = golden::load(variant);
        let requests = requests(&golden.prompts());
        for dtype in DTYPES {
            let setup = |launch, stages| Setup {
                dtype,
                launch,
                stages,
            };
            let reference = run(
                &gpu,
                &golden.model,
                setup(LaunchWay::HostKernels, 1),
                &requests,
            );
            for (request, outcome) in requests.iter().zip(&reference) {
                assert_eq!(outcome.tokens.len(), request.max_new_tokens as usize);
                assert_eq!(outcome.logits.is_empty(), request.logits == Logits::None);
            }
            for launch in WAYS {
                for stages in [1, 2] {
                    let what = format!("golden {variant} {dtype:?} {launch:?}, {stages} stages");
                    let found = run(&gpu, &golden.model, setup(launch, stages), &requests);
                    assert_same(&found, &reference, &what);
                }
            }
        }
    }
}

/// Greedy answers in f32, with all that changes logits before the best of them is taken.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn penalized_tokens_are_those_of_the_cpu() {
    let gpu = OpenGpu::new(0).unwrap();
    for variant in ["a", "b"] {
        let golden = golden::load(variant);
        let model = &golden.model;
        let requests: Vec<Request> = (golden.prompts().iter().enumerate())
            .map(|(i, prompt)| {
                let mut request = greedy(prompt, 40);
                request.sampling.repetition_penalty = [1.0, 1.1][i % 2];
                request.sampling.presence_penalty = [0.7, 0.0, -0.2][i % 3];
                request.sampling.frequency_penalty = [0.0, 0.6, -0.1][i % 3];
                request.biases = (0..300)
                    .map(|id| (id, [0.5, -0.25][id as usize % 2]))
                    .collect();
                request.stop_ids = (0..16).collect();
                request.min_new_tokens = 40;
                request
            })
            .collect();
        let plan = plan(model, 1);
        let stages = cpu::stages(model, &Arc::new(plan.clone()), &OPTIONS, &None).unwrap();
        let on_cpu = drive(
            SingleEngine::start(stages, &plan.bucket_sizes, &OPTIONS).unwrap(),
            &requests,
        );
        for launch in WAYS {
            let setup = Setup {
                dtype: DType::F32,
                launch,
                stages: 1,
            };
            let on_gpu = drive(engine(&gpu, model, setup, &None), &requests);
            for (i, (gpu, cpu)) in on_gpu.iter().zip(&on_cpu).enumerate() {
                assert_eq!(gpu.0, cpu.0, "golden {variant} {launch:?}, request {i}");
            }
        }
    }
}

/// Contexts on both sides of a chunk's end (families/attention/decode.rs): of two rows and of one, the keys of a row are shared by blocks.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn long_contexts_give_the_same_bits_in_all_ways() {
    let gpu = OpenGpu::new(0).unwrap();
    let golden = golden::load("a");
    let text: Vec<u32> = golden.prompts().concat();
    let prompt = |tokens| {
        text.iter()
            .copied()
            .cycle()
            .take(tokens)
            .collect::<Vec<_>>()
    };
    let requests = [
        greedy(&prompt(290), 12),
        greedy(&prompt(250), 24),
        greedy(&prompt(20), 8),
    ];
    for dtype in DTYPES {
        let setup = |launch| Setup {
            dtype,
            launch,
            stages: 1,
        };
        let reference = run(
            &gpu,
            &golden.model,
            setup(LaunchWay::HostKernels),
            &requests,
        );
        for launch in WAYS {
            let found = run(&gpu, &golden.model, setup(launch), &requests);
            assert_same(&found, &reference, &format!("{dtype:?} {launch:?}"));
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn the_last_logits_are_close_to_the_last_of_all() {
    let gpu = OpenGpu::new(0).unwrap();
    let golden = golden::load("b");
    let vocab = golden.model.config.vocab_size;
    let both = |prompt: &Vec<u32>| [score(prompt, Logits::Last), score(prompt, Logits::All)];
    let requests: Vec<_> = golden.prompts().iter().flat_map(both).collect();
    let setup = Setup {
        dtype: DType::F32,
        launch: LaunchWay::DeviceGraph,
        stages: 1,
    };
    let outcomes = run(&gpu, &golden.model, setup, &requests);
    for (pair, request) in outcomes.chunks(2).zip(requests.iter().step_by(2)) {
        let positions = request.prompt.len();
        assert_eq!(pair[0].first_position, Some(positions as u32 - 1));
        assert_eq!(pair[1].first_position, Some(0));
        assert_eq!(pair[0].logits.len(), vocab);
        assert_eq!(pair[1].logits.len(), positions * vocab);
        let last = &pair[1].logits[(positions - 1) * vocab..];
        let norm: f64 = last.iter().map(|&l| f64::from(l).powi(2)).sum();
        let pairs = pair[0].logits.iter().zip(last);
        let off: f64 = pairs.map(|(&a, &b)| f64::from(a - b).powi(2)).sum();
        assert!((off / norm).sqrt() <= 1e-5, "{}", (off / norm).sqrt());
    }
}

/// A disk that is full.
struct Full;

impl LogitsSink for Full {
    fn rows(&self, _: u64, _: u32, _: &[f32]) -> Result<()> {
        Err(Error::Runtime("no space left".into()))
    }
}

/// A sink with a bug.
struct Broken;

impl LogitsSink for Broken {
    fn rows(&self, _: u64, _: u32, _: &[f32]) -> Result<()> {
        panic!("a bug of the sink")
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_sink_that_fails_ends_the_run_before_its_request_ends() {
    let sinks: [(Arc<dyn LogitsSink>, &str); 2] = [
        (Arc::new(Full), "no space left"),
        (Arc::new(Broken), "logits panicked: a bug of the sink"),
    ];
    let gpu = OpenGpu::new(0).unwrap();
    let model = Model::load(&ModelSource::parse("random:tiny").unwrap()).unwrap();
    let model = Arc::new(model);
    for (launch, (sink, expected)) in WAYS
        .into_iter()
        .flat_map(|way| sinks.iter().map(move |sink| (way, sink)))
    {
        let setup = Setup {
            dtype: DType::BF16,
            launch,
            stages: 1,
        };
        let mut engine = engine(&gpu, &model, setup, &Some(sink.clone()));
        let request = score(&[8, 9, 10], Logits::All);
        engine.try_submit(&request).unwrap();
        engine.launch().unwrap();
        let start = Instant::now();
        let error = loop {
            assert!(start.elapsed() < Duration::from_secs(20), "{launch:?}");
            match engine.next_event(Duration::from_millis(50)) {
                Ok(event) => assert_eq!(event, None, "{launch:?}"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains(expected), "{launch:?}: {error}");
        drop(engine);
        assert!(start.elapsed() < Duration::from_secs(20), "{launch:?}");
    }
}
