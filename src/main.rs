//! The binary: runs the command line and turns how it went into an exit code.

use std::io::ErrorKind;
use std::process::ExitCode;
use tailgraph::Error;

fn main() -> ExitCode {
    match tailgraph::cli::run() {
        Ok(exit) => exit.code().into(),
        // Whoever read our output has seen enough.
        Err(Error::Io { source, .. }) if source.kind() == ErrorKind::BrokenPipe => {
            ExitCode::SUCCESS
        }
        Err(error) => {
            tailgraph::telemetry::say(&format!("tailgraph: {error}"));
            error.exit_code().into()
        }
    }
}
