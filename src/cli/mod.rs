//! The commands: flags in, results on standard output, everything else on standard error.
//!
//! - [`args`]: the one clap definition; what commands share is in [`crate::command`]
//! - `generate`, `score`: the two commands that run a model; their loops are [`crate::session`]'s. `input` opens what
//!   they read
//! - `dry_run`: what these would take
//! - `serve`: requests in place of rows, to `crate::server`
//! - `merge`: shards of a job as one file
//! - `bench` is all in [`crate::bench`]
//! - `tune`: measures which kernels serve which bucket
//! - `replay`: a recorded run once more
//! - `trace`: a job, or a recording of one, as a timeline; `report`: measurements and timelines as a page
//! - [`inspect`], [`doctor`]: print what the plan knows; the `command` of each looks it up, and
//!   asks a GPU besides
//! - `profile`: a command under Nsight
//! - `pages`: completions and manual pages; `help`: what `--help` says besides
//!
//! Top of the arrows: may use everything, nothing uses it but `main`.

pub mod args;
pub mod doctor;
mod dry_run;
mod generate;
mod help;
mod input;
pub mod inspect;
mod merge;
mod pages;
mod profile;
mod replay;
mod report;
mod score;
#[cfg(feature = "server")]
mod serve;
mod synth;
mod trace;
mod tune;

use crate::bench;
use crate::command::{Exit, interrupt, paths, print, shown, spec, summary, table};
use crate::error::{Error, Result};
use crate::quote;
use crate::telemetry::say;
use args::{Cli, Command};
use clap::FromArgMatches;
use std::io::Write;

/// Runs the command line of this process.
///
/// # Errors
/// Whatever is fatal; [`crate::Error::exit_code`] is the process's.
pub fn run() -> Result<Exit> {
    let all = std::env::args_os().any(|arg| arg == "--help-all");
    let parsed = with_negative_numbers(help::command(all)).try_get_matches();
    let command = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(parsed) => parsed.command,
        Err(error) => return unparsed(&error),
    };
    // SAFETY: nothing has begun a thread so far.
    unsafe {
        crate::backend::cuda::driver::nccl::without_multicast();
    }
    // What `profile` starts is to find all signals as they were.
    if !matches!(command, Command::Profile(_)) {
        interrupt::install()?;
    }
    let ended = match command {
        Command::Generate(args) => generate::run(*args),
        Command::Score(args) => score::run(&args),
        #[cfg(feature = "server")]
        Command::Serve(args) => serve::run(*args),
        Command::Merge(args) => merge::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Replay(args) => replay::run(args),
        Command::Trace(args) => trace::run(*args),
        Command::Report(args) => report::run(&args),
        Command::Tune(args) => tune::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Completions { shell } => pages::completions(shell),
        Command::Man { page } => pages::man(page.as_deref()),
    };
    match ended {
        Err(error @ Error::Interrupted) => {
            say(&format!("tailgraph: {error}"));
            Ok(Exit::Interrupted)
        }
        ended => ended,
    }
}

/// What there is to say in place of running a command: of wrong usage, or what `--help` and `--version` ask for.
fn unparsed(error: &clap::Error) -> Result<Exit> {
    if error.kind() == clap::error::ErrorKind::InvalidUtf8 {
        // Clap has no words for it.
        let arguments = std::env::args_os().skip(1);
        let wrong = arguments.filter(|argument| argument.to_str().is_none());
        let wrong: Vec<String> = wrong.map(|wrong| quote::text(wrong.display())).collect();
        return Err(Error::Usage(format!(
            "found {}, which is not UTF-8: expected text, but for names of files",
            wrong.join(" and ")
        )));
    }
    if error.use_stderr() {
        // It shows arguments, which may be names of files.
        let text = error.to_string();
        let text = match help::meant(error) {
            None => text,
            Some(instead) => {
                // In place of clap's own tips, which go by letters.
                let (found, _) = text.split_once('\n').unwrap_or((&text, ""));
                let usage = text.find("\nUsage:").map_or("", |at| &text[at..]);
                format!("{found}\n\n  tip: {instead}\n{usage}")
            }
        };
        text.lines().for_each(say);
        std::process::exit(error.exit_code());
    }
    error
        .print()
        .and_then(|()| std::io::stdout().flush())
        .map_err(|error| Error::io("standard output", error))?;
    Ok(Exit::Done)
}

/// Options take -1, so that what is wrong with it is said of the option.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    command
        .mut_args(|arg| {
            if arg.is_positional() || !arg.get_action().takes_values() {
                arg
            } else {
                arg.allow_negative_numbers(true)
            }
        })
        .mut_subcommands(with_negative_numbers)
}
