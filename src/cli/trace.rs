//! The `trace` command.

use super::Exit;
use super::args::{GenerateArgs, ModelArg, TraceArgs};
use super::generate::{keep_apart, serve};
use crate::error::{Error, Result};
use crate::io::record::Reader;
use crate::telemetry::{say, warn};
use crate::trace::about::HostClock;
use crate::trace::{About, convert};

pub fn run(args: TraceArgs) -> Result<Exit> {
    let files = [
        args.input.as_deref(),
        args.answers.as_deref(),
        args.record.record.as_deref(),
        args.from.as_deref(),
    ];
    for file in files.into_iter().flatten() {
        keep_apart("--output", &args.output, file, "run's own")?;
        if file == args.output {
            return Err(Error::Usage(format!(
                "--output {}: found the same name twice, expected a file for the trace alone",
                file.display()
            )));
        }
    }
    let (output, quiet) = (args.output.clone(), args.quiet);
    let (exit, about) = match &args.from {
        Some(record) => {
            let about = convert(&mut Reader::open(record)?, &output)?;
            if !about.complete {
                warn(&format!(
                    "{}: the recorded run did not come to its end, and what it has was traced",
                    record.display()
                ));
            }
            (Exit::Done, Some(about))
        }
        None => serve(job(args)?, Some(&output))?,
    };
    if let Some(about) = about
        && !quiet
    {
        say(&format!("{}: {}", output.display(), summary(&about)));
    }
    Ok(exit)
}

fn job(args: TraceArgs) -> Result<GenerateArgs> {
    let model = args.model.ok_or_else(|| {
        Error::Usage("expected --model, or --from with the recording of a run".into())
    })?;
    Ok(GenerateArgs {
        prompts: args.prompts,
        input: args.input,
        output: args.answers,
        resume: false,
        quiet: args.quiet,
        record: args.record,
        model: ModelArg { model },
        run: args.run,
        sampling: args.sampling,
        engine: args.engine,
    })
}

fn summary(about: &About) -> String {
    let host = match &about.host_clock {
        HostClock::Absent => "no host track in a recording".to_owned(),
        HostClock::Same => "host on the same clock".to_owned(),
        HostClock::Unknown { .. } => {
            "the host's track is left out, since nothing bounds its clock against the device's"
                .to_owned()
        }
        HostClock::Measured { uncertainty_ns, .. } => {
            format!("host beside it to {:.1} us", *uncertainty_ns as f64 / 1e3)
        }
    };
    format!(
        "{} turns, {} steps, {} requests by {}; {host}",
        about.turns, about.steps, about.requests, about.clock
    )
}
