//! The `bench` command: opens the engines, runs every combination on them, and prints what came of it.
//!
//! Each repeat starts every engine anew and goes through all combinations, in an order that turns by one from repeat
//! to repeat: whatever drifts (clocks, temperature, other work) meets all of them alike, and starting is measured as
//! often as running.

mod around;
mod asked;
mod bare;
mod gemm;
mod result;
mod routing;
mod scored;
mod sizes;
mod units;
mod work;

use super::args::BucketArgs;
use super::args::bench::{BenchArgs, BenchCommand, CompareArgs, Other, PrintArgs};
use super::paths::{Files, open_printed};
use super::summary::counted;
use super::{Exit, interrupt};
use crate::bench::Kind;
use crate::bench::compare::{compare, differences};
use crate::bench::gpu_state::{Machine, Watch};
use crate::bench::host;
use crate::bench::output::{COMPARED, Format, STARTS, TABLE_WIDTH, results, shared, text};
use crate::bench::row::{Subject, VERSION, read};
use crate::error::{Error, Result};
use crate::files::Out;
use crate::model::ModelSource;
use crate::plan::params::{model_bytes, model_parameters};
use crate::quote;
use crate::telemetry::{say, warn};
use clap::ValueEnum as _;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What a measurement came to.
#[derive(Default)]
pub(super) struct Results {
    pub rows: Vec<Value>,
    /// Before its end: rows are of the repeats that were whole, and may be none.
    pub interrupted: bool,
    /// `--expect` disagreed.
    pub disagreed: bool,
    /// Why a point has no row.
    pub failed: Option<Error>,
}

pub fn run(command: &BenchCommand) -> Result<Exit> {
    if let Some(other) = &command.other {
        return apart(other);
    }
    let args = &command.bench;
    args.check()?;
    keep_apart(args)?;
    let out = args.print.open()?;
    let interrupt = interrupt::flag();
    let results = units::measure(args, &interrupt)?;
    // What other points came to is not lost by one that failed, nor what there was time for.
    if !results.rows.is_empty() {
        let whole = !results.interrupted && results.failed.is_none();
        let out = match out {
            // An earlier file may have all of them.
            Out::Whole(file) if !whole => {
                warn(&format!(
                    "{}: left as it is, since not all was measured; standard output has what was",
                    file.target().display()
                ));
                drop(file);
                Out::stdout()?
            }
            out => out,
        };
        out.finish_with(shown(args.kind, &results.rows, &args.print).as_bytes())?;
    }
    if results.interrupted {
        if let Some(error) = results.failed {
            warn(&error.to_string());
        }
        say(match results.rows.is_empty() {
            true => "tailgraph: interrupted",
            false => "tailgraph: interrupted; the results are of the repeats that were whole",
        });
        return Ok(Exit::Interrupted);
    }
    if let Some(error) = results.failed {
        return Err(error);
    }
    Ok(if results.disagreed {
        Exit::Disagreed
    } else {
        Exit::Done
    })
}

/// What measures by options of its own.
fn apart(command: &Other) -> Result<Exit> {
    match command {
        Other::Compare(args) => compared(args),
        Other::Gemm(args) => gemm::run(args),
    }
}

fn keep_apart(args: &BenchArgs) -> Result<()> {
    fn paths(files: &[PathBuf]) -> impl Iterator<Item = &Path> {
        files.iter().map(PathBuf::as_path)
    }
    let model = args.model.as_deref().map(ModelSource::parse).transpose()?;
    let mut files = Files::default()
        .reads("--input", args.input.as_deref())
        .reads("--expect", args.expect.as_deref())
        .reads("--arrivals", args.arrivals.as_deref())
        .reads("--bucket-file", paths(&args.bucket_file))
        .reads("--kernel-file", paths(&args.kernel_file))
        .writes("--output", args.print.output.as_deref());
    if let Some(model) = &model {
        files = files.runs(model, &BucketArgs::default());
    }
    files.keep_apart()
}

fn shown(kind: Kind, rows: &[Value], print: &PrintArgs) -> String {
    let (format, width) = (print.format(), print.width());
    let mut columns = results(kind);
    if format != Format::Md {
        return text(rows, format, &columns, width);
    }
    let settings = shared(rows, &mut columns);
    let table = text(rows, format, &columns, width);
    let (starts, mut columns) = (starts(rows), STARTS.to_vec());
    shared(&starts, &mut columns);
    format!(
        "{}{settings}. Pairs of latencies are median/p99.\n\n{table}\n{}",
        heading(rows),
        text(&starts, format, &columns, width)
    )
}

impl PrintArgs {
    fn format(&self) -> Format {
        let extension = self.output.as_deref().and_then(Path::extension);
        let by_name = || Format::from_str(extension?.to_str()?, false).ok();
        self.format.or_else(by_name).unwrap_or(Format::Md)
    }

    /// Characters of a line that tables may take.
    fn width(&self) -> usize {
        let terminal = || match self.output {
            Some(_) => None,
            None => console::Term::stdout().size_checked(),
        };
        match self.wide {
            true => usize::MAX,
            false => terminal().map_or(TABLE_WIDTH, |(_, columns)| usize::from(columns)),
        }
    }

    /// What results are written to, once there are some.
    ///
    /// # Errors
    /// [`Error::Usage`] where it is the name of a format; the system refused.
    fn open(&self) -> Result<Out> {
        open_printed::<Format>(self.output.as_deref())
    }
}

/// What was measured on what, above the tables.
fn heading(rows: &[Value]) -> String {
    let Some(first) = rows.first() else {
        return String::new();
    };
    let name = |field: &str| quote::visible(first[field].as_str().unwrap_or("unknown"));
    let device = match first["gpu_info"].as_str() {
        Some(_) => format!("{}, host {}", name("gpu_info"), name("cpu_info")),
        None => name("cpu_info"),
    };
    let floor = match first["floor_source"].as_str() {
        Some(source) => format!(" Floors by the bandwidth of: {source}."),
        None => String::new(),
    };
    format!(
        "{} on {device} ({} cores), {} build of tailgraph {}, {} after {} warm-up, {}.{floor}\n",
        name("model_filename"),
        first["host_cores"],
        name("build_profile"),
        name("build_version"),
        counted(first["repeats"].as_u64().unwrap_or(0), "repeat"),
        first["warm_up"],
        name("test_time"),
    )
}

/// One of the results of each engine.
fn starts(rows: &[Value]) -> Vec<Value> {
    let mut starts: Vec<Value> = Vec::new();
    let engine = |row: &Value| {
        [
            &row["launch"],
            &row["dtype"],
            &row["bucket_file"],
            &row["kernel_file"],
            &row["max_seqs"],
        ]
        .map(Value::clone)
    };
    for row in rows {
        if !row["startup_engine_ms"].is_null()
            && !starts.iter().any(|seen| engine(seen) == engine(row))
        {
            starts.push(row.clone());
        }
    }
    starts
}

/// How long the rest may take after `done` of `all` alike since `start`, as a progress line ends; nothing before the first.
fn time_left(start: Instant, done: usize, all: usize) -> String {
    if done == 0 {
        return String::new();
    }
    let left = start.elapsed().mul_f64((all - done) as f64 / done as f64);
    format!(", about {} s left", left.as_secs().max(1))
}

const BUILD_PROFILE: &str = match cfg!(debug_assertions) {
    true => "debug",
    false => "release",
};

/// As results say it.
fn now() -> String {
    chrono::Utc::now().format("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// What all results share. `model`: of kinds that run one.
fn subject(
    args: &BenchArgs,
    model: Option<&ModelSource>,
    gpu_info: Option<String>,
    watch: &Watch,
) -> Result<Subject> {
    let (mut size, mut params) = (0.0, 0.0);
    if let Some(source) = model {
        let (config, _) = source.config()?;
        params = model_parameters(&config);
        size = model_bytes(&config, source.matrix_dtype(&config)?);
    }
    Ok(Subject {
        schema: VERSION,
        build_version: env!("CARGO_PKG_VERSION").to_owned(),
        build_commit: option_env!("TAILGRAPH_COMMIT").map(str::to_owned),
        build_profile: BUILD_PROFILE.to_owned(),
        command: super::command_line(),
        test_time: Some(now()),
        model_filename: model.map_or_else(|| "none".to_owned(), ToString::to_string),
        model_size: size as u64,
        model_n_params: params as u64,
        backends: if gpu_info.is_some() { "CUDA" } else { "CPU" }.to_owned(),
        cpu_info: host::processor(),
        gpu_info,
        host_cores: host::processors(),
        warm_up: args.warm_up,
        seed: args.seed,
        machine: Machine::new(watch),
    })
}

fn compared(args: &CompareArgs) -> Result<Exit> {
    Files::default()
        .reads("A", [args.a.as_path()])
        .reads("B", [args.b.as_path()])
        .writes("--output", args.print.output.as_deref())
        .keep_apart()?;
    let out = args.print.open()?;
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let lines = compare(&a, &b)?;
    for difference in differences(&a, &b) {
        warn(&difference);
    }
    let format = args.print.format();
    let mut shown = text(&lines, format, COMPARED, args.print.width());
    if format == Format::Md {
        shown.push_str(&note(&lines));
    }
    out.finish_with(shown.as_bytes())?;
    Ok(Exit::Done)
}

/// What the verdicts rest on, and what they lack.
fn note(lines: &[Value]) -> String {
    let untested = lines.iter().any(|line| line["p"].is_null());
    let tested = lines.iter().any(|line| !line["p"].is_null());
    let mut note = "\nA and B are geometric means of the repeats.\n".to_owned();
    if tested {
        note.push_str(
            "Verdicts are by Welch's t-test on the logarithms of the repeats; over all lines together the chance that any\n\
             is called different by accident is at most 5% (Holm).\n",
        );
    }
    if untested {
        note.push_str("A verdict needs 3 repeats a side, each above 0: `bench --repeats 3`.\n");
    }
    note
}
