//! What commands share: flags, what they mean, the files that they name, and how a command ends.
//!
//! - [`args`]: flags of several commands; [`values`]: how they spell values of the library's types
//! - [`spec`]: flags as a checked [`crate::session::RunSpec`], which opens everything that runs a model
//! - [`download`]: a model by its name, with its download shown
//! - [`paths`]: files are not written over those that are read
//! - `interrupt`: SIGINT, SIGTERM and SIGHUP
//! - [`summary`], [`table`]: what is said at the end of a job; columns of text

pub mod args;
pub mod download;
pub mod interrupt;
pub mod paths;
pub mod spec;
pub mod summary;
pub mod table;
pub mod values;

use crate::error::Result;
use crate::files::Out;
use args::{EngineArgs, ModelArg, RunArgs};
use clap::Args;
use std::fmt::Display;

/// Writes what a command made to standard output.
///
/// # Errors
/// It cannot be written.
pub fn print(bytes: &[u8]) -> Result<()> {
    Out::stdout()?.finish_with(bytes)
}

/// What the library says, as the command line shows it: the fields of a run, which are in backquotes there, are options here.
/// Those of a file, which are called fields, stay what they are.
pub fn shown(message: impl Display) -> String {
    let command = ModelArg::augment_args(clap::Command::new("run"));
    let command = EngineArgs::augment_args(RunArgs::augment_args(command));
    let options = command.get_arguments().filter_map(clap::Arg::get_long);
    options.fold(message.to_string(), |message, option| {
        let field = format!("`{}`", option.replace('-', "_"));
        let of_file = format!("field {field}");
        let message = message.replace(&field, &format!("--{option}"));
        message.replace(&format!("field --{option}"), &of_file)
    })
}

/// How the program was started, as results say it: a name need not be text.
pub fn command_line() -> String {
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    format!("tailgraph {}", arguments.join(" "))
}

/// How a command ended, if not by an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// Everything asked for was done.
    Done,
    /// `doctor` found something that does not work.
    Problem,
    /// Some rows failed; the others were served.
    RowsFailed,
    /// `--expect` or a replay disagreed.
    Disagreed,
    /// A signal asked it to end, and it ended in order.
    Interrupted,
}

impl Exit {
    /// The process's exit code; fatal errors (1) and wrong usage (2) are [`crate::Error`]s.
    /// Interrupted: 130 by SIGINT, 129 by SIGHUP, 143 by SIGTERM.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Problem => 1,
            Self::RowsFailed => 3,
            Self::Disagreed => 4,
            Self::Interrupted => interrupt::exit_code(),
        }
    }
}
