//! The binary: runs the command line and turns how it went into an exit code.

use std::process::ExitCode;
use tailgraph::cli;
use tailgraph::command::{interrupt, shown};

fn main() -> ExitCode {
    let said = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !tailgraph::text::is_guarded() {
            said(panic);
        }
    }));
    match cli::run() {
        Ok(exit) => exit.code().into(),
        Err(error) => {
            if error.is_broken_pipe() {
                interrupt::end_by_broken_pipe();
            }
            tailgraph::telemetry::say(&format!("tailgraph: {}", shown(&error)));
            error.exit_code().into()
        }
    }
}
