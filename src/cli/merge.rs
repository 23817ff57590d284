//! The `merge` command.

use super::Exit;
use super::args::MergeArgs;
use super::paths::{Files, is_stdio};
use super::summary::counted;
use crate::error::{Error, Result};
use crate::io::arrays::Kind;
use crate::io::merge::Merge;
use crate::io::shard::record_path;
use crate::telemetry::say;
use std::path::{Path, PathBuf};

pub fn run(args: &MergeArgs) -> Result<Exit> {
    if let Some(record) = args.shards.iter().find(|path| is_record(path)) {
        return Err(Error::Usage(format!(
            "{}: found the record of a shard, expected the shard, beside which its record is found",
            record.display()
        )));
    }
    let records: Vec<PathBuf> = args.shards.iter().map(|path| record_path(path)).collect();
    Files::default()
        .reads("shard", &args.shards)
        .reads("shard's record", &records)
        .writes("--output", Some(&args.output))
        .writes("--errors", args.errors.as_deref())
        .keep_apart()?;
    let merge = Merge::of(&args.shards)?;
    if merge.is_of_logits()
        && !is_stdio(&args.output)
        && Kind::of(&args.output) != Kind::Safetensors
    {
        return Err(Error::Usage(format!(
            "--output {}: expected a name that ends in .safetensors, which these shards' logits are merged into",
            args.output.display()
        )));
    }
    if merge.is_of_logits() && args.errors.is_some() {
        return Err(Error::Usage(
            "--errors: found shards of logits, in which rows in error have no lines: expected shards of lines".to_owned(),
        ));
    }
    let output = if is_stdio(&args.output) {
        Path::new("/dev/stdout")
    } else {
        &args.output
    };
    merge.write(output, args.errors.as_deref(), args.overwrite)?;
    if !args.quiet {
        say(&format!(
            "{} of {}: {} failed",
            counted(merge.rows(), "row"),
            counted(args.shards.len() as u64, "shard"),
            merge.failed()
        ));
    }
    Ok(match merge.failed() {
        0 => Exit::Done,
        _ => Exit::RowsFailed,
    })
}

fn is_record(path: &Path) -> bool {
    path.as_os_str()
        .as_encoded_bytes()
        .ends_with(b".shard.json")
}
