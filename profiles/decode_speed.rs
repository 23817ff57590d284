//! Times decode steps of a model on a GPU, in the ways to launch them, and prints JSON:
//!
//!     cargo run --release --features cuda --example decode_speed -- random:lfm2-8b-a1b bf16 [STEPS [BUSY [WAY,WAY,...]]]
//!
//! A step's time is from the turn that composed it to the turn that composed the next one, by the clock of whoever
//! turns, over steps that all running sequences are in: at least STEPS (140) of them for each batch. `turn_us` of it is
//! the scheduler's turn. With BUSY, all is measured twice: with the host idle, and beside that many threads that spin.
//! `bare_ms` is the graph without a dispatcher, launched again and again by the host with nothing in between: the
//! median over every eighth step of a run, since steps differ in the experts that they read. With WAYS (of bare,
//! host-kernels, host-graph, host-graph-ahead and device-graph) only those.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailgraph::backend::cuda::ahead::HostAhead;
use tailgraph::backend::cuda::gpu::OpenGpu;
use tailgraph::backend::cuda::hosted::{HostLaunch, HostLaunched, StagePlace};
use tailgraph::backend::cuda::model::{InOrder, Placement, programs};
use tailgraph::backend::cuda::program::StepProgram;
use tailgraph::backend::cuda::scheduler::GpuScheduler;
use tailgraph::backend::{StageBackend, StepView};
use tailgraph::bench::host::Busy;
use tailgraph::error::{Error, Result};
use tailgraph::model::{DType, Model, ModelSource};
use tailgraph::plan::{EngineOptions, GraphFile, Limits, RingCapacities};
use tailgraph::runtime::cuda::Launch;
use tailgraph::runtime::{Engine, Event, Logits, Request, Sampling};
use tailgraph::sys::abi;

const BATCHES: [u32; 5] = [1, 8, 32, 128, 256];
const PROMPT_TOKENS: u32 = 32;
const NEW_TOKENS: u32 = 160;
/// Before these the clocks of the GPU are not up.
const WARM_STEPS: usize = 16;
/// Of one step's bare graph, in a row.
const BARE_LAUNCHES: u32 = 50;
/// Every so many steps the graph is timed bare.
const STEPS_PER_BARE: u32 = 8;

const OPTIONS: EngineOptions = EngineOptions {
    max_seqs: 256,
    max_context: 256,
    page_tokens: 64,
    pages: 1024,
    step_tokens: 512,
    chunk_align: 64,
    steps_in_flight: 1,
    record: false,
};

#[derive(Serialize)]
struct Report {
    command: String,
    gpu: String,
    host_cores: usize,
    model: String,
    dtype: String,
    prompt_tokens: u32,
    new_tokens: u32,
    /// By sequences.
    bare_ms: BTreeMap<u32, f64>,
    ways: BTreeMap<&'static str, Way>,
}

#[derive(Serialize)]
struct Way {
    /// Weights to the GPU.
    load_ms: f64,
    /// Capture, and for graphs instantiation and upload.
    capture_ms: f64,
    host_idle: Vec<Batch>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_busy: Option<Vec<Batch>>,
}

#[derive(Serialize)]
struct Batch {
    sequences: u32,
    steps: usize,
    p50_ms: f64,
    p99_ms: f64,
    p99_9_ms: f64,
    least_ms: f64,
    /// Median.
    turn_us: f64,
}

/// What is measured.
struct Job<'a> {
    gpu: &'a OpenGpu,
    model: &'a Model,
    dtype: DType,
    steps: usize,
    busy: u32,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage =
        || Error::Usage("expected MODEL and bf16, f16 or f32, then STEPS, BUSY and WAYS".into());
    let (name, dtype, numbers) = match &arguments[..] {
        [name, dtype, numbers @ ..] if numbers.len() <= 3 => (name, dtype, numbers),
        _ => return Err(usage()),
    };
    let number = |at: usize, default| match numbers.get(at) {
        Some(text) => text.parse().map_err(|_| usage()),
        None => Ok(default),
    };
    let element = match dtype.as_str() {
        "bf16" => DType::BF16,
        "f16" => DType::F16,
        "f32" => DType::F32,
        _ => return Err(usage()),
    };
    let gpu = OpenGpu::new(0)?;
    let start = Instant::now();
    let model = Model::load(&ModelSource::parse(name)?)?;
    let job = Job {
        gpu: &gpu,
        model: &model,
        dtype: element,
        steps: number(0, 140)?,
        busy: u32::try_from(number(1, 0)?).map_err(|_| usage())?,
    };
    let done = |what: &str| eprintln!("{what} after {:.1} s", start.elapsed().as_secs_f64());
    done("loaded");
    let wanted = |way: &str| {
        numbers
            .get(2)
            .is_none_or(|ways| ways.split(',').any(|w| w == way))
    };
    let bare_ms = match wanted("bare") {
        true => job.bare()?,
        false => BTreeMap::new(),
    };
    done("bare graphs measured");
    let mut ways = BTreeMap::new();
    for (way, launch) in [
        ("host-kernels", Launch::HostKernels),
        ("host-graph", Launch::HostGraph),
        ("host-graph-ahead", Launch::HostGraphAhead),
        ("device-graph", Launch::DeviceGraph),
    ] {
        if wanted(way) {
            ways.insert(way, job.measure(launch)?);
            done(&format!("{way} measured"));
        }
    }
    let profile = if cfg!(debug_assertions) {
        ""
    } else {
        "--release "
    };
    let report = Report {
        command: format!(
            "cargo run {profile}--features cuda --example decode_speed -- {}",
            arguments.join(" ")
        ),
        gpu: gpu.info.to_string(),
        host_cores: std::thread::available_parallelism().map_or(0, usize::from),
        model: name.clone(),
        dtype: dtype.clone(),
        prompt_tokens: PROMPT_TOKENS,
        new_tokens: NEW_TOKENS,
        bare_ms,
        ways,
    };
    let json = serde_json::to_string_pretty(&report);
    println!(
        "{}",
        json.map_err(|error| Error::Runtime(error.to_string()))?
    );
    Ok(())
}

impl Job<'_> {
    /// An engine whose stage `wrap` may wrap (where the host launches it and waits), with the time that loading took.
    fn engine(
        &self,
        launch: Launch,
        wrap: impl FnOnce(HostLaunched) -> Box<dyn StageBackend>,
    ) -> Result<(Engine, f64)> {
        let start = Instant::now();
        let file = GraphFile::open(None)?;
        let plan = file.plan(Arc::new(self.model.config.clone()), &Limits::default())?;
        let ladders = plan.ladders.reachable(&OPTIONS);
        let placement = Placement {
            plan: &plan,
            ladders: &ladders,
            options: &OPTIONS,
            dtype: self.dtype,
            sink: &None,
            hold: false,
        };
        let programs: Vec<Box<dyn StepProgram>> = programs(self.gpu, self.model, &placement)?
            .into_iter()
            .map(|program| Box::new(program) as Box<dyn StepProgram>)
            .collect();
        let load_ms = start.elapsed().as_secs_f64() * 1e3;
        let (context, capacities) = (&self.gpu.context, RingCapacities::new(&OPTIONS));
        let engine = match launch {
            Launch::DeviceGraph => {
                let (module, early) = (&self.gpu.module, self.gpu.overlaps_launches());
                let device = GpuScheduler::new(context, module, programs, early)?;
                Engine::on_device(Box::new(device), &ladders, &OPTIONS, capacities)
            }
            Launch::HostGraphAhead => {
                let program = Box::new(InOrder(programs));
                let stage = HostAhead::new(context, program, &ladders, &OPTIONS)?;
                Engine::on_host(vec![Box::new(stage)], &ladders, &OPTIONS, capacities)
            }
            Launch::HostGraph | Launch::HostKernels => {
                let way = match launch {
                    Launch::HostGraph => HostLaunch::Graph,
                    _ => HostLaunch::Kernels,
                };
                let (place, program) = (
                    StagePlace { index: 0, count: 1 },
                    Box::new(InOrder(programs)),
                );
                let stage = HostLaunched::new(context, program, place, &ladders, &OPTIONS, way)?;
                Engine::on_host(vec![wrap(stage)], &ladders, &OPTIONS, capacities)
            }
        }?;
        Ok((engine, load_ms))
    }

    fn measure(&self, launch: Launch) -> Result<Way> {
        let start = Instant::now();
        let (mut engine, load_ms) = self.engine(launch, |stage| Box::new(stage))?;
        let capture_ms = start.elapsed().as_secs_f64() * 1e3 - load_ms;
        engine.watch(Duration::from_secs(30));
        engine.launch()?;
        let host_idle = self.batches(&mut engine)?;
        let host_busy = match self.busy {
            0 => None,
            threads => {
                let _busy = Busy::new(threads);
                Some(self.batches(&mut engine)?)
            }
        };
        Ok(Way {
            load_ms,
            capture_ms,
            host_idle,
            host_busy,
        })
    }

    fn batches(&self, engine: &mut Engine) -> Result<Vec<Batch>> {
        let batch = |sequences| {
            let mut times = Times::default();
            while times.steps_ms.len() < self.steps {
                let records = self.run(engine, sequences)?;
                if times.add(&records, sequences) == 0 {
                    return Err(Error::Runtime(format!(
                        "{sequences} sequences were never all in one decode step"
                    )));
                }
            }
            Ok(times.batch(sequences))
        };
        BATCHES.into_iter().map(batch).collect()
    }

    /// Runs `sequences` requests at once, and returns the trace.
    fn run(&self, engine: &mut Engine, sequences: u32) -> Result<Vec<abi::tg_trace>> {
        let vocabulary = self.model.config.vocab_size as u32;
        for sequence in 0..sequences {
            let token = |i| (sequence * 7919 + i * 104_729) % vocabulary;
            engine.try_submit(&Request {
                prompt: (0..PROMPT_TOKENS).map(token).collect(),
                max_new_tokens: NEW_TOKENS,
                stop_ids: Vec::new(),
                sampling: Sampling::default(),
                timeout: None,
                logits: Logits::None,
            })?;
        }
        let mut ended = 0;
        let mut records = Vec::new();
        while ended < sequences {
            if let Some(Event::End { .. }) = engine.next_event(Duration::from_secs(1))? {
                ended += 1;
            }
            while let Some(record) = engine.next_trace() {
                records.push(record);
            }
        }
        Ok(records)
    }

    /// Milliseconds of a bare step, by sequences.
    fn bare(&self) -> Result<BTreeMap<u32, f64>> {
        let found = Arc::default();
        let wrap = |inner| {
            let found = Arc::clone(&found);
            Box::new(Bare {
                inner,
                found,
                steps: BTreeMap::new(),
            }) as Box<dyn StageBackend>
        };
        let (mut engine, _) = self.engine(Launch::HostGraph, wrap)?;
        engine.launch()?;
        for sequences in BATCHES {
            self.run(&mut engine, sequences)?;
        }
        drop(engine);
        let found = std::mem::take(&mut *found.lock());
        let median = |(sequences, mut times_ms): (u32, Vec<f64>)| {
            times_ms.sort_by(f64::total_cmp);
            (sequences, times_ms[times_ms.len() / 2])
        };
        Ok(found.into_iter().map(median).collect())
    }
}

/// A stage that times steps of each batch bare.
struct Bare {
    inner: HostLaunched,
    /// Milliseconds, by sequences.
    found: Arc<parking_lot::Mutex<BTreeMap<u32, Vec<f64>>>>,
    /// Decode steps so far, by their rows.
    steps: BTreeMap<u32, u32>,
}

impl StageBackend for Bare {
    fn run(&mut self, view: &StepView<'_>) -> Result<()> {
        self.inner.run(view)?;
        let header = view.header();
        if header.kind != abi::TG_KIND_DECODE || !BATCHES.contains(&header.rows) {
            return Ok(());
        }
        let steps = self.steps.entry(header.rows).or_default();
        *steps += 1;
        if steps.is_multiple_of(STEPS_PER_BARE) {
            let start = Instant::now();
            self.inner.repeat(view, BARE_LAUNCHES)?;
            let each_ms = start.elapsed().as_secs_f64() * 1e3 / f64::from(BARE_LAUNCHES);
            self.found
                .lock()
                .entry(header.rows)
                .or_default()
                .push(each_ms);
        }
        Ok(())
    }
}

/// Of the steps that all sequences are in, without the first ones.
#[derive(Default)]
struct Times {
    steps_ms: Vec<f64>,
    turns_us: Vec<f64>,
}

impl Times {
    /// Adds a run's, and says how many steps there were.
    fn add(&mut self, records: &[abi::tg_trace], sequences: u32) -> usize {
        let whole = |record: &abi::tg_trace| {
            record.outcome.action == abi::TG_ACTION_STEP
                && record.outcome.kind == abi::TG_KIND_DECODE
                && record.outcome.rows == sequences
        };
        let before = self.steps_ms.len();
        let pairs = records.windows(2).filter(|pair| pair.iter().all(whole));
        for pair in pairs.skip(WARM_STEPS) {
            let start_ns = pair[1].inputs.now_ns;
            let step_ns = start_ns - pair[0].inputs.now_ns;
            self.steps_ms.push(step_ns as f64 / 1e6);
            self.turns_us.push((pair[1].end_ns - start_ns) as f64 / 1e3);
        }
        self.steps_ms.len() - before
    }

    /// There are some.
    fn batch(mut self, sequences: u32) -> Batch {
        self.steps_ms.sort_by(f64::total_cmp);
        self.turns_us.sort_by(f64::total_cmp);
        let at =
            |share: f64| self.steps_ms[((self.steps_ms.len() - 1) as f64 * share).ceil() as usize];
        Batch {
            sequences,
            steps: self.steps_ms.len(),
            p50_ms: at(0.5),
            p99_ms: at(0.99),
            p99_9_ms: at(0.999),
            least_ms: at(0.0),
            turn_us: self.turns_us[self.turns_us.len() / 2],
        }
    }
}
