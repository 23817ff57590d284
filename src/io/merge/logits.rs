//! Shards of logits: their arrays in the order of their numbers.

use super::Part;
use crate::error::{Error, Result};
use crate::io::arrays::LogitsTarget;
use crate::io::hash::hex;
use crate::io::logits::LogitsFile;
use crate::io::tensors::TensorFile;
use safetensors::Dtype;
use sha2::{Digest, Sha256};
use std::path::Path;

pub(super) fn merge(parts: &[Part], output: &Path, overwrite: bool) -> Result<()> {
    // Before the shards are read: what may not be replaced is said at once.
    let mut made = LogitsFile::create(output, overwrite)?;
    let files: Vec<TensorFile> = parts.iter().map(open).collect::<Result<_>>()?;
    let mut arrays = Vec::new();
    for (part, file) in parts.iter().zip(&files) {
        let numbered = file.numbered("logits.").into_iter();
        arrays.extend(numbered.map(|(number, name, array)| (number, name, array, part, file)));
    }
    arrays.sort_by_key(|&(number, ..)| number);
    // One model and one set of options, so all are of the first one's kind.
    let first = arrays
        .first()
        .map_or(&[][..], |(_, _, first, ..)| &first.shape);
    let (vocab_size, last_only) = (first.last().copied().unwrap_or(0), first.len() == 1);
    let mut targets = Vec::new();
    for &(number, name, array, part, _) in &arrays {
        let tokens = match array.shape[..] {
            [_] if last_only => 1,
            [tokens, _] if !last_only => tokens,
            _ => 0,
        };
        if tokens == 0 || array.shape.last() != Some(&vocab_size) || array.dtype != Dtype::F32 {
            let (dtype, shape) = (array.dtype, &array.shape);
            return Err(Error::file(
                &part.path,
                format!(
                    "{name}: found {dtype:?} {shape:?}, expected f32 [T, V] or [V] as in the other shards"
                ),
            ));
        }
        targets.push(LogitsTarget {
            number,
            tokens: tokens as u32,
        });
    }
    made.lay_out(&targets, vocab_size, last_only)?;
    for (index, &(_, _, array, _, file)) in arrays.iter().enumerate() {
        made.write_bytes(index, 0, file.bytes(array))?;
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
