//! Whole jobs on one GPU, in each of the ways to launch it.

use crate::common::engine::{PATIENCE, Seen, read, request};
use std::sync::{Arc, Mutex};
use tailgraph::Result;
use tailgraph::backend::cuda::device::GpuDevice;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::device::EngineSpec;
use tailgraph::backend::{GpuSpec, LaunchWay, LogitsSink, SharedSink};
use tailgraph::model::{DType, Model};
use tailgraph::plan::{GraphFile, Limits, Plan};
use tailgraph::runtime::TokenLogprobs;
use tailgraph::runtime::{EndReason, Engine, EngineOptions, Logits, Request, SingleEngine};

pub const WAYS: [LaunchWay; 7] = [
    LaunchWay::HostKernels,
    LaunchWay::HostGraph,
    LaunchWay::HostGraphEvent,
    LaunchWay::HostGraphBlock,
    LaunchWay::HostGraphAhead,
    LaunchWay::DeviceGraph,
    LaunchWay::DeviceGraphTail,
];

pub const OPTIONS: EngineOptions = EngineOptions {
    max_seqs: 6,
    max_context: 320,
    page_tokens: 16,
    pages: 120,
    step_tokens: 512,
    chunk_tokens: 512,
    chunk_share: 0,
    chunk_align: 64,
    steps_in_flight: 1,
    prefixes: 0,
    record: false,
};

pub fn greedy(prompt: &[u32], max_new_tokens: u32) -> Request {
    request(prompt.iter().copied(), max_new_tokens)
}

pub fn score(prompt: &[u32], logits: Logits) -> Request {
    Request {
        logits,
        ..greedy(prompt, 0)
    }
}

/// What came of a request.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    pub tokens: Vec<u32>,
    pub logprobs: Vec<TokenLogprobs>,
    pub logits: Vec<f32>,
    pub first_position: Option<u32>,
}

/// Keeps delivered logits; asserts that they come in order.
pub struct Collector {
    pub outcomes: Mutex<Vec<Outcome>>,
    pub vocab_size: usize,
}

impl LogitsSink for Collector {
    fn rows(&self, request: u64, first_position: u32, logits: &[f32]) -> Result<()> {
        let mut outcomes = self.outcomes.lock().unwrap();
        let outcome = &mut outcomes[request as usize];
        let first = *outcome.first_position.get_or_insert(first_position) as usize;
        let next = first + outcome.logits.len() / self.vocab_size;
        assert_eq!(first_position as usize, next, "request {request}");
        outcome.logits.extend_from_slice(logits);
        Ok(())
    }
}

/// How a job is run.
#[derive(Clone, Copy)]
pub struct Setup {
    pub dtype: DType,
    pub launch: LaunchWay,
    pub stages: usize,
}

pub fn plan(model: &Model, stages: usize) -> Plan {
    let limits = Limits {
        stages: Some(stages),
        ..Limits::default()
    };
    let file = GraphFile::open(None).unwrap();
    file.plan(Arc::new(model.config.clone()), &limits).unwrap()
}

pub fn device(gpu: &OpenGpu, dtype: DType, launch: LaunchWay) -> GpuDevice {
    GpuDevice {
        gpu: gpu.clone(),
        spec: GpuSpec {
            dtype,
            launch,
            ..GpuSpec::new(0)
        },
    }
}

/// An engine that waits for its launch.
pub fn engine(gpu: &OpenGpu, model: &Arc<Model>, setup: Setup, sink: &SharedSink) -> SingleEngine {
    let plan = plan(model, setup.stages);
    let device = device(gpu, setup.dtype, setup.launch);
    let spec = EngineSpec {
        model,
        plan: &plan,
        options: &OPTIONS,
        sink,
    };
    let mut engine = SingleEngine::on(&device, &spec).unwrap();
    engine.watch(PATIENCE);
    engine
}

/// Runs all requests, which are in the ring before the first step is composed.
pub fn run(gpu: &OpenGpu, model: &Arc<Model>, setup: Setup, requests: &[Request]) -> Vec<Outcome> {
    let collector = Arc::new(Collector {
        outcomes: Mutex::new(vec![Outcome::default(); requests.len()]),
        vocab_size: model.config.vocab_size,
    });
    let sink: SharedSink = Some(collector.clone());
    let tokens = drive(engine(gpu, model, setup, &sink), requests);
    let mut outcomes = std::mem::take(&mut *collector.outcomes.lock().unwrap());
    for (outcome, (tokens, logprobs)) in outcomes.iter_mut().zip(tokens) {
        outcome.tokens = tokens;
        outcome.logprobs = logprobs;
    }
    outcomes
}

/// Tokens and logprobs of all requests, which are in the ring before the engine's first step is composed.
pub fn drive(
    mut engine: SingleEngine,
    requests: &[Request],
) -> Vec<(Vec<u32>, Vec<TokenLogprobs>)> {
    for (number, request) in requests.iter().enumerate() {
        assert_eq!(engine.try_submit(request).unwrap(), Some(number as u64));
    }
    engine.launch().unwrap();
    engine.drain();
    let mut outcomes = vec![(Vec::new(), Vec::new()); requests.len()];
    for event in read(&mut engine, requests.len()) {
        match event {
            Seen::Token(request, token, _, logprobs) => {
                let outcome = &mut outcomes[request as usize];
                outcome.0.push(token);
                outcome.1.extend(logprobs);
            }
            Seen::End(request, reason, _) => {
                assert_eq!(reason, EndReason::Length, "request {request}");
            }
        }
    }
    outcomes
}
