//! What is said of OUTPUT where it is a shard.

use crate::cli::args::GenerateArgs;
use crate::error::Result;
use crate::io::identity::Identity;
use crate::io::shard::ShardOutput;
use crate::session::identity::text;
use crate::text::Clock;
use std::sync::Arc;

/// What is said of OUTPUT where it is a shard. Rows in error are in it, so what makes them errors counts too.
pub fn shard_output(
    args: &GenerateArgs,
    identity: &Identity,
    clock: &Option<Arc<Clock>>,
) -> Result<Option<ShardOutput>> {
    let (Some(shard), Some(path)) = (args.shard, &args.output) else {
        return Ok(None);
    };
    let timeout = text(&args.job.sampling.timeout_ms);
    let of = identity
        .clone()
        .with("--strict", args.job.strict)
        .with("--timeout-ms", timeout);
    let mut output = ShardOutput::open(path, shard, of)?;
    output.clock = clock.clone();
    Ok(Some(output))
}
