//! The `synth` command: a random preset as a checkpoint on disk.

use super::Exit;
use super::args::SynthArgs;
use crate::bytes::{Bytes, parse_bytes};
use crate::command::download::model;
use crate::error::{Error, Result};
use crate::model::synth;
use crate::telemetry::{Throttle, say};

pub fn run(args: &SynthArgs) -> Result<Exit> {
    let source = model(&args.model)?;
    let shard_bytes = parse_bytes(&args.shard_size)
        .map_err(|message| Error::Usage(format!("--shard-size {message}")))?;
    let mut throttle = Throttle::new(args.quiet);
    let weights = args.weights.unwrap_or_default();
    let written = synth::write_as(
        weights,
        &source,
        &args.output,
        shard_bytes,
        &mut |progress| {
            throttle.say(|| {
                format!(
                    "{} of {} written",
                    Bytes(progress.bytes_done),
                    Bytes(progress.bytes_total)
                )
            });
        },
    )?;
    if !args.quiet {
        say(&format!(
            "{}: {} tensors, {} in {} files",
            args.output.display(),
            written.tensors,
            Bytes(written.bytes),
            written.shards
        ));
    }
    Ok(Exit::Done)
}
