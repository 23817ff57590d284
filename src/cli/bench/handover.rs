//! `bench handover`: rows from one GPU to another, in every way there is, in one table.

use super::{gpu, now, with};
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::driver::nccl;
use crate::backend::cuda::listed::handover::HandoverWay;
use crate::bench::gpu_load::Beside;
use crate::bench::handover::{self, Foreseen, ROW_BYTES};
use crate::bench::host::{self, Busy};
use crate::bench::output::{Format, HANDOVER, text};
use crate::bench::techniques::{BEFORE, Found, Plan};
use crate::cli::args::bench::HandoverArgs;
use crate::cli::{Exit, command_line, interrupt};
use crate::error::{Error, Result};
use crate::telemetry::{say, warn};
use serde_json::{Value, json};
use std::time::Duration;

/// Of what `--format json` prints: another number is another layout.
const VERSION: u32 = 1;

/// One line of the table.
struct Tried<'a> {
    way: HandoverWay,
    steps: &'a Foreseen,
    cpu_load: u32,
    gpu_load: u32,
    repeats: u32,
    found: Found,
    failed: bool,
}

pub fn run(args: &HandoverArgs) -> Result<Exit> {
    // SAFETY: nothing has begun a thread so far.
    unsafe { nccl::without_multicast() };
    let out = args.print.open()?;
    let gpus = gpu::two("bench handover", &args.device)?;
    let ways = there(args, &gpus)?;
    let flag = interrupt::flag();
    interrupt::look();
    let plan = Plan {
        steps: args.steps,
        most: Duration::from_secs_f64(args.most_seconds),
        renew: 0,
    };
    let kinds = [false, true];
    let references = (args.rows.0.iter())
        .flat_map(|&rows| kinds.map(|reduces| Foreseen::new(rows, reduces)))
        .collect::<Vec<_>>();
    let (mut all, mut failed, mut interrupted) = (vec![], None, false);
    'loads: for &gpu_load in &args.gpu_load.0 {
        let mut beside = [Beside::default(), Beside::default()];
        for (beside, gpu) in beside.iter_mut().zip(&gpus) {
            beside.have(gpu_load, gpu.info.ordinal)?;
        }
        for &cpu_load in &args.cpu_load.0 {
            let first = all.len();
            for steps in &references {
                let ways = ways.iter().filter(|way| way.reduces == steps.reduces);
                all.extend(ways.map(|&way| Tried {
                    way,
                    steps,
                    cpu_load,
                    gpu_load,
                    repeats: 0,
                    found: Found::default(),
                    failed: false,
                }));
            }
            let tried: &mut [Tried] = &mut all[first..];
            for repeat in 0..args.repeats as usize {
                if !args.quiet {
                    say(&format!(
                        "repeat {} of {}, beside {cpu_load} busy threads and {gpu_load} processes on each GPU",
                        repeat + 1,
                        args.repeats
                    ));
                }
                for turn in 0..tried.len() {
                    let count = tried.len();
                    let one = &mut tried[(turn + repeat) % count];
                    if one.failed {
                        continue;
                    }
                    // Worked out before the host is kept busy.
                    one.steps.token(plan.steps + BEFORE);
                    let busy = Busy::new(cpu_load);
                    let (way, found) = (one.way, &mut one.found);
                    match handover::measure(&gpus, way, &plan, one.steps, &busy, found, &flag) {
                        Ok(true) => one.repeats += 1,
                        Ok(false) => {
                            interrupted = true;
                            break 'loads;
                        }
                        Err(error) => {
                            one.failed = true;
                            // The first is the command's.
                            match &failed {
                                None => failed = Some(error),
                                Some(_) => warn(&error.to_string()),
                            }
                        }
                    }
                }
            }
        }
    }
    let subject = subject(&gpus);
    let rows: Vec<Value> = (all.iter().filter(|one| !one.failed))
        .filter_map(|one| row(&subject, one))
        .collect();
    if !rows.is_empty() {
        out.finish_with(shown(&rows, args).as_bytes())?;
    }
    match (interrupted, failed) {
        (true, _) => Ok(Exit::Interrupted),
        (false, Some(error)) => Err(error),
        (false, None) => Ok(Exit::Done),
    }
}

/// The ways that are asked for and that these GPUs have all for. Of `all`, what the others lack is said.
///
/// # Errors
/// A way lacks something that was asked for by its name, or all do.
fn there(args: &HandoverArgs, gpus: &[OpenGpu; 2]) -> Result<Vec<HandoverWay>> {
    let (asked, all) = args.ways();
    let (mut there, mut lacking) = (vec![], None);
    for way in asked {
        match handover::check(gpus, way) {
            Ok(()) => there.push(way),
            Err(error) if all && matches!(error, Error::Usage(_)) => {
                warn(&format!("left out: {error}"));
                lacking = Some(error);
            }
            Err(error) => return Err(error),
        }
    }
    match (there.is_empty(), lacking) {
        (true, Some(error)) => Err(error),
        _ => Ok(there),
    }
}

fn subject(gpus: &[OpenGpu; 2]) -> Value {
    json!({
        "handover_schema": VERSION,
        "build_version": env!("CARGO_PKG_VERSION"),
        "build_profile": super::BUILD_PROFILE,
        "command": command_line(),
        "test_time": now(),
        "cpu_info": host::processor(),
        "gpu_info": gpus[0].info.to_string(),
        "other_gpu_info": gpus[1].info.to_string(),
        "host_cores": host::processors(),
    })
}

fn row(subject: &Value, tried: &Tried<'_>) -> Option<Value> {
    let figures = tried.found.figures()?;
    let bytes = u64::from(tried.steps.rows) * ROW_BYTES;
    let of_way = json!({
        "way": tried.way.name(),
        "rows": tried.steps.rows,
        "cpu_load": tried.cpu_load,
        "gpu_load": tried.gpu_load,
        "repeats": tried.repeats,
        // That each GPU which sends rows sends in a step, and of the whole step's median.
        "bytes_per_step": bytes,
        "gbytes_per_s": bytes as f64 / (figures.p50_step_us * 1e3),
    });
    Some(with(with(subject.clone(), of_way), json!(figures)))
}

/// The table, below it the ways in words.
fn shown(rows: &[Value], args: &HandoverArgs) -> String {
    let table = text(rows, args.print.format, HANDOVER, args.print.width());
    let (Format::Md, Some(first)) = (args.print.format, rows.first()) else {
        return table;
    };
    let name = |field: &str| first[field].as_str().unwrap_or("unknown").to_owned();
    let ways = HandoverWay::ALL.into_iter().filter(|way| {
        let name = way.name();
        rows.iter().any(|row| row["way"] == name)
    });
    let lines = ways.map(|way| format!("- {}\n", way.about()));
    format!(
        "Steps over {} and {}, host {} ({} cores), {} build of tailgraph {}, {}: us from one step's end to the next, by the first GPU's \
         clock. Every way of a sort gave the same bits on both GPUs.\n\n{table}\n{}",
        name("gpu_info"),
        name("other_gpu_info"),
        name("cpu_info"),
        first["host_cores"],
        name("build_profile"),
        name("build_version"),
        name("test_time"),
        lines.collect::<String>()
    )
}
