//! The options of both tools, as of their releases 2025.3.

use crate::cli::args::profile::{ComputeArgs, ProfileArgs, Range, SystemsArgs, Tool};
use crate::error::{Error, Result};
use crate::telemetry::nvtx::{DOMAIN, NAME_NODES};
use std::path::Path;

/// An option and, where it is a word of its own, its value.
type Words = Vec<String>;

fn words(option: &[&str]) -> Words {
    option.iter().map(|&word| word.to_owned()).collect()
}

/// What the tool is told, up to the program it starts: what this program needs, and behind it the user's own options, which
/// take the place of those of the same name.
///
/// # Errors
/// The user's options are not words of a shell, belong to the other tool, or say where the report goes.
pub fn options(args: &ProfileArgs, output: &Path) -> Result<Vec<String>> {
    let (program, _, tool) = args.tool.names();
    let (nsys, ncu) = (&args.systems.nsys, &args.compute.ncu);
    let (mut own, given, others) = match args.tool {
        Tool::Systems => (systems(&args.systems), nsys, ncu),
        Tool::Compute => (compute(&args.compute), ncu, nsys),
    };
    let path = output.display().to_string();
    let (force, report) = match args.tool {
        Tool::Systems => (
            "--force-overwrite=true",
            [format!("--output={path}")].into(),
        ),
        Tool::Compute => ("--force-overwrite", words(&["--export", &path])),
    };
    if !others.is_empty() {
        return Err(Error::Usage(format!(
            "--tool {tool} with options of the other tool: expected --{program}"
        )));
    }
    let given = given.iter().map(|text| {
        shlex::split(text).ok_or_else(|| {
            Error::Usage(format!(
                "--{program} {text}: a quote does not end, expected words as in a shell"
            ))
        })
    });
    let given = given.collect::<Result<Vec<_>>>()?.concat();
    let names_report = ["-o", "-f", name(&report[0]), name(force)];
    if let Some(word) = given.iter().find(|word| names_report.contains(&name(word))) {
        return Err(Error::Usage(format!(
            "--{program} {word}: expected this command's own --output and --overwrite for the report"
        )));
    }
    let replaced = |option: &str| {
        let mut options = given.iter().filter(|word| word.starts_with("--"));
        options.any(|word| name(word) == name(option))
    };
    own.retain(|option| !replaced(&option[0]));
    if args.overwrite {
        own.push(words(&[force]));
    }
    own.push(report);
    own.push(given);
    Ok(own.concat())
}

/// An option's name, without a value behind `=`.
fn name(word: &str) -> &str {
    word.split_once('=').map_or(word, |(name, _)| name)
}

fn systems(args: &SystemsArgs) -> Vec<Words> {
    let mut options = vec!["profile", "--trace=cuda,nvtx,osrt"];
    let names = format!("--env-var={NAME_NODES}=1");
    // Graphs that the device launches are traced as wholes only.
    if args.nodes {
        options.extend(["--cuda-graph-trace=node", &names]);
    } else {
        options.push("--cuda-graph-trace=graph:host-and-device");
    }
    if args.system_wide {
        options.extend(["--sample=system-wide", "--cpuctxsw=system-wide"]);
    }
    // Ranges begin a recording only under registered names, which all of ours are; NSYS_NVTX_PROFILER_REGISTER_ONLY may
    // stay as it is.
    let range = match args.range {
        Range::Run => Some(("load", "--capture-range-end=none")),
        Range::Serve => Some(("serve", "--capture-range-end=stop")),
        Range::All => None,
    };
    let from = range.map(|(from, _)| format!("--nvtx-capture={from}@{DOMAIN}"));
    if let (Some(from), Some((_, end))) = (&from, range) {
        // The end of the recording is not the program's.
        options.extend(["--capture-range=nvtx", from, end, "--kill=none"]);
    }
    options.iter().map(|option| words(&[option])).collect()
}

fn compute(args: &ComputeArgs) -> Vec<Words> {
    let (stage, kind, bucket) = (args.stage, args.kind.name(), args.bucket);
    // A step's range as a filter takes it: the slash is for ranges that a thread pushes and pops.
    let range = format!("{DOMAIN}@stage {stage} {kind} {bucket}/");
    let mut options = vec![
        words(&["--nvtx"]),
        words(&["--nvtx-include", &range]),
        words(&["--graph-profiling", "node"]),
        // The clocks are the machine's business; a kernel alone on a GPU is timed as it would run.
        words(&["--clock-control", "none"]),
        words(&["--set", &args.set]),
        words(&["--launch-skip", &args.skip.to_string()]),
        words(&["--launch-count", &args.launches.to_string()]),
    ];
    if let Some(kernel) = &args.kernel {
        options.push(words(&["--kernel-name", &format!("regex:{kernel}")]));
    }
    options
}

/// The tables of `nsys stats`: kernels, kernels and GPU time by range, ranges. Steps that the host launches are ranges.
const STATS: &str = "--report=cuda_gpu_kern_sum,nvtx_kern_sum,nvtx_gpu_proj_sum,nvtx_sum";

/// What prints the report as text.
pub fn summary(tool: Tool, report: &Path) -> Vec<String> {
    let report = &*report.to_string_lossy();
    match tool {
        // A database that an older report has left is made anew.
        Tool::Systems => words(&["stats", "--force-export=true", STATS, report]),
        Tool::Compute => words(&[
            "--import",
            report,
            "--page=details",
            "--print-summary=per-kernel",
        ]),
    }
}

/// A summary with the first ten rows of each table: rows follow a ruled line, and end at the next or at an empty line.
pub fn shortened(text: &str) -> impl Iterator<Item = &str> {
    let mut rows = 0;
    text.lines().filter(move |line| {
        let ends = |c: char| c == '-' || c.is_whitespace();
        rows = if line.chars().all(ends) { 0 } else { rows + 1 };
        rows <= 10
    })
}

/// Words as a shell reads them.
pub fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    let quote = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}
