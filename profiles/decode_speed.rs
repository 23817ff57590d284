//! Times decode steps of a model on a GPU, in the three ways to launch them, and prints JSON:
//!
//!     cargo run --release --features cuda --example decode_speed -- random:lfm2-8b-a1b bf16
//!
//! A step's time is from the turn that composed it to the turn that composed the next one, by the clock of whoever
//! turns, over steps that all running sequences are in.

use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailgraph::backend::cuda::gpu::OpenGpu;
use tailgraph::error::{Error, Result};
use tailgraph::model::{DType, Model, ModelSource};
use tailgraph::plan::{EngineOptions, GraphFile, Limits};
use tailgraph::runtime::cuda::Launch;
use tailgraph::runtime::{Engine, Event, Logits, Request, Sampling};
use tailgraph::sys::abi;

const BATCHES: [u32; 5] = [1, 8, 32, 128, 256];
const PROMPT_TOKENS: u32 = 32;
const NEW_TOKENS: u32 = 160;
/// Before these the clocks of the GPU are not up.
const WARM_STEPS: usize = 16;

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
    model: String,
    dtype: String,
    prompt_tokens: u32,
    new_tokens: u32,
    ways: BTreeMap<&'static str, Way>,
}

#[derive(Serialize)]
struct Way {
    /// Weights to the GPU, capture and instantiation.
    start_ms: f64,
    decode: Vec<Batch>,
}

#[derive(Serialize)]
struct Batch {
    sequences: u32,
    steps: usize,
    p50_ms: f64,
    p99_ms: f64,
    least_ms: f64,
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, dtype] = &arguments[..] else {
        return Err(Error::Usage("expected MODEL and bf16, f16 or f32".into()));
    };
    let element = match dtype.as_str() {
        "bf16" => DType::BF16,
        "f16" => DType::F16,
        "f32" => DType::F32,
        other => return Err(Error::Usage(format!("{other}: expected bf16, f16 or f32"))),
    };
    let gpu = OpenGpu::new(0)?;
    let start = Instant::now();
    let model = Model::load(&ModelSource::parse(name)?)?;
    eprintln!("{name} loaded in {:.1} s", start.elapsed().as_secs_f64());
    let mut ways = BTreeMap::new();
    for (way, launch) in [
        ("host-kernels", Launch::HostKernels),
        ("host-graph", Launch::HostGraph),
        ("device-graph", Launch::DeviceGraph),
    ] {
        ways.insert(way, measure(&gpu, &model, element, launch)?);
        eprintln!(
            "{way} measured after {:.1} s",
            start.elapsed().as_secs_f64()
        );
    }
    let report = Report {
        command: format!(
            "cargo run {}--features cuda --example decode_speed -- {name} {dtype}",
            if cfg!(debug_assertions) {
                ""
            } else {
                "--release "
            }
        ),
        gpu: gpu.info.to_string(),
        model: name.clone(),
        dtype: dtype.clone(),
        prompt_tokens: PROMPT_TOKENS,
        new_tokens: NEW_TOKENS,
        ways,
    };
    let json = serde_json::to_string_pretty(&report);
    println!(
        "{}",
        json.map_err(|error| Error::Runtime(error.to_string()))?
    );
    Ok(())
}

fn measure(gpu: &OpenGpu, model: &Model, dtype: DType, launch: Launch) -> Result<Way> {
    let start = Instant::now();
    let plan = GraphFile::open(None)?.plan(Arc::new(model.config.clone()), &Limits::default())?;
    let mut engine = Engine::on_gpu(gpu, model, &plan, &OPTIONS, dtype, launch, &None)?;
    engine.watch(Duration::from_secs(30));
    engine.launch()?;
    let start_ms = start.elapsed().as_secs_f64() * 1e3;
    let decode = BATCHES.map(|sequences| batch(&mut engine, sequences, model.config.vocab_size));
    Ok(Way {
        start_ms,
        decode: decode.into_iter().collect::<Result<_>>()?,
    })
}

/// Runs `sequences` requests at once and reads their steps from the trace.
fn batch(engine: &mut Engine, sequences: u32, vocabulary: usize) -> Result<Batch> {
    for sequence in 0..sequences {
        let token = |i| (sequence * 7919 + i * 104_729) % vocabulary as u32;
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
    let whole = |record: &abi::tg_trace| {
        record.outcome.action == abi::TG_ACTION_STEP
            && record.outcome.kind == abi::TG_KIND_DECODE
            && record.outcome.rows == sequences
    };
    let mut times_ms: Vec<f64> = records
        .windows(2)
        .filter(|pair| pair.iter().all(whole))
        .map(|pair| (pair[1].inputs.now_ns - pair[0].inputs.now_ns) as f64 / 1e6)
        .skip(WARM_STEPS)
        .collect();
    times_ms.sort_by(f64::total_cmp);
    let at = |share: f64| times_ms.get((times_ms.len().saturating_sub(1) as f64 * share) as usize);
    match (at(0.5), at(0.99), times_ms.first()) {
        (Some(&p50_ms), Some(&p99_ms), Some(&least_ms)) => Ok(Batch {
            sequences,
            steps: times_ms.len(),
            p50_ms,
            p99_ms,
            least_ms,
        }),
        _ => Err(Error::Runtime(format!(
            "{sequences} sequences were never all in one decode step"
        ))),
    }
}
