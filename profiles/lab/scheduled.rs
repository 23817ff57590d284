//! Steps of small kernels that a run's scheduler composes (tests/common/probe.rs): what launching and scheduling cost without a model.

use super::cuda::{
    Exec, LaunchWay, LaunchedBy, OpenGpu, PLACES, StepCopy, StepProgram, buckets, capture_calls,
    failed, launched,
};
use super::measure::{Chunk, Steps};
use super::probe::{ProbeOptions, ProbeStep};
use super::reference::mix64;
use cudarc::driver::CudaStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailgraph::bench::workload::request;
use tailgraph::error::{Error, Result};
use tailgraph::plan::{EngineOptions, Ladders, RingCapacities, StepKind};
use tailgraph::runtime::{Engine, Event, Logits};
use tailgraph::sys::abi;
use tailgraph::telemetry::launches;

/// All that `bench decode` has, hidden ones too.
pub const WAYS: [LaunchWay; 8] = [
    LaunchWay::Bare,
    LaunchWay::HostKernels,
    LaunchWay::HostGraph,
    LaunchWay::HostGraphEvent,
    LaunchWay::HostGraphBlock,
    LaunchWay::HostGraphAhead,
    LaunchWay::DeviceGraph,
    LaunchWay::DeviceGraphTail,
];

/// Kernels of a step beside those in its middle: tokens in, tokens read, tokens out.
const OUTER_KERNELS: u32 = 3;
const VOCABULARY: u32 = 997;
const PAGE_TOKENS: u32 = 64;
/// More than a prompt of one token and any chunk take.
const MAX_CONTEXT: u32 = 1024;
/// Launches of the bare graph between two looks at the clock.
const BARE_LAUNCHES: u64 = 50;

/// What serves the steps.
enum Server {
    Engine(Box<Engine>),
    /// A decode step's graph, which the host launches again and again.
    Bare {
        exec: Exec,
        stream: Arc<CudaStream>,
        /// What the graph points to.
        _step: Box<(StepCopy, ProbeStep)>,
    },
}

pub struct Scheduled {
    server: Server,
    probe: ProbeOptions,
    batch: u32,
    /// Requests so far: the number of the next.
    sent: u64,
    digest: u64,
}

impl Scheduled {
    /// An engine on GPU `ordinal` whose steps of `batch` sequences have so many kernels.
    pub fn new(ordinal: u32, way: &str, kernels: u32, batch: u32) -> Result<Self> {
        let named = WAYS.into_iter().find(|known| known.name() == way);
        let way = named.ok_or_else(|| Error::Usage(format!("--ways {way}: no way of bench")))?;
        if kernels <= OUTER_KERNELS {
            let name = way.name();
            return Err(Error::Usage(format!(
                "--kernels {kernels}: expected more than {OUTER_KERNELS} with --ways {name}"
            )));
        }
        // Its kernels are the library's.
        let gpu = OpenGpu::new(ordinal)?;
        let probe = ProbeOptions {
            layers: kernels - OUTER_KERNELS,
            vocabulary: VOCABULARY,
            early: gpu.overlaps_launches(),
            log_entries: 0,
        };
        let step_tokens = batch + PAGE_TOKENS;
        let options = EngineOptions {
            max_seqs: batch,
            max_context: MAX_CONTEXT,
            page_tokens: PAGE_TOKENS,
            pages: batch * MAX_CONTEXT.div_ceil(PAGE_TOKENS),
            step_tokens,
            chunk_tokens: step_tokens,
            chunk_share: 0,
            chunk_align: PAGE_TOKENS,
            steps_in_flight: 1,
            record: false,
        };
        let ladders = Ladders {
            decode: vec![batch],
            mixed: vec![step_tokens],
            score: vec![step_tokens],
        };
        let (mut stages, _) =
            ProbeStep::stages(&gpu.context, &gpu.module, 1, &options, probe, None)?;
        let program = stages.swap_remove(0);
        let server = if way == LaunchWay::Bare {
            let stream = gpu
                .context
                .new_stream()
                .map_err(|error| failed("making a stream", error))?;
            let copy = StepCopy::new(&gpu.context, &stream, &options, PLACES)?;
            let bucket = buckets(&ladders, StepKind::Decode, batch).last();
            let bucket =
                bucket.ok_or_else(|| Error::Runtime("a probe has a decode bucket".into()))?;
            let calls = program.lower(bucket, copy.at())?;
            // SAFETY: copy and program stay beside the graph; the copy holds a step without rows.
            let graph = unsafe { capture_calls(&stream, "the bare step", &calls) }?;
            Server::Bare {
                exec: Exec::new(&graph, LaunchedBy::Host)?,
                stream,
                _step: Box::new((copy, program)),
            }
        } else {
            let runs = launched(&gpu, vec![Box::new(program)], &ladders, &options, way)?;
            let mut engine = Engine::of(runs, &ladders, &options, RingCapacities::new(&options))?;
            engine.launch()?;
            Server::Engine(Box::new(engine))
        };
        Ok(Self {
            server,
            probe,
            batch,
            sent: 0,
            digest: 0,
        })
    }
}

impl Steps for Scheduled {
    /// All sequences generate so many tokens behind their first one. Steps end where the scheduler composes the next one that all
    /// are in; of the bare graph each has the mean of 50 in a row.
    fn run(&mut self, count: u64) -> Result<Chunk> {
        let launches_before = launches::count();
        let mut ends_ns = vec![];
        let engine = match &mut self.server {
            Server::Engine(engine) => engine,
            Server::Bare { exec, stream, .. } => {
                let start = Instant::now();
                for first in (0..count).step_by(BARE_LAUNCHES as usize) {
                    let (launches, before) = (BARE_LAUNCHES.min(count - first), start.elapsed());
                    for _ in 0..launches {
                        // SAFETY: what the graph points to stays beside it.
                        unsafe { exec.launch() }?;
                    }
                    stream
                        .synchronize()
                        .map_err(|error| failed("timing the bare graph", error))?;
                    let each = (start.elapsed() - before) / launches as u32;
                    ends_ns.extend(
                        (1..=launches as u32).map(|step| (before + each * step).as_nanos() as u64),
                    );
                }
                return Ok(Chunk {
                    ends_ns,
                    launches: count,
                });
            }
        };
        while engine.next_trace().is_some() {}
        let prompt = |index: u32| (self.sent as u32 + index) % VOCABULARY;
        let requests: Vec<_> = (0..self.batch)
            .map(|index| request(vec![prompt(index)], count as u32 + 1, Logits::None))
            .collect();
        let numbers = engine.try_submit_all(&requests)?;
        if numbers.end - numbers.start != u64::from(self.batch) {
            return Err(Error::Runtime(format!(
                "found room for {numbers:?}, expected it for {} requests at once",
                self.batch
            )));
        }
        let mut tokens = vec![vec![]; requests.len()];
        let mut left = requests.len();
        while left > 0 {
            match engine.next_event(Duration::from_millis(20))? {
                Some(Event::Token { request, token, .. }) => {
                    tokens[(request - numbers.start) as usize].push(token)
                }
                Some(Event::End { .. }) => left -= 1,
                None => {}
            }
            while let Some(record) = engine.next_trace() {
                let outcome = &record.outcome;
                let whole = (outcome.action, outcome.kind, outcome.rows)
                    == (abi::TG_ACTION_STEP, abi::TG_KIND_DECODE, self.batch);
                ends_ns.extend(whole.then_some(record.inputs.now_ns));
            }
        }
        let launches = launches::count() - launches_before;
        for (request, tokens) in requests.iter().zip(&tokens) {
            let mut all = request.prompt.clone();
            for &token in tokens {
                let expected = self.probe.next(&all);
                if token != expected {
                    let behind = all.len();
                    return Err(Error::Runtime(format!(
                        "found token {token} behind {behind} others, expected {expected}"
                    )));
                }
                all.push(token);
                self.digest = mix64(self.digest.wrapping_add(u64::from(token) + 1));
            }
        }
        self.sent = numbers.end;
        Ok(Chunk { ends_ns, launches })
    }

    fn digest(&self) -> u64 {
        self.digest
    }
}
