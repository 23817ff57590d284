//! `profile`: a command under Nsight Systems or Nsight Compute, with the options that this program's ranges and graphs
//! need; or just their command line.

mod find;
mod line;

use super::args::Cli;
use super::args::profile::{ProfileArgs, Tool};
use super::{Exit, print};
use crate::error::{Error, Result};
use crate::telemetry::say;
use clap::CommandFactory;
use find::Places;
pub use line::{quoted, words};
use std::path::{Path, PathBuf};
use std::process::Command;

impl Tool {
    /// Its program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Systems => "nsys",
            Self::Compute => "ncu",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Systems => "Nsight Systems",
            Self::Compute => "Nsight Compute",
        }
    }

    /// Ending of its reports.
    fn ending(self) -> &'static str {
        match self {
            Self::Systems => "nsys-rep",
            Self::Compute => "ncu-rep",
        }
    }

    fn report(self) -> PathBuf {
        PathBuf::from(match self {
            Self::Systems => "tailgraph-systems",
            Self::Compute => "tailgraph-compute",
        })
    }
}

/// The `profile` command.
pub(super) fn run(args: &ProfileArgs) -> Result<Exit> {
    if args.tool == Tool::Compute {
        has_ranges(&args.command)?;
    }
    let output = args.output.clone().unwrap_or_else(|| args.tool.report());
    let program = program(&args.command)?;
    let options = words(args, &output);
    let found = find::find(args.tool, &Places::of_this_machine());
    if args.print {
        let tool = found.unwrap_or_else(|| args.tool.program().into());
        let words = std::iter::once(tool.to_string_lossy().into_owned());
        let words: Vec<String> = words.chain(options).chain(program).collect();
        print(format!("{}\n", quoted(&words)).as_bytes())?;
        return Ok(Exit::Done);
    }
    let tool = found.ok_or_else(|| Error::Runtime(find::missing(args.tool)))?;
    let status = Command::new(&tool).args(options).args(program).status();
    let status =
        status.map_err(|source| Error::io(format!("starting {}", tool.display()), source))?;
    if !status.success() {
        return Err(Error::Runtime(format!(
            "{} ended with {status}: what it printed above says why; --print shows its command line",
            tool.display()
        )));
    }
    let report = format!("{}.{}", output.display(), args.tool.ending());
    say(&format!(
        "tailgraph: {}; as text: {}",
        report,
        line::summary(args.tool, &tool, Path::new(&report))
    ));
    Ok(Exit::Done)
}

/// What to start: this program where the first word is one of its commands.
fn program(command: &[String]) -> Result<Vec<String>> {
    if !is_ours(command) {
        return Ok(command.to_vec());
    }
    let this =
        std::env::current_exe().map_err(|source| Error::io("this program's path", source))?;
    let this = this.to_string_lossy().into_owned();
    Ok(std::iter::once(this)
        .chain(command.iter().cloned())
        .collect())
}

fn is_ours(command: &[String]) -> bool {
    let first = command.first().map(String::as_str).unwrap_or_default();
    Cli::command().find_subcommand(first).is_some()
}

/// Nsight Compute finds a step by its range, which only a host that launches steps opens. Another program may know
/// better.
fn has_ranges(command: &[String]) -> Result<()> {
    let way =
        command
            .iter()
            .enumerate()
            .find_map(|(at, word)| match word.strip_prefix("--launch")? {
                "" => Some(command.get(at + 1).map_or("", String::as_str)),
                value => value.strip_prefix('='),
            });
    match way {
        Some("host-kernels" | "host-graph" | "host-graph-event" | "host-graph-block") => Ok(()),
        None if !is_ours(command) => Ok(()),
        _ => Err(Error::Usage(format!(
            "--tool compute with {}: a GPU that schedules itself opens no range for a step, and Nsight Compute 2025.3 \
             does not look into graphs launched by the device; expected --launch host-graph or --launch host-kernels, \
             which run the same kernels",
            way.map_or("no --launch".to_owned(), |way| format!("--launch {way}"))
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(words: &[&str]) -> Vec<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn a_step_without_a_range_is_refused() {
        for (command, fine) in [
            (&["generate", "--launch", "host-graph"][..], true),
            (&["generate", "--launch=host-kernels"], true),
            (&["generate", "--launch", "device-graph"], false),
            (&["generate", "--launch=device-graph"], false),
            (&["generate", "--launch"], false),
            (&["generate"], false),
            (&["./another", "program"], true),
        ] {
            assert_eq!(has_ranges(&owned(command)).is_ok(), fine, "{command:?}");
        }
    }

    #[test]
    fn our_own_commands_are_started_by_their_path() {
        let started = program(&owned(&["score", "--model", "m"])).unwrap();
        assert!(Path::new(&started[0]).is_absolute());
        assert_eq!(started[1..], ["score", "--model", "m"]);
        assert_eq!(program(&owned(&["env", "true"])).unwrap(), ["env", "true"]);
    }
}
