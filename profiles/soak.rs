//! A long and varied load on a GPU that schedules itself (tests/gpu_soak says what must hold), and prints JSON:
//!
//!     cargo run --release --features cuda --example soak -- random:lfm2-8b-a1b [SECONDS [REQUESTS [ALONE [SEED [SLOTS [GPUS]]]]]]
//!
//! On the first GPU, or on GPUS of them with a stage each. First 2,000 requests (REQUESTS), half of them without a limit, up to 256 (SLOTS) running at once, in f32 with 200 (ALONE) of
//! them once more alone, then in bf16 on record, which the host replays kernel by kernel to the same bits; then more of
//! them in bf16 for SECONDS (420), while memory is watched. Exit code 4 where something does not hold. Takes 70 GB of GPU memory at most for random:lfm2-8b-a1b.

#[path = "../tests/gpu_soak/soak/mod.rs"]
mod soak;

use serde::Serialize;
use soak::on_gpu::OnGpu;
use soak::{Place, Report, Soak};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::error::{Error, Result};
use tailgraph::model::{DType, Model, ModelSource};
use tailgraph::plan::{GraphFile, Limits};
use tailgraph::runtime::EngineOptions;

fn options(slots: u32) -> EngineOptions {
    EngineOptions {
        max_seqs: slots,
        max_context: 384,
        page_tokens: 64,
        // Fewer than all slots could fill: now and then a request waits for pages and not for a slot.
        pages: slots * 5 / 2,
        step_tokens: (slots * 2).max(1024),
        chunk_tokens: 1024,
        chunk_share: 0,
        chunk_align: 64,
        steps_in_flight: 1,
        record: false,
    }
}

#[derive(Serialize)]
struct Output {
    command: String,
    gpu: String,
    model: String,
    load_s: f64,
    #[serde(flatten)]
    report: Report,
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = || {
        Error::Usage(
            "expected MODEL, then SECONDS, REQUESTS, ALONE, SEED, SLOTS and GPUS, numbers".into(),
        )
    };
    let (name, numbers) = match &arguments[..] {
        [name, numbers @ ..] if numbers.len() <= 6 => (name, numbers),
        _ => return Err(usage()),
    };
    let number = |at: usize, default: u64| match numbers.get(at) {
        Some(text) => text.parse().map_err(|_| usage()),
        None => Ok(default),
    };
    let slots = u32::try_from(number(4, 256)?).map_err(|_| usage())?;
    let gpus = u32::try_from(number(5, 1)?).map_err(|_| usage())?;
    let soak = Soak {
        last: Duration::from_secs(number(0, 420)?),
        requests: number(1, 2000)?,
        alone: number(2, 200)? as usize,
        seed: number(3, 0)?,
        at_once: slots as usize * 3 / 2,
        dtypes: [DType::F32, DType::BF16],
        options: EngineOptions {
            steps_in_flight: gpus,
            ..options(slots)
        },
        longest_prompt: 256,
        most_new_tokens: 128,
        longest_timeout: Duration::from_secs(4),
    };
    let gpu = OpenGpu::new(0)?;
    let start = Instant::now();
    let model = Arc::new(Model::load(&ModelSource::parse(name)?)?);
    let load_s = start.elapsed().as_secs_f64();
    let limits = Limits {
        stages: Some(gpus as usize),
        ..Limits::default()
    };
    let plan = GraphFile::open(None)?.plan(Arc::new(model.config.clone()), &limits)?;
    let on_gpu = OnGpu {
        gpu,
        gpus,
        model,
        plan,
    };
    let place = Place {
        model: &on_gpu.model,
        engine: &|dtype, options, sink| on_gpu.engine(dtype, options, sink),
        replayer: &|dtype, shape| on_gpu.replayer(dtype, shape),
        free_bytes: &|| on_gpu.gpu.free_bytes().map(Some),
    };
    let report = soak.run(&place, &mut |line| {
        eprintln!("{:.1} s: {line}", start.elapsed().as_secs_f64());
    })?;
    let holds = report.holds;
    let output = Output {
        command: format!("soak {}", arguments.join(" ")),
        gpu: on_gpu.gpu.info.to_string(),
        model: name.clone(),
        load_s,
        report,
    };
    let json = serde_json::to_string_pretty(&output);
    println!(
        "{}",
        json.map_err(|error| Error::Runtime(error.to_string()))?
    );
    Ok(ExitCode::from(if holds { 0 } else { 4 }))
}
