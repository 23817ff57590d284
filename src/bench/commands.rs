//! `bench` as clap sees it, and what becomes of a command: results in a file, or tables on standard output.

use super::args::{LISTS, Measurement, PrintArgs};
use super::compare::{compare, differences};
use super::decode::DecodeArgs;
use super::kernel::{self, KernelArgs};
use super::measure::measure;
use super::output::{self, Format, STARTS, heading, is_unsteady, results, shared, text};
use super::prefill::PrefillArgs;
use super::row::read;
use super::score::ScoreArgs;
use super::serve::ServeArgs;
use crate::command::args::BucketArgs;
use crate::command::paths::{Files, open_asked};
use crate::command::{Exit, download, interrupt};
use crate::error::{Error, Result};
use crate::files::Out;
use crate::telemetry::{say, warn};
use clap::{Args, Subcommand};
use serde_json::Value;
use std::path::PathBuf;

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = LISTS)]
pub struct BenchCommand {
    #[command(subcommand)]
    kind: Option<BenchKind>,
    #[command(flatten)]
    decode: DecodeArgs,
}

#[derive(Debug, Clone, Subcommand)]
enum BenchKind {
    /// Decode steps, in which every sequence generates a token: what `bench` alone measures
    Decode(Box<DecodeArgs>),
    /// Prompts up to their first token
    Prefill(Box<PrefillArgs>),
    /// Logits of prompts, all sent at once
    Score(Box<ScoreArgs>),
    /// The latency of requests that arrive at a rate
    Serve(Box<ServeArgs>),
    /// Kernels of steps of several sizes: their time beside their bytes, FLOPs, what bounds them, and cuBLASLt's time
    #[command(visible_alias = "gemm")]
    Kernel(Box<KernelArgs>),
    /// Whether two measurements of the same model and devices differ: their means, ratios, and a test of each
    Compare(CompareArgs),
}

#[derive(Debug, Clone, Args)]
struct CompareArgs {
    /// The baseline: results of `bench` in --format json or jsonl
    a: PathBuf,
    /// The results that are compared with it
    b: PathBuf,
    #[command(flatten)]
    print: PrintArgs,
}

/// Runs `bench`.
///
/// # Errors
/// Wrong usage; a measurement failed; results cannot be written.
pub fn run(command: &BenchCommand) -> Result<Exit> {
    match &command.kind {
        None => measured(&command.decode.measurement()),
        Some(BenchKind::Decode(args)) => measured(&args.measurement()),
        Some(BenchKind::Prefill(args)) => measured(&args.measurement()),
        Some(BenchKind::Score(args)) => measured(&args.measurement()),
        Some(BenchKind::Serve(args)) => measured(&args.measurement()),
        Some(BenchKind::Kernel(args)) => kernel::run(args),
        Some(BenchKind::Compare(args)) => compared(args),
    }
}

fn measured(of: &Measurement<'_>) -> Result<Exit> {
    keep_apart(of)?;
    let print = &of.shared.print;
    let (out, steps) = (print.open()?, open_asked(of.steps_file)?);
    let results = measure(of, &interrupt::flag())?;
    // What other points came to is not lost by one that failed, nor what there was time for.
    if !results.rows.is_empty() {
        let whole = results.failed.is_none();
        if let Some(steps) = steps.filter(|_| whole) {
            steps.finish_with(text(&results.steps, Format::Jsonl, &[], 0).as_bytes())?;
        }
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
        out.finish_with(shown(of, &results.rows).as_bytes())?;
    }
    if matches!(results.failed, Some(Error::Interrupted)) && !results.rows.is_empty() {
        say("the results are of the repeats that were whole");
    }
    results.failed.map_or(Ok(Exit::Done), Err)
}

fn keep_apart(of: &Measurement<'_>) -> Result<()> {
    let shared = of.shared;
    let model = download::model(shared.on.model())?;
    Files::default()
        .reads("--bucket-file", &shared.on.bucket_file)
        .reads("--kernel-file", &shared.on.kernel_file)
        .runs(&model, &BucketArgs::default())
        .writes("--output", shared.print.output.as_deref())
        .writes("--steps", of.steps_file)
        .keep_apart()
}

fn shown(of: &Measurement<'_>, rows: &[Value]) -> String {
    let print = &of.shared.print;
    let (format, width) = (print.format(), print.width());
    let mut columns = results(of.kind.columns());
    if format != Format::Md {
        return text(rows, format, &columns, width);
    }
    let settings = shared(rows, &mut columns);
    let mut table = text(rows, format, &columns, width);
    if rows.iter().any(is_unsteady) {
        table.push_str("\n* The SM clocks of these runs are more than 5% of their median apart.\n");
    }
    let (starts, mut columns) = (starts(rows), STARTS.to_vec());
    shared(&starts, &mut columns);
    format!(
        "{}{settings}. Pairs of latencies are median/p99.\n\n{table}\n{}{}",
        heading(rows),
        over_bare(rows, width),
        text(&starts, format, &columns, width)
    )
}

/// What ways to launch add to the bare graph, and whether they did the same work; empty where one was measured alone.
fn over_bare(rows: &[Value], width: usize) -> String {
    let over = rows.iter().filter(|row| !row["over_bare_us"].is_null());
    let over: Vec<Value> = over.cloned().collect();
    if over.is_empty() {
        return String::new();
    }
    let mut columns = output::over_bare();
    let settings = shared(&over, &mut columns);
    let table = text(&over, Format::Md, &columns, width);
    format!(
        "Over the bare graph, a step's mean in us, in runs of their own: {settings}. {}\n\n{table}\n",
        same_work(rows)
    )
}

/// Whether all rows of the same sequences had the same kernel calls and gave the same tokens.
fn same_work(rows: &[Value]) -> String {
    const ASKED: [&str; 9] = [
        "dtype",
        "weights",
        "activations",
        "bucket_file",
        "kernel_file",
        "batch",
        "n_prompt",
        "n_gen",
        "repeats",
    ];
    for (field, what) in [
        ("calls_sha256", "their kernel calls"),
        ("outputs_sha256", "the tokens that they gave"),
    ] {
        let known: Vec<&Value> = rows.iter().filter(|row| !row[field].is_null()).collect();
        for (at, row) in known.iter().enumerate() {
            let mut alike = known[..at]
                .iter()
                .filter(|other| ASKED.iter().all(|&name| row[name] == other[name]));
            if alike.any(|other| row[field] != other[field]) {
                return format!(
                    "NOT THE SAME WORK: at batch {} ways differ in {what}.",
                    row["batch"]
                );
            }
        }
    }
    "Ways that were compared had the same kernel calls and gave the same tokens (by SHA-256)."
        .into()
}

/// One of the results of each engine.
fn starts(rows: &[Value]) -> Vec<Value> {
    const SETTING: [&str; 7] = [
        "launch",
        "dtype",
        "weights",
        "activations",
        "bucket_file",
        "kernel_file",
        "max_seqs",
    ];
    let mut starts: Vec<Value> = Vec::new();
    for row in rows {
        let alike = |seen: &Value| SETTING.iter().all(|&name| seen[name] == row[name]);
        if !row["startup_engine_ms"].is_null() && !starts.iter().any(alike) {
            starts.push(row.clone());
        }
    }
    starts
}

fn compared(args: &CompareArgs) -> Result<Exit> {
    Files::default()
        .reads("A", [&args.a])
        .reads("B", [&args.b])
        .writes("--output", args.print.output.as_deref())
        .keep_apart()?;
    let out = args.print.open()?;
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let lines = compare(&a, &b)?;
    for difference in differences(&a, &b) {
        warn(&difference);
    }
    let format = args.print.format();
    let mut columns = output::compared();
    let settings = shared(&lines, &mut columns);
    let mut shown = text(&lines, format, &columns, args.print.width());
    if format == Format::Md {
        shown = format!("{settings}.\n\n{shown}\n{NOTE}");
    }
    out.finish_with(shown.as_bytes())?;
    Ok(Exit::Done)
}

/// What the verdicts rest on.
const NOTE: &str = "\
A and B are geometric means of the repeats. Verdicts are by Welch's t-test on the logarithms of the repeats and need 3
repeats a side, each above 0; over all lines together the chance that any is called different by accident is at most
5% (Holm).
";
