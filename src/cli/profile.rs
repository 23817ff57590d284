//! `profile`: a command under Nsight Systems or Nsight Compute, with the options that this program's ranges and graphs
//! need; or just their command line. [`find`] says where the tools are, which `doctor` asks too.

pub(super) mod find;
mod line;

use super::args::Cli;
use super::args::profile::{ProfileArgs, Tool};
use super::{Exit, print};
use crate::error::{Error, Result};
use crate::telemetry::{say, warn};
use clap::CommandFactory;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The `profile` command.
pub(super) fn run(args: &ProfileArgs) -> Result<Exit> {
    let tool = args.tool;
    if tool == Tool::Compute {
        has_ranges(&args.command)?;
    }
    let (program, _, name) = tool.names();
    let ending = format!("{program}-rep");
    let output = args.output.clone();
    let mut output = output.unwrap_or_else(|| format!("tailgraph-{name}").into());
    if output.extension().is_some_and(|found| *found == *ending) {
        output.set_extension("");
    }
    let options = line::options(args, &output)?;
    let command = command(&args.command)?;
    let found = find::find(tool);
    if args.print {
        let program = found.unwrap_or_else(|| program.into());
        let words = std::iter::once(program.to_string_lossy().into_owned());
        let words: Vec<String> = words.chain(options).chain(command).collect();
        print(format!("{}\n", line::quoted(&words)).as_bytes())?;
        return Ok(Exit::Done);
    }
    let program = found.ok_or_else(|| Error::Runtime(find::missing(tool)))?;
    let report = PathBuf::from(format!("{}.{ending}", output.display()));
    if report.exists() && !args.overwrite {
        return Err(Error::Usage(format!(
            "{}: the report exists, and nothing was run; name another with -o, or replace it with --overwrite",
            report.display()
        )));
    }
    let status = Command::new(&program).args(options).args(command).status();
    let status =
        status.map_err(|source| Error::io(format!("starting {}", program.display()), source))?;
    if !status.success() {
        return Err(Error::Runtime(format!(
            "{} ended with {status}: what it printed above says why; --print shows its command line",
            program.display()
        )));
    }
    if !report.exists() {
        return Err(Error::Runtime(format!(
            "{}: {} ended well and left no such report: what it printed above says why; where nsys left a .qdstrm, its QdstrmImporter makes the report of it",
            report.display(),
            program.display()
        )));
    }
    summary(tool, &program, &report);
    Ok(Exit::Done)
}

/// Shows what the tool says of its report, in short. The report is what was asked for, so a failure here is a warning.
fn summary(tool: Tool, program: &Path, report: &Path) {
    let mut words = vec![program.to_string_lossy().into_owned()];
    words.extend(line::summary(tool, report));
    let all = line::quoted(&words);
    match Command::new(program).args(&words[1..]).output() {
        Ok(done) if done.status.success() => {
            line::shortened(&String::from_utf8_lossy(&done.stdout)).for_each(say);
        }
        Ok(done) => {
            let told = String::from_utf8_lossy(&done.stderr);
            let last = told.lines().last().unwrap_or_default();
            warn(&format!("{all} ended with {}: {last}", done.status));
        }
        Err(error) => warn(&format!("{all} could not be started: {error}")),
    }
    let report = report.display();
    say(&format!("tailgraph: {report}; its whole summary: {all}"));
}

/// What to start: this program where the first word is one of its commands.
fn command(command: &[String]) -> Result<Vec<String>> {
    if !is_ours(command) {
        return Ok(command.to_vec());
    }
    let this =
        std::env::current_exe().map_err(|source| Error::io("this program's path", source))?;
    let this = this.to_string_lossy().into_owned();
    Ok([&[this], command].concat())
}

fn is_ours(command: &[String]) -> bool {
    let first = command.first().map(String::as_str).unwrap_or_default();
    Cli::command().find_subcommand(first).is_some()
}

/// Nsight Compute finds a step by its range, which only a host that launches steps opens. Another program may know
/// better.
fn has_ranges(command: &[String]) -> Result<()> {
    let words = command.join(" ").replace("--launch=", "--launch ");
    if !is_ours(command) || words.contains("--launch host-") {
        return Ok(());
    }
    Err(Error::Usage(
        "--tool compute: a GPU that schedules itself opens no range for a step, and Nsight Compute 2025.3 does not look into \
         graphs launched by the device; expected --launch host-graph or --launch host-kernels, which run the same kernels"
            .into(),
    ))
}
