//! `bench launch`: small kernels in each way to launch them, and the bare graph beside.

use super::around::Runner;
use super::{Results, subject, time_left};
use crate::backend::LaunchWay;
use crate::backend::cuda::device::GpuDevice;
use crate::bench::Point;
use crate::bench::clock::Clocks;
use crate::bench::drive;
use crate::bench::energy::Meter;
use crate::bench::gpu_load::Beside;
use crate::bench::host::Busy;
use crate::bench::launching::{LEAST_KERNELS, Probe, VOCABULARY};
use crate::bench::metrics::{Figures, figures};
use crate::bench::row::{Measured, Setting, Startup};
use crate::bench::workload::{self, Random};
use crate::cli::args::bench::{BenchArgs, Way};
use crate::cli::interrupt;
use crate::error::{Error, Result};
use crate::plan::EngineOptions;
use crate::runtime::Logits;
use crate::telemetry::say;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

const WAYS: [Way; 4] = [
    Way::Scheduled(LaunchWay::HostKernels),
    Way::Scheduled(LaunchWay::HostGraph),
    Way::Scheduled(LaunchWay::HostGraphAhead),
    Way::Scheduled(LaunchWay::DeviceGraph),
];

/// One combination, and its repeats.
struct Tried {
    way: Way,
    kernels: u32,
    point: Point,
    repeats: Vec<Figures>,
    options: Option<EngineOptions>,
}

/// Measures all that `args` asks for.
pub fn measure(args: &BenchArgs, interrupt: &AtomicBool) -> Result<Results> {
    if let Some(&kernels) = args
        .kernels
        .0
        .iter()
        .find(|&&kernels| kernels < LEAST_KERNELS)
    {
        return Err(Error::Usage(format!(
            "--kernels {kernels}: expected at least {LEAST_KERNELS}, of which a step is made"
        )));
    }
    let GpuDevice { gpu, spec } = super::gpu::of_launch(args)?;
    let mut tried = combinations(args)?;
    let meter = Meter::new(&gpu.context);
    let joules = || meter.as_ref().and_then(Meter::joules);
    interrupt::look();
    let mut interrupted = false;
    let mut beside = Beside::default();
    let start = Instant::now();
    'repeats: for repeat in 0..args.repeats as usize {
        if !args.quiet {
            let left = time_left(start, repeat, args.repeats as usize);
            say(&format!("repeat {} of {}{left}", repeat + 1, args.repeats));
        }
        for turn in 0..tried.len() {
            let index = (turn + repeat) % tried.len();
            let one = &mut tried[index];
            let context = one.point.prompt_tokens + one.point.new_tokens;
            let probe = Probe::new(&gpu, one.point.batch, one.kernels, context);
            one.options = Some(*probe.options());
            beside.have(one.point.gpu_load, spec.ordinal)?;
            let Some(way) = launch(one.way) else {
                if !drive::idle(args.pause, interrupt) {
                    interrupted = true;
                    break 'repeats;
                }
                let _busy = Busy::new(one.point.cpu_load, interrupt)?;
                one.repeats.push(probe.bare()?);
                continue;
            };
            let named = one.way;
            let failed = |error| named.failed(error);
            let mut engine = probe.engine(way).map_err(failed)?;
            engine.launch().map_err(failed)?;
            let mut runner = Runner {
                engine: &mut engine,
                sent: 0,
                joules: &joules,
                interrupt,
                clocks: Clocks::unknown(),
                life: None,
            };
            let mut last = None;
            for index in 0..=args.warm_up {
                let mut random = Random::new(args.seed, u64::from(index));
                let count = one.point.batch;
                if index == args.warm_up && !drive::idle(args.pause, interrupt) {
                    interrupted = true;
                    break 'repeats;
                }
                let arrivals =
                    workload::at_once(&one.point, count, Logits::None, VOCABULARY, &mut random);
                last = runner.run(&one.point, &arrivals).map_err(failed)?;
                if last.is_none() {
                    interrupted = true;
                    break 'repeats;
                }
            }
            if let Some(run) = last {
                one.repeats.push(figures(&one.point, &run)?);
            }
        }
    }
    let subject = subject(args, None, Some(gpu.info.to_string()))?;
    let cost_ns = drive::cost_ns();
    let whole = tried.iter().filter(|one| !one.repeats.is_empty());
    let rows = whole.filter_map(|one| {
        let options = one.options?;
        let setting = Setting {
            launch: Some(one.way.name().to_owned()),
            dtype: "u32".to_owned(),
            bucket_file: None,
            kernel_file: None,
            kernel_variants: None,
            replicas: 1,
            stage_devices: 1,
            max_seqs: options.max_seqs,
            max_context: options.max_context,
            step_tokens: options.step_tokens,
            chunk_tokens: options.chunk_tokens,
        };
        let measured = Measured {
            subject: &subject,
            setting: &setting,
            point: &one.point,
            kernels: Some(one.kernels),
            logits_on_device: None,
            startup: &Startup::default(),
            repeats: &one.repeats,
            least: None,
            counted_least: None,
            rates: None,
            vocabulary_share: 0.0,
            experts_expected: None,
            spread: None,
            verdict: None,
            cost_ns,
        };
        Some(measured.row())
    });
    Ok(Results {
        rows: rows.collect(),
        interrupted,
        ..Results::default()
    })
}

/// Who schedules; `None`: nobody.
fn launch(way: Way) -> Option<LaunchWay> {
    match way {
        Way::Scheduled(way) => Some(way),
        Way::Bare | Way::All | Way::Alone(_) => None,
    }
}

/// The bare graph, and each way, of each number of kernels and each point.
fn combinations(args: &BenchArgs) -> Result<Vec<Tried>> {
    let asked = match &args.launch[..] {
        [] => &WAYS[..],
        ways => ways,
    };
    let mut tried = Vec::new();
    for point in args.points()? {
        for &kernels in &args.kernels.0 {
            let scheduled = asked
                .iter()
                .copied()
                .filter(|way| matches!(way, Way::Scheduled(_)));
            for way in std::iter::once(Way::Bare).chain(scheduled) {
                tried.push(Tried {
                    way,
                    kernels,
                    point,
                    repeats: Vec::new(),
                    options: None,
                });
            }
        }
    }
    Ok(tried)
}
