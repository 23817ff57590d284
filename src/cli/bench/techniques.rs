//! `bench launch --launch all`: every way that CUDA has of launching a step, over the same small kernels, in one table.

use super::{Results, subject, with};
use crate::backend::cuda::device::GpuDevice;
use crate::backend::cuda::listed::techniques::Technique;
use crate::bench::drive;
use crate::bench::gpu_load::Beside;
use crate::bench::host::Busy;
use crate::bench::output::{Format, TECHNIQUES, text};
use crate::bench::techniques::{self, Foreseen, Found, Plan};
use crate::cli::args::bench::BenchArgs;
use crate::cli::interrupt;
use crate::error::Result;
use crate::telemetry::{say, warn};
use serde_json::{Value, json};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Of what `--format json` prints: another number is another layout.
const VERSION: u32 = 1;
const STEPS: u64 = 2000;
const RENEW: u32 = 100;
const MOST_SECONDS: f64 = 5.0;

/// One line of the table.
struct Tried {
    technique: Technique,
    kernels: u32,
    cpu_load: u32,
    gpu_load: u32,
    repeats: u32,
    found: Found,
    failed: bool,
}

/// Measures `ways`. One that fails has no line, and its error ends the command once all others were measured.
pub fn measure(args: &BenchArgs, ways: &[Technique], interrupt: &AtomicBool) -> Result<Results> {
    let plan = Plan {
        steps: args.steps.unwrap_or(STEPS),
        most: Duration::from_secs_f64(args.most_seconds.unwrap_or(MOST_SECONDS)),
        renew: args.renew.unwrap_or(RENEW),
    };
    techniques::check(&args.kernels.0, plan.steps)?;
    let GpuDevice { gpu, spec } = super::gpu::of_launch(args)?;
    interrupt::look();
    let mut results = Results::default();
    let mut all = vec![];
    let references = args.kernels.0.iter();
    let references: Vec<_> = references
        .map(|&kernels| (kernels, Foreseen::new(kernels - 1)))
        .collect();
    for (cpu_load, gpu_load) in args.loads() {
        let mut tried: Vec<_> = (references.iter())
            .flat_map(|&(kernels, _)| {
                ways.iter().map(move |&technique| Tried {
                    technique,
                    kernels,
                    cpu_load,
                    gpu_load,
                    repeats: 0,
                    found: Found::default(),
                    failed: false,
                })
            })
            .collect();
        let mut beside = Beside::default();
        beside.have(gpu_load, spec.ordinal)?;
        for repeat in 0..args.repeats as usize {
            if !args.quiet {
                say(&format!(
                    "repeat {} of {}, beside {cpu_load} busy threads and {gpu_load} processes on the GPU",
                    repeat + 1,
                    args.repeats
                ));
            }
            for turn in 0..tried.len() {
                let index = (turn + repeat) % tried.len();
                let one = &mut tried[index];
                if one.failed {
                    continue;
                }
                let steps = references
                    .iter()
                    .find(|(kernels, _)| *kernels == one.kernels);
                let Some((_, steps)) = steps else { continue };
                // Worked out before the host is kept busy.
                steps.digest(plan.steps + techniques::BEFORE);
                let busy = Busy::new(cpu_load);
                let whole = match drive::idle(args.pause, interrupt) {
                    true => {
                        let (way, found) = (one.technique, &mut one.found);
                        techniques::measure(&gpu, way, &plan, steps, &busy, found, interrupt)
                    }
                    false => Ok(false),
                };
                match whole {
                    Ok(true) => one.repeats += 1,
                    Ok(false) => results.interrupted = true,
                    Err(error) => {
                        one.failed = true;
                        // The first is the command's.
                        match &results.failed {
                            None => results.failed = Some(error),
                            Some(_) => warn(&error.to_string()),
                        }
                    }
                }
                if results.interrupted {
                    break;
                }
            }
            if results.interrupted {
                break;
            }
        }
        all.append(&mut tried);
        if results.interrupted {
            break;
        }
    }
    let subject = subject(args, None, Some(gpu.info.to_string()))?;
    let subject = json!({
        "launch_schema": VERSION,
        "build_version": subject.build_version,
        "build_profile": subject.build_profile,
        "command": subject.command,
        "test_time": subject.test_time,
        "cpu_info": subject.cpu_info,
        "gpu_info": subject.gpu_info,
        "host_cores": subject.host_cores,
    });
    results.rows = all
        .iter()
        .filter(|one| !one.failed)
        .filter_map(|one| row(&subject, one))
        .collect();
    Ok(results)
}

fn row(subject: &Value, tried: &Tried) -> Option<Value> {
    let figures = tried.found.figures()?;
    let of_way = json!({
        "technique": tried.technique.name(),
        "kernels": tried.kernels,
        "cpu_load": tried.cpu_load,
        "gpu_load": tried.gpu_load,
        "repeats": tried.repeats,
    });
    Some(with(with(subject.clone(), of_way), json!(figures)))
}

/// The table, below it the ways in words.
pub fn shown(rows: &[Value], format: Format, width: usize) -> String {
    let table = text(rows, format, TECHNIQUES, width);
    let (Format::Md, Some(first)) = (format, rows.first()) else {
        return table;
    };
    let name = |field: &str| first[field].as_str().unwrap_or("unknown").to_owned();
    format!(
        "Steps of small kernels on {}, host {} ({} cores), {} build of tailgraph {}, {}: us from one step's end to the next, by \
         the GPU's clock. Every way gave the same bits.\n\n{table}\n{}",
        name("gpu_info"),
        name("cpu_info"),
        first["host_cores"],
        name("build_profile"),
        name("build_version"),
        name("test_time"),
        legend(rows)
    )
}

/// What a reader of the table wants to know of each way in it.
fn legend(rows: &[Value]) -> String {
    let shown = Technique::ALL.into_iter().filter(|technique| {
        let name = technique.name();
        rows.iter().any(|row| row["technique"] == name)
    });
    let lines = shown.map(|technique| format!("- {}\n", technique.about()));
    lines.collect()
}
