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
    /// The array's name in errors: `prompt.3`, `row 3`, `line 4`.
    pub name: String,
    pub tokens: Vec<u32>,
}

/// Where one request's logits go. Requests are numbered in the order of submission, and so are these.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogitsTarget {
    /// The i of `logits.{i}`.
    pub number: u64,
    /// The prompt's tokens, T.
    pub tokens: u32,
}

impl LogitsTarget {
    pub fn of(sample: &Sample) -> Self {
        Self {
            number: sample.number,
            tokens: sample.tokens.len() as u32,
        }
    }
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
        Dtype::I64 => Ok(int64(bytes)),
        _ => Err(wrong_array(file.path(), name, array, shape)),
    }
}

fn int32(bytes: &[u8]) -> Vec<i64> {
    let (ids, _) = bytes.as_chunks();
    ids.iter()
        .map(|&id| i32::from_le_bytes(id).into())
        .collect()
}

fn int64(bytes: &[u8]) -> Vec<i64> {
    let (ids, _) = bytes.as_chunks();
    ids.iter().map(|&id| i64::from_le_bytes(id)).collect()
}

/// The dictionary a .npy file begins with.
#[derive(serde::Deserialize)]
struct NpyHeader {
    descr: serde_json::Value,
    fortran_order: bool,
    shape: Vec<u64>,
}

/// Splits a .npy file (version 1 of numpy.lib.format, whose headers have up to 64 KiB) into its header and its data.
fn split_npy(bytes: &[u8]) -> std::result::Result<(NpyHeader, &[u8]), String> {
    let cut = "it ends within its header";
    let rest = bytes
        .strip_prefix(b"\x93NUMPY")
        .ok_or("it does not begin with \\x93NUMPY")?;
    let (&[major, _, low, high], rest) = rest.split_first_chunk().ok_or(cut)?;
    if major != 1 {
        return Err(format!("found format version {major}, expected 1"));
    }
    let length = u16::from_le_bytes([low, high]).into();
    let (header, data) = rest.split_at_checked(length).ok_or(cut)?;
    let header = std::str::from_utf8(header).map_err(|_| "its header is not text")?;
    // The Python literal of two strings, a bool and a tuple of integers, as JSON.
    let mut json = header.to_owned();
    for (python, in_json) in [
        ("'", "\""),
        ("(", "["),
        (")", "]"),
        ("False", "false"),
        ("True", "true"),
        (", ", ","),
        (",]", "]"),
        (",}", "}"),
    ] {
        json = json.replace(python, in_json);
    }
    let header = serde_json::from_str(&json).map_err(|_| {
        format!(
            "found the header {}, expected a dictionary of descr, fortran_order and shape",
            quote::name(header.trim_end())
        )
    })?;
    Ok((header, data))
}

/// Reads int32 or int64 `[N, T]`, little-endian and row after row, as numpy has them unless told otherwise.
///
/// # Errors
/// Another type, rank or order, or another number of bytes than the header says.
pub fn npy(path: &Path) -> Result<Vec<Sample>> {
    let bytes = std::fs::read(path)
        .map_err(|error| Error::open(path, &error, "a .npy file of token ids"))?;
    let (header, data) = split_npy(&bytes)
        .map_err(|error| Error::file(path, format!("not a .npy file: {error}")))?;
    let (width, read) = match header.descr.as_str() {
        Some("<i4") => (4, int32 as fn(&[u8]) -> Vec<i64>),
        Some("<i8") => (8, int64 as _),
        _ => (0, int32 as _),
    };
    let (&[n, t], false, 4 | 8) = (&header.shape[..], header.fortran_order, width) else {
        let order = if header.fortran_order {
            ", in Fortran order"
        } else {
            ""
        };
        return Err(Error::file(
            path,
            format!(
                "found {} {}{order}, expected int32 or int64 [N, T], little-endian and in C order",
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
    rows(path, &read(data), n as usize, t as usize)
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
    let wrong = |found: String| Error::file(path, format!("{name}: found {found}"));
    if ids.is_empty() {
        return Err(wrong("no tokens, expected at least one".to_owned()));
    }
    let token = |(position, &id): (usize, &i64)| {
        u32::try_from(id)
            .map_err(|_| wrong(format!("{id} at position {position}, expected a token id")))
    };
    let tokens = ids.iter().enumerate().map(token).collect::<Result<_>>()?;
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
        let wrong = |found: String| Err(Error::file(path, format!("{name}: found {found}")));
        if let Some(position) = tokens.iter().position(|&id| id as usize >= vocab_size) {
            return wrong(format!(
                "token id {} at position {position}, expected one below the vocabulary size {vocab_size}",
                tokens[position]
            ));
        }
        if tokens.len() > max_context {
            return wrong(format!(
                "{} tokens, expected at most the context of {max_context}",
                tokens.len()
            ));
        }
    }
    Ok(())
}
