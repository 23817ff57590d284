//! The `trace` command.

use super::Exit;
use super::args::{GenerateArgs, ModelArg, TraceArgs};
use super::generate::{TraceTo, serve};
use super::paths::Files;
use super::summary::counted;
use super::table::Table;
use crate::bench::output::number;
use crate::error::{Error, Result};
use crate::files::names::beside;
use crate::files::resolve;
use crate::io::record::{Reader, record_paths, recordings};
use crate::telemetry::{say, warn};
use crate::trace::about::HostClock;
use crate::trace::kernels::{Bucket, Kernels, Operation};
use crate::trace::{About, convert};
use std::io::Write;
use std::path::Path;

pub fn run(args: TraceArgs) -> Result<Exit> {
    let (output, quiet, parts) = (args.output.clone(), args.job.quiet, args.kernels);
    let say_of = |about: &About, name: &Path| {
        if !quiet {
            say(&format!("{}: {}", name.display(), summary(about)));
            if let Some(kernels) = &about.kernels {
                table(kernels).lines().for_each(say);
            }
        }
    };
    let Some(record) = &args.from else {
        let to = TraceTo {
            path: &output,
            parts,
        };
        let (exit, about) = serve(job(args)?, Some(to))?;
        // One that did not come to its end is under the name of an unfinished file.
        let name = match (exit, resolve::place(&output)) {
            (Exit::Interrupted, Some(place)) => beside(&place, ".partial"),
            _ => output,
        };
        about.iter().for_each(|about| say_of(about, &name));
        return Ok(exit);
    };
    let records = recordings(record);
    Files::default()
        .reads("--from", &records)
        .writes_each("--output", Some(&output), records.len())?
        .keep_apart()?;
    for (record, output) in records.iter().zip(record_paths(&output, records.len())) {
        let about = convert(&mut Reader::open(record)?, &output)?;
        if !about.complete {
            warn(&format!(
                "{}: the recorded run did not come to its end, and what it has was traced",
                record.display()
            ));
        }
        say_of(&about, &output);
    }
    Ok(Exit::Done)
}

fn job(args: TraceArgs) -> Result<GenerateArgs> {
    let model = args.model.ok_or_else(|| {
        Error::Usage("expected --model, or --from with the recording of a run".into())
    })?;
    Ok(GenerateArgs {
        output: args.answers,
        resume: false,
        overwrite: args.overwrite,
        errors: None,
        dry_run: false,
        in_order: false,
        shard: None,
        model: ModelArg { model },
        job: args.job,
    })
}

fn summary(about: &About) -> String {
    let host = match &about.host_clock {
        HostClock::Absent => "no host track in a recording".to_owned(),
        HostClock::Same => "host on the same clock".to_owned(),
        HostClock::Unknown => {
            "the host's track is left out, since nothing bounds its clock against the device's"
                .to_owned()
        }
        HostClock::Measured { uncertainty_ns, .. } => {
            format!("host beside it to {:.1} us", *uncertainty_ns as f64 / 1e3)
        }
    };
    format!(
        "{}, {}, {} by {}; {host}",
        counted(about.turns, "turn"),
        counted(about.steps, "step"),
        counted(about.requests, "request"),
        about.clock
    )
}

/// What each operation took, bucket by bucket.
fn table(kernels: &Kernels) -> String {
    let mut text = Vec::new();
    // A Vec takes all that is written.
    let _ = write_table(kernels, &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

fn write_table(kernels: &Kernels, out: &mut dyn Write) -> std::io::Result<()> {
    if kernels.lost > 0 {
        writeln!(
            out,
            "{} steps were lost, since this host did not read their times soon enough: {} are here",
            kernels.lost, kernels.steps
        )?;
    }
    for bucket in &kernels.buckets {
        writeln!(out, "\n{}", heading(bucket))?;
        let mut table = Table::new(&[0]);
        table.row([
            "operation",
            "a step",
            "us each",
            "us a step",
            "early us",
            "FLOP/B",
            "TFLOP/s",
            "TB/s",
            "floor us",
            "of it",
        ]);
        for operation in &bucket.operations {
            rows(operation, &mut table);
        }
        table.write("  ", out)?;
    }
    match &kernels.floor {
        Some(floor) => writeln!(out, "\nfloors by {floor}"),
        None => Ok(()),
    }
}

fn heading(bucket: &Bucket) -> String {
    let untimed = bucket.untimed_step_us.map_or(String::new(), |us| {
        format!(
            "; {} untimed steps took {us:.1} us each",
            bucket.untimed_steps
        )
    });
    format!(
        "{} {}: {} steps of {:.1} tokens, {:.1} us each, {:.1} us from the first kernel to the last, {:.1} us to the next turn{untimed}",
        bucket.kind,
        bucket.bucket,
        bucket.steps,
        bucket.rows,
        bucket.step_us,
        bucket.kernels_us,
        bucket.handover_us
    )
}

/// A row for the operation, and one for each of its kernels where it has several.
fn rows(operation: &Operation, table: &mut Table) {
    let early = match &operation.kernels[..] {
        [kernel] => format!("{:.2}", kernel.early_us),
        _ => String::new(),
    };
    let [flops_per_s, bytes_per_s] = operation.rates();
    table.row([
        operation.operation.clone(),
        format!("{:.1}", operation.per_step),
        format!("{:.2}", operation.us_each),
        format!("{:.2}", operation.us_per_step),
        early,
        operation.intensity().map_or(String::new(), number),
        number(flops_per_s / 1e12),
        number(bytes_per_s / 1e12),
        operation
            .floor_us_per_step
            .map_or(String::new(), |us| format!("{us:.2}")),
        operation
            .fraction
            .map_or(String::new(), |share| format!("{:.0}%", share * 100.0)),
    ]);
    if operation.kernels.len() < 2 {
        return;
    }
    for kernel in &operation.kernels {
        table.row([
            format!("  {}", kernel.kernel),
            format!("{:.1}", kernel.per_step),
            format!("{:.2}", kernel.us_each),
            format!("{:.2}", kernel.us_each * kernel.per_step),
            format!("{:.2}", kernel.early_us),
        ]);
    }
}
