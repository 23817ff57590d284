//! Shards of logits: their arrays in the order of their numbers.

use super::Part;
use crate::error::{Error, Result};
use crate::io::hash::hex;
use crate::io::logits::LogitsFile;
use crate::io::target::LogitsTarget;
use crate::io::tensors::{Array, TensorFile};
use safetensors::Dtype;
use sha2::{Digest, Sha256};
use std::path::Path;

/// `logits.{i}` of a shard.
struct Found<'a> {
    part: &'a Part,
    file: &'a TensorFile,
    array: &'a Array,
    target: LogitsTarget,
    vocab_size: usize,
    last_only: bool,
}

pub(super) fn merge(parts: &[Part], output: &Path) -> Result<()> {
    let files: Vec<TensorFile> = parts.iter().map(open).collect::<Result<_>>()?;
    let mut arrays = Vec::new();
    for (part, file) in parts.iter().zip(&files) {
        let found = found(part, file)?;
        if found.len() as u64 != part.record.answers {
            let wrong = format!("{} arrays, expected {}", found.len(), part.record.answers);
            return Err(part.other(&wrong));
        }
        arrays.extend(found);
    }
    arrays.sort_by_key(|found| found.target.number);
    if let Some(pair) = arrays
        .windows(2)
        .find(|pair| pair[0].target.number == pair[1].target.number)
    {
        return Err(Error::file(
            &pair[1].part.path,
            format!(
                "found logits.{}, which {} has too, expected each once",
                pair[1].target.number,
                pair[0].part.path.display()
            ),
        ));
    }
    let (vocab_size, last_only) = arrays
        .first()
        .map_or((0, false), |first| (first.vocab_size, first.last_only));
    if let Some(other) = arrays
        .iter()
        .find(|found| (found.vocab_size, found.last_only) != (vocab_size, last_only))
    {
        return Err(Error::file(
            &other.part.path,
            "found logits of another shape than the other shards have, expected one vocabulary and the same positions",
        ));
    }
    let mut made = LogitsFile::create(output, last_only)?;
    let targets: Vec<LogitsTarget> = arrays.iter().map(|found| found.target.clone()).collect();
    made.lay_out(&targets, vocab_size)?;
    for (index, found) in arrays.iter().enumerate() {
        made.write_bytes(index, 0, found.file.bytes(found.array))?;
    }
    made.finish(None)
}

/// The file, mapped: what is copied is what is hashed.
fn open(part: &Part) -> Result<TensorFile> {
    part.open()?;
    let file = TensorFile::open(&part.path)?;
    part.check(&hex(&Sha256::digest(file.all())))?;
    Ok(file)
}

fn found<'a>(part: &'a Part, file: &'a TensorFile) -> Result<Vec<Found<'a>>> {
    let numbered = file.numbered("logits.").into_iter();
    numbered
        .map(|(number, name, array)| {
            let (tokens, vocab_size) = match array.shape[..] {
                [tokens, vocab_size] if array.dtype == Dtype::F32 => (Some(tokens), vocab_size),
                [vocab_size] if array.dtype == Dtype::F32 => (None, vocab_size),
                _ => {
                    return Err(Error::file(
                        &part.path,
                        format!(
                            "{name}: found {:?} {:?}, expected f32 [T, V] or [V]",
                            array.dtype, array.shape
                        ),
                    ));
                }
            };
            Ok(Found {
                part,
                file,
                array,
                target: LogitsTarget {
                    number,
                    tokens: tokens.unwrap_or(1) as u32,
                },
                vocab_size,
                last_only: tokens.is_none(),
            })
        })
        .collect()
}
