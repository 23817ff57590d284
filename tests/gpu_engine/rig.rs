//! A GPU with our kernels, engines on it in each of the ways, seeded requests and what must come of them.

pub use crate::common::engine::*;
use crate::common::probe::{Disturbance, ProbeLog, ProbeOptions, ProbeStep};
use crate::common::random::Random;
use cudarc::driver::{CudaContext, CudaStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tailgraph::backend::cuda::driver::machine;
use tailgraph::backend::cuda::driver::module::Module;
use tailgraph::backend::cuda::engine::hosted::{HostLaunched, StagePlace};
use tailgraph::backend::cuda::engine::program::StepProgram;
use tailgraph::backend::cuda::engine::scheduler::GpuScheduler;
use tailgraph::backend::device::Runs;
use tailgraph::backend::{LaunchWay, StageBackend};
use tailgraph::plan::{BucketSizes, EngineOptions, RingCapacities};
use tailgraph::runtime::{EndReason, Logits, Request, SingleEngine};

/// A self-scheduling GPU holds up everyone who allocates on it, so tests take turns.
static TURN: Mutex<()> = Mutex::new(());

pub struct Rig {
    pub context: Arc<CudaContext>,
    pub module: Arc<Module>,
    pub stream: Arc<CudaStream>,
    _turn: MutexGuard<'static, ()>,
}

pub const WAYS: [LaunchWay; 6] = [
    LaunchWay::HostKernels,
    LaunchWay::HostGraph,
    LaunchWay::HostGraphEvent,
    LaunchWay::HostGraphBlock,
    LaunchWay::DeviceGraph,
    LaunchWay::DeviceGraphTail,
];

/// How an engine is set up.
#[derive(Debug, Clone, Copy)]
pub struct Setup {
    pub stages: u32,
    pub options: EngineOptions,
    pub capacities: RingCapacities,
    pub probe: ProbeOptions,
    pub disturbance: Option<Disturbance>,
}

pub const SETUP: Setup = Setup {
    stages: 1,
    options: EngineOptions {
        max_seqs: 32,
        max_context: 256,
        page_tokens: 16,
        pages: 200,
        step_tokens: 128,
        chunk_tokens: 128,
        chunk_share: 0,
        chunk_align: 32,
        steps_in_flight: 1,
        prefixes: 0,
        record: false,
    },
    capacities: RingCapacities {
        requests: 1024,
        tokens: 1 << 16,
        controls: 1024,
        events: 1 << 15,
        sampled: 1 << 15,
        trace: 1 << 14,
        biases: 300,
    },
    probe: ProbeOptions {
        layers: 6,
        vocabulary: 997,
        pdl: true,
        log_entries: 1 << 15,
    },
    disturbance: None,
};

impl Setup {
    pub fn bucket_sizes(&self) -> BucketSizes {
        let slots = self.options.max_seqs;
        let mut decode: Vec<u32> = (0..)
            .map(|i| 1 << i)
            .take_while(|&rows| rows < slots)
            .collect();
        decode.push(slots);
        let most = self.options.step_tokens;
        BucketSizes {
            decode,
            mixed: vec![most / 2, most],
            score: vec![most],
        }
    }
}

impl Rig {
    /// The first GPU. Where there is none the test fails with the reason.
    pub fn new() -> Self {
        // A test that failed has nothing that the next one needs.
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let gpu = machine::probe().and_then(|driver| driver.gpu(0).cloned());
        let gpu = gpu.unwrap_or_else(|missing| panic!("{missing}"));
        let context = CudaContext::new(gpu.ordinal as usize).unwrap();
        // SAFETY: nothing here relies on cudarc's tracking; every stream is waited for by whoever uses it.
        unsafe { context.disable_event_tracking() };
        Self {
            module: Module::new(&context).unwrap(),
            stream: context.new_stream().unwrap(),
            context,
            _turn: turn,
        }
    }

    pub fn probe(&self, setup: &Setup) -> (Vec<ProbeStep>, ProbeLog) {
        ProbeStep::stages(
            &self.context,
            &self.module,
            setup.stages,
            &setup.options,
            setup.probe,
            setup.disturbance,
        )
        .unwrap()
    }

    pub fn backends(&self, way: LaunchWay, setup: &Setup) -> Vec<Box<dyn StageBackend>> {
        let (programs, _) = self.probe(setup);
        let count = programs.len();
        let backend = |(index, program): (usize, ProbeStep)| {
            let place = StagePlace { index, count };
            let (bucket_sizes, options) = (setup.bucket_sizes(), &setup.options);
            let program = Box::new(program);
            let backend =
                HostLaunched::new(&self.context, program, place, &bucket_sizes, options, way);
            Box::new(backend.unwrap()) as Box<dyn StageBackend>
        };
        programs.into_iter().enumerate().map(backend).collect()
    }

    /// An engine that is not launched yet, and the log of its probe where the device schedules itself.
    pub fn engine(&self, way: LaunchWay, setup: &Setup) -> (SingleEngine, Option<ProbeLog>) {
        let (bucket_sizes, options) = (setup.bucket_sizes(), &setup.options);
        if way.is_device() {
            let (programs, log) = self.probe(setup);
            let programs = programs
                .into_iter()
                .map(|program| Box::new(program) as Box<dyn StepProgram>)
                .collect();
            let pdl = setup.probe.pdl;
            let device = GpuScheduler::new(&self.context, &self.module, programs, pdl, way);
            let device = Box::new(device.unwrap());
            let engine = SingleEngine::of(
                Runs::Scheduler(device),
                &bucket_sizes,
                options,
                setup.capacities,
            );
            return (engine.unwrap(), Some(log));
        }
        let backends = self.backends(way, setup);
        let engine = SingleEngine::of(
            Runs::Stages(backends),
            &bucket_sizes,
            options,
            setup.capacities,
        );
        (engine.unwrap(), None)
    }
}

/// A request with a prompt of this many random tokens.
pub fn random_request(random: &mut Random, prompt_tokens: u64, max_new_tokens: u32) -> Request {
    request(
        (0..prompt_tokens).map(|_| random.below(997)),
        max_new_tokens,
    )
}

/// A mixture: most generate, some stop early, some want logprobs, some are only scored, some have no limit and fill the
/// context, one in 50 is too large.
pub fn mixture(random: &mut Random, count: usize) -> Vec<Request> {
    let mut requests = Vec::with_capacity(count);
    for _ in 0..count {
        let prompt_tokens = 1 + random.below(60);
        let max_new_tokens = 1 + random.below(30) as u32;
        let mut request = random_request(random, prompt_tokens, max_new_tokens);
        match random.below(50) {
            0 => request.max_new_tokens = 1000,
            1..10 => request.stop_ids = (0..16).map(|_| random.below(997) as u32).collect(),
            10..20 => request.sampling.logprobs = Some(random.below(4) as u32),
            20..23 => (request.max_new_tokens, request.logits) = (0, Logits::All),
            23..26 => (request.max_new_tokens, request.logits) = (0, Logits::Last),
            26..36 => {
                request.max_new_tokens = SETUP.options.max_context - request.prompt.len() as u32;
                request.unlimited = true;
            }
            _ => {}
        }
        requests.push(request);
    }
    requests
}

/// Its tokens and why it ends, where nothing from outside ends it.
pub fn expected(setup: &Setup, request: &Request) -> (Vec<u32>, EndReason) {
    if request.prompt.len() as u32 + request.max_new_tokens > setup.options.max_context {
        return (vec![], EndReason::Refused);
    }
    let mut tokens = request.prompt.clone();
    for _ in 0..request.max_new_tokens {
        let next = setup.probe.next(&tokens);
        tokens.push(next);
        if request.stop_ids.contains(&next) {
            return (tokens.split_off(request.prompt.len()), EndReason::Stop);
        }
    }
    (tokens.split_off(request.prompt.len()), EndReason::Length)
}
