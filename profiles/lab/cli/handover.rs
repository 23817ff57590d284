//! `bench handover`: rows from one GPU to another, in every way there is, in one table.

use super::tries::{self, Tried, Trying};
use super::{gpu, with};
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::listed::handover::HandoverWay;
use crate::bench::handover::{self, Foreseen, ROW_BYTES};
use crate::bench::output::{Format, HANDOVER, text};
use crate::bench::techniques::{BEFORE, Plan};
use crate::cli::args::bench::HandoverArgs;
use crate::cli::{Exit, interrupt};
use crate::error::{Error, Result};
use crate::telemetry::warn;
use serde_json::{Value, json};
use std::time::Duration;

/// Of what `--format json` prints: another number is another layout.
const VERSION: u32 = 1;

/// A way, and what its steps must give.
type Thing<'a> = (HandoverWay, &'a Foreseen);

pub fn run(args: &HandoverArgs) -> Result<Exit> {
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
    let things: Vec<_> = (references.iter())
        .flat_map(|steps| {
            let ways = ways.iter().filter(|way| way.reduces == steps.reduces());
            ways.map(move |&way| (way, steps))
        })
        .collect();
    let [first, second] = &gpus;
    let both = [first, second];
    let trying = Trying {
        loads: args.loads(),
        gpus: &both,
        repeats: args.repeats,
        pause: args.pause,
        quiet: args.quiet,
        interrupt: &flag,
    };
    let foresee = |(_, steps): Thing<'_>| {
        steps.token(plan.steps + BEFORE);
    };
    let tries = trying.all(&things, foresee, |(way, steps), busy, found| {
        handover::measure(&gpus, way, &plan, steps, busy, found, &flag)
    })?;
    let subject = tries::subject(("handover_schema", VERSION), &both);
    let rows = tries.rows(|tried| row(&subject, tried));
    if !rows.is_empty() {
        out.finish_with(shown(&rows, args).as_bytes())?;
    }
    match (tries.interrupted, tries.failed) {
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

fn row(subject: &Value, tried: &Tried<Thing<'_>>) -> Option<Value> {
    let figures = tried.found.figures()?;
    let (way, steps) = tried.of;
    let bytes = u64::from(steps.rows()) * ROW_BYTES;
    let of_way = json!({
        "way": way.name(),
        "rows": steps.rows(),
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
    let table = text(rows, args.print.format(), HANDOVER, args.print.width());
    let (Format::Md, Some(first)) = (args.print.format(), rows.first()) else {
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
