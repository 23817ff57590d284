//! `bench launch --launch all`: every way that CUDA has of launching a step, over the same small kernels, in one table.

use super::tries::{self, Tried, Trying};
use super::{Results, with};
use crate::backend::cuda::device::GpuDevice;
use crate::backend::cuda::listed::techniques::Technique;
use crate::bench::output::{Format, TECHNIQUES, text};
use crate::bench::techniques::{self, Foreseen, Plan};
use crate::cli::args::bench::BenchArgs;
use crate::cli::interrupt;
use crate::error::Result;
use serde_json::{Value, json};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Of what `--format json` prints: another number is another layout.
const VERSION: u32 = 1;
const STEPS: u64 = 2000;
const RENEW: u32 = 100;
const MOST_SECONDS: f64 = 5.0;

/// A way, the kernels of a step, and what such steps must give.
type Thing<'a> = (Technique, u32, &'a Foreseen);

/// Measures `ways`. One that fails has no line, and its error ends the command once all others were measured.
pub fn measure(args: &BenchArgs, ways: &[Technique], interrupt: &AtomicBool) -> Result<Results> {
    let plan = Plan {
        steps: args.steps.unwrap_or(STEPS),
        most: Duration::from_secs_f64(args.most_seconds.unwrap_or(MOST_SECONDS)),
        renew: args.renew.unwrap_or(RENEW),
    };
    techniques::check(&args.kernels.0, plan.steps)?;
    let GpuDevice { gpu, .. } = super::gpu::of_launch(args)?;
    interrupt::look();
    let references = args.kernels.0.iter();
    let references: Vec<_> = references
        .map(|&kernels| (kernels, Foreseen::new(kernels - 1)))
        .collect();
    let things: Vec<_> = (references.iter())
        .flat_map(|(kernels, steps)| ways.iter().map(move |&way| (way, *kernels, steps)))
        .collect();
    let trying = Trying {
        loads: args.loads(),
        gpus: &[&gpu],
        repeats: args.repeats,
        pause: args.pause,
        quiet: args.quiet,
        interrupt,
    };
    let foresee = |(_, _, steps): Thing<'_>| {
        steps.digest(plan.steps + techniques::BEFORE);
    };
    let tries = trying.all(&things, foresee, |(way, _, steps), busy, found| {
        techniques::measure(&gpu, way, &plan, steps, busy, found, interrupt)
    })?;
    let subject = tries::subject(("launch_schema", VERSION), &[&gpu]);
    Ok(Results {
        rows: tries.rows(|tried| row(&subject, tried)),
        interrupted: tries.interrupted,
        failed: tries.failed,
        ..Results::default()
    })
}

fn row(subject: &Value, tried: &Tried<Thing<'_>>) -> Option<Value> {
    let figures = tried.found.figures()?;
    let (technique, kernels, _) = tried.of;
    let of_way = json!({
        "technique": technique.name(),
        "kernels": kernels,
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
