//! Token arrays to score: `.safetensors`, `.npy` and raw `.bin`.

use super::tensors::{Array, TensorFile};
use crate::error::{Error, Result};
use npyz::{DType, NpyFile, Order, TypeChar};
use safetensors::Dtype;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

/// One sample: at least one token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The i of `logits.{i}`.
    pub number: u64,
    /// As errors call it: `prompt.3`, `row 3`, `line 4`.
    pub name: String,
    pub tokens: Vec<u32>,
}

/// What a file of samples is, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Safetensors,
    Npy,
    /// Little-endian int32, row-major; its shape comes from the command line.
    Bin,
    /// JSON lines: rows as `generate` takes them.
    Rows,
}

impl Kind {
    /// By extension; everything else, and standard input, is JSON lines.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("safetensors") => Self::Safetensors,
            Some("npy") => Self::Npy,
            Some("bin") => Self::Bin,
            _ => Self::Rows,
        }
    }
}

/// Reads `prompt.{i}` (int32 or int64, `[T]`) or `input_ids` (`[N, T]`); other arrays are ignored.
///
/// # Errors
/// Neither or both are there, or one has another type or shape, or an id is not one.
pub fn safetensors(path: &Path) -> Result<Vec<Sample>> {
    let file = TensorFile::open(path)?;
    let prompts = file.numbered("prompt.");
    match (prompts.is_empty(), file.get("input_ids")) {
        (false, None) => prompts
            .into_iter()
            .map(|(number, name, array)| {
                let [_] = array.shape[..] else {
                    return Err(wrong_array(path, name, array, "[T]"));
                };
                let ids = integers(&file, name, array, "[T]")?;
                sample(path, number, name.to_owned(), &ids)
            })
            .collect(),
        (true, Some(array)) => {
            let [n, t] = array.shape[..] else {
                return Err(wrong_array(path, "input_ids", array, "[N, T]"));
            };
            let ids = integers(&file, "input_ids", array, "[N, T]")?;
            rows(path, &ids, n, t)
        }
        (true, None) => Err(Error::file(
            path,
            "found neither prompt.0, prompt.1, ... nor input_ids, expected one of them",
        )),
        (false, Some(_)) => Err(Error::file(
            path,
            "found both prompt.{i} and input_ids, expected only one of them",
        )),
    }
}

fn wrong_array(path: &Path, name: &str, array: &Array, shape: &str) -> Error {
    Error::file(
        path,
        format!(
            "{name}: found {:?} {:?}, expected int32 or int64 {shape}",
            array.dtype, array.shape
        ),
    )
}

fn integers(file: &TensorFile, name: &str, array: &Array, shape: &str) -> Result<Vec<i64>> {
    let bytes = file.bytes(array);
    match array.dtype {
        Dtype::I32 => Ok(int32(bytes)),
        Dtype::I64 => Ok(bytes
            .chunks_exact(8)
            .map(|b| i64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
            .collect()),
        _ => Err(wrong_array(file.path(), name, array, shape)),
    }
}

fn int32(bytes: &[u8]) -> Vec<i64> {
    bytes
        .chunks_exact(4)
        .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]).into())
        .collect()
}

/// Reads int32 or int64 `[N, T]`.
///
/// # Errors
/// Another type or rank, or fewer bytes than the header says.
pub fn npy(path: &Path) -> Result<Vec<Sample>> {
    let file =
        File::open(path).map_err(|error| Error::open(path, &error, "a .npy file of token ids"))?;
    let file_bytes = file
        .metadata()
        .map_err(|error| Error::io(path, error))?
        .len();
    let not_npy =
        |error: std::io::Error| Error::file(path, format!("not a .npy file: {}", one_line(&error)));
    let npy = NpyFile::new(BufReader::new(file)).map_err(not_npy)?;
    let shape = npy.shape().to_vec();
    let expected = "int32 or int64 [N, T]";
    let width = match npy.dtype() {
        DType::Plain(ty) if ty.type_char() == TypeChar::Int => ty.size_field(),
        _ => 0,
    };
    let (&[n, t], 4 | 8) = (&shape[..], width) else {
        return Err(Error::file(
            path,
            format!(
                "found {} {shape:?}, expected {expected}",
                npy.dtype().descr()
            ),
        ));
    };
    // Before anything of that size is allocated.
    let wanted = n.checked_mul(t).and_then(|ids| ids.checked_mul(width));
    if wanted.is_none_or(|wanted| wanted > file_bytes) {
        return Err(Error::file(
            path,
            format!(
                "its header says {n} x {t} ids of {width} bytes, found {file_bytes} bytes in all: the file is cut short"
            ),
        ));
    }
    let (n, t) = (n as usize, t as usize);
    let by_column = npy.order() == Order::Fortran;
    let ids: Vec<i64> = if width == 4 {
        let ids = npy.into_vec::<i32>().map_err(not_npy)?;
        ids.into_iter().map(i64::from).collect()
    } else {
        npy.into_vec::<i64>().map_err(not_npy)?
    };
    if by_column {
        let transposed: Vec<i64> = (0..n * t).map(|i| ids[(i % t) * n + i / t]).collect();
        return rows(path, &transposed, n, t);
    }
    rows(path, &ids, n, t)
}

fn one_line(error: &dyn std::fmt::Display) -> String {
    error.to_string().replace('\n', " ")
}

/// Reads raw little-endian int32 `[n, t]`.
///
/// # Errors
/// The file has another length than n * t * 4 bytes.
pub fn bin(path: &Path, (n, t): (usize, usize)) -> Result<Vec<Sample>> {
    let bytes = std::fs::read(path)
        .map_err(|error| Error::open(path, &error, "a file of raw int32 token ids"))?;
    let wanted = n.checked_mul(t).and_then(|ids| ids.checked_mul(4));
    if wanted != Some(bytes.len()) {
        return Err(Error::file(
            path,
            format!(
                "found {} bytes, expected {n} x {t} int32 of --shape {n},{t}",
                bytes.len()
            ),
        ));
    }
    rows(path, &int32(&bytes), n, t)
}

/// Every row of `[n, t]` is a sample.
fn rows(path: &Path, ids: &[i64], n: usize, t: usize) -> Result<Vec<Sample>> {
    if n == 0 || t == 0 {
        return Err(Error::file(
            path,
            format!("found [{n}, {t}], expected at least one row of at least one token"),
        ));
    }
    ids.chunks_exact(t)
        .enumerate()
        .map(|(row, ids)| sample(path, row as u64, format!("row {row}"), ids))
        .collect()
}

fn sample(path: &Path, number: u64, name: String, ids: &[i64]) -> Result<Sample> {
    if ids.is_empty() {
        return Err(Error::file(
            path,
            format!("{name}: found no tokens, expected at least one"),
        ));
    }
    let tokens = ids
        .iter()
        .enumerate()
        .map(|(position, &id)| {
            u32::try_from(id).map_err(|_| {
                Error::file(
                    path,
                    format!("{name}: found {id} at position {position}, expected a token id"),
                )
            })
        })
        .collect::<Result<_>>()?;
    Ok(Sample {
        number,
        name,
        tokens,
    })
}

/// Checks samples against a model.
///
/// # Errors
/// A token at or past the vocabulary, or a sample longer than the context.
pub fn check(path: &Path, samples: &[Sample], vocab_size: usize, max_context: usize) -> Result<()> {
    for Sample { name, tokens, .. } in samples {
        if let Some(position) = tokens.iter().position(|&id| id as usize >= vocab_size) {
            return Err(Error::file(
                path,
                format!(
                    "{name}: found token id {} at position {position}, expected one below the vocabulary size {vocab_size}",
                    tokens[position]
                ),
            ));
        }
        if tokens.len() > max_context {
            return Err(Error::file(
                path,
                format!(
                    "{name}: found {} tokens, expected at most the context of {max_context}",
                    tokens.len()
                ),
            ));
        }
    }
    Ok(())
}
