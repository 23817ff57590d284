//! Token arrays to score: `.safetensors`, `.npy` and raw `.bin`.

use super::tensors::{Array, TensorFile};
use crate::error::{Error, Result};
use crate::json;
use crate::quote;
use safetensors::Dtype;
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
            "{name}: found {:?} {}, expected int32 or int64 {shape}",
            array.dtype,
            quote::text(format_args!("{:?}", array.shape))
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

/// The dictionary a .npy file begins with.
#[derive(serde::Deserialize)]
struct NpyHeader {
    descr: serde_json::Value,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// Splits a .npy file (numpy.lib.format, versions 1 to 3) into its header and its data.
fn split_npy(bytes: &[u8]) -> std::result::Result<(NpyHeader, &[u8]), String> {
    let cut = || "it ends within its header".to_owned();
    let rest = bytes
        .strip_prefix(b"\x93NUMPY")
        .ok_or("it does not begin with \\x93NUMPY")?;
    let (version, rest) = rest.split_at_checked(2).ok_or_else(cut)?;
    let (length, rest) = match version[0] {
        1 => rest
            .split_first_chunk()
            .map(|(n, rest)| (u16::from_le_bytes(*n).into(), rest)),
        2 | 3 => rest
            .split_first_chunk()
            .map(|(n, rest)| (u32::from_le_bytes(*n) as usize, rest)),
        other => return Err(format!("found format version {other}, expected 1, 2 or 3")),
    }
    .ok_or_else(cut)?;
    // numpy refuses longer ones than 10,000 bytes, too, unless it is told to trust the file.
    const MAX_HEADER_BYTES: usize = 1 << 16;
    if length > MAX_HEADER_BYTES {
        return Err(format!(
            "found a header of {length} bytes, expected at most {MAX_HEADER_BYTES}"
        ));
    }
    let (header, data) = rest.split_at_checked(length).ok_or_else(cut)?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text")?;
    // The Python literal of two strings, a bool and a tuple of integers, as JSON.
    let json = header
        .replace('\'', "\"")
        .replace('(', "[")
        .replace(')', "]")
        .replace("False", "false")
        .replace("True", "true")
        .replace(", ]", "]")
        .replace(",]", "]")
        .replace(", }", "}")
        .replace(",}", "}");
    let header = serde_json::from_str(&json).map_err(|_| {
        format!(
            "found the header {}, expected a dictionary of descr, fortran_order and shape",
            quote::name(header.trim_end())
        )
    })?;
    Ok((header, data))
}

// Each takes exactly its bytes.
fn little_i32(id: &[u8]) -> i64 {
    i32::from_le_bytes(id.try_into().expect("4 bytes")).into()
}

fn big_i32(id: &[u8]) -> i64 {
    i32::from_be_bytes(id.try_into().expect("4 bytes")).into()
}

fn little_i64(id: &[u8]) -> i64 {
    i64::from_le_bytes(id.try_into().expect("8 bytes"))
}

fn big_i64(id: &[u8]) -> i64 {
    i64::from_be_bytes(id.try_into().expect("8 bytes"))
}

/// Reads int32 or int64 `[N, T]`.
///
/// # Errors
/// Another type or rank, or another number of bytes than the header says.
pub fn npy(path: &Path) -> Result<Vec<Sample>> {
    let bytes = std::fs::read(path)
        .map_err(|error| Error::open(path, &error, "a .npy file of token ids"))?;
    let (header, data) = split_npy(&bytes)
        .map_err(|error| Error::file(path, format!("not a .npy file: {error}")))?;
    let format = match header.descr.as_str() {
        Some("<i4") => Some((4, little_i32 as fn(&[u8]) -> i64)),
        Some(">i4") => Some((4, big_i32 as _)),
        Some("<i8") => Some((8, little_i64 as _)),
        Some(">i8") => Some((8, big_i64 as _)),
        _ => None,
    };
    let (&[n, t], Some((width, read))) = (&header.shape[..], format) else {
        return Err(Error::file(
            path,
            format!(
                "found {} {}, expected int32 or int64 [N, T]",
                json::shown(&header.descr),
                quote::text(format_args!("{:?}", header.shape))
            ),
        ));
    };
    let wanted = n.checked_mul(t).and_then(|ids| ids.checked_mul(width));
    if wanted != Some(data.len() as u64) {
        return Err(Error::file(
            path,
            format!(
                "its header says {n} x {t} ids of {width} bytes, found {} bytes of data",
                data.len()
            ),
        ));
    }
    let (n, t) = (n as usize, t as usize);
    let mut ids: Vec<i64> = data.chunks_exact(width as usize).map(read).collect();
    if header.fortran_order {
        ids = (0..n * t).map(|i| ids[(i % t) * n + i / t]).collect();
    }
    rows(path, &ids, n, t)
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
