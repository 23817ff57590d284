//! A long and varied load on a GPU that schedules itself (tests/gpu_soak says what must hold), and prints JSON:
//!
//!     cargo run --release --features cuda --example soak -- random:lfm2-8b-a1b [SECONDS [REQUESTS [ALONE [SEED [SLOTS [GPUS]]]]]]
//!
//!     cargo run --release --features cuda --example soak -- --bits random:tiny [SECONDS [SEED [ROUND_SECONDS]]]
//!
//! On the first GPU, or on GPUS of them with a stage each. First 2,000 requests (REQUESTS), half of them without a limit, up to 256 (SLOTS) running at once, in f32 with 200 (ALONE) of
//! them once more alone, then in bf16 on record, which the host replays kernel by kernel to the same bits; then more of
//! them in bf16 for SECONDS (420), while memory is watched. Exit code 4 where something does not hold. Takes 70 GB of GPU memory at most for random:lfm2-8b-a1b.
//!
//! With --bits it records rounds of ROUND_SECONDS (3) for SECONDS (150), in bf16 and of 1 to 1,024 slots, and the host replays each
//! kernel by kernel: the descriptor of every step as its kernels found it, its tokens and its logprobs are the same bits. The
//! first round has SEED (0), the next ones those that follow. Exit code 4 where something differs, or the load was not mixed.

#[path = "../tests/gpu_soak/soak/mod.rs"]
mod soak;

use serde::Serialize;
use soak::bits::Bits;
use soak::on_gpu::OnGpu;
use soak::{Place, Soak};
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
        // Fewer than all slots could fill: now and then a request waits for pages and not for a slot. But one fits.
        pages: (slots * 5 / 2).max(6),
        step_tokens: (slots * 2).max(1024),
        chunk_tokens: 1024,
        chunk_share: 0,
        chunk_align: 64,
        steps_in_flight: 1,
        prefixes: 0,
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
    report: serde_json::Value,
}

fn main() -> Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let usage = || {
        Error::Usage(
            "expected MODEL, then SECONDS, REQUESTS, ALONE, SEED, SLOTS and GPUS, or --bits MODEL, then SECONDS, SEED and \
             ROUND_SECONDS, numbers"
                .into(),
        )
    };
    let bits = arguments.first().is_some_and(|first| first == "--bits");
    let (name, numbers) = match &arguments[usize::from(bits)..] {
        [name, numbers @ ..] if numbers.len() <= if bits { 3 } else { 6 } => (name, numbers),
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
    let mut say = |line: &str| eprintln!("{:.1} s: {line}", start.elapsed().as_secs_f64());
    let (report, holds) = if bits {
        let bits = Bits {
            seed: number(1, 0)?,
            last: Duration::from_secs(number(0, 150)?),
            round: Duration::from_secs(number(2, 3)?),
            least_requests: 0,
            shape: soak.shape(&on_gpu.model),
            options: &options,
            engine: &|options| on_gpu.described(DType::BF16, options),
            replayer: &|shape| on_gpu.replayer(DType::BF16, shape),
        };
        let report = bits.run(&mut say)?;
        (serde_json::to_value(&report), report.holds)
    } else {
        let place = Place {
            model: &on_gpu.model,
            engine: &|dtype, options, sink| on_gpu.engine(dtype, options, sink),
            replayer: &|dtype, shape| on_gpu.replayer(dtype, shape),
            free_bytes: &|| on_gpu.gpu.free_bytes().map(Some),
        };
        let report = soak.run(&place, &mut say)?;
        (serde_json::to_value(&report), report.holds)
    };
    let failed = |error: serde_json::Error| Error::Runtime(error.to_string());
    let output = Output {
        command: format!("soak {}", arguments.join(" ")),
        gpu: on_gpu.gpu.info.to_string(),
        model: name.clone(),
        load_s,
        report: report.map_err(failed)?,
    };
    let json = serde_json::to_string_pretty(&output);
    println!("{}", json.map_err(failed)?);
    Ok(ExitCode::from(if holds { 0 } else { 4 }))
}
