//! Headers of safetensors files: what each tensor is and where its bytes lie, checked against the file before
//! anyone relies on it. Nothing is reserved by a number that the file claims.

use super::fields;
use crate::error::{Error, Result};
use crate::json;
use crate::quote;
use safetensors::tensor::{Dtype, TensorInfo};
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::marker::PhantomData;
use std::ops::Range;
use std::path::Path;

/// The format's limit on the JSON part of a header.
const MAX_HEADER_BYTES: u64 = 100_000_000;
const LENGTH_BYTES: usize = 8;

/// A tensor in a safetensors file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stored {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// The tensor's bytes in the file; as many as dtype and shape say.
    pub bytes: Range<usize>,
}

/// The tensors of the safetensors file `file` by name; `path` is for messages.
///
/// # Errors
/// Where the header is broken, or does not account for every byte of the file exactly once.
pub(super) fn read(file: &[u8], path: &Path) -> Result<HashMap<String, Stored>> {
    let (json, data_start) = split(file).map_err(|message| Error::file(path, message))?;
    let entries: UniqueMap<Value> = fields::parse(json, path, "a safetensors header")?;
    let mut tensors = Vec::with_capacity(entries.0.len());
    for (name, value) in entries.0 {
        if name == "__metadata__" {
            continue;
        }
        let wrong =
            |message| Error::file(path, format!("tensor {}: {message}", quote::name(&name)));
        let stored = stored(value, data_start, file.len()).map_err(wrong)?;
        tensors.push((name, stored));
    }
    check_cover(&mut tensors, data_start, file.len())
        .map_err(|message| Error::file(path, message))?;
    Ok(tensors.into_iter().collect())
}

/// The header's JSON, and where the data starts.
fn split(file: &[u8]) -> std::result::Result<(&[u8], usize), String> {
    let Some((length, rest)) = file.split_first_chunk::<LENGTH_BYTES>() else {
        return Err(format!(
            "found {} bytes, expected a safetensors file, which starts with {LENGTH_BYTES} bytes of header length",
            file.len()
        ));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(format!(
            "found a header length of {length} bytes, expected at most {MAX_HEADER_BYTES}: not a safetensors file"
        ));
    }
    match rest.get(..length as usize) {
        Some(json) => Ok((json, LENGTH_BYTES + json.len())),
        None => Err(format!(
            "found {} bytes, expected at least {} for the header alone: truncated, or not a safetensors file",
            file.len(),
            LENGTH_BYTES as u64 + length
        )),
    }
}

/// One entry of the header, its offsets made those of the file and checked against it.
fn stored(
    value: Value,
    data_start: usize,
    file_bytes: usize,
) -> std::result::Result<Stored, String> {
    let text = json::shown(&value);
    let info: TensorInfo = serde_json::from_value(value).map_err(|error| {
        format!(
            "found {text}, expected dtype, shape and data_offsets: {}",
            quote::message(error)
        )
    })?;
    let (begin, end) = info.data_offsets;
    let available = file_bytes - data_start;
    if begin > end {
        return Err(format!(
            "found data_offsets [{begin}, {end}], expected the second not to be below the first"
        ));
    }
    if end > available {
        return Err(format!(
            "its data ends at byte {end}, but the file holds only {available} bytes of data: truncated?"
        ));
    }
    let bits = info
        .shape
        .iter()
        .try_fold(info.dtype.bitsize(), |bits, &size| bits.checked_mul(size));
    if bits != (end - begin).checked_mul(8) {
        return Err(format!(
            "found {} bytes of data, expected {} of shape {} to fill them",
            end - begin,
            info.dtype,
            quote::text(format_args!("{:?}", info.shape))
        ));
    }
    Ok(Stored {
        dtype: info.dtype,
        shape: info.shape,
        bytes: data_start + begin..data_start + end,
    })
}

/// The format allows neither holes nor overlaps.
fn check_cover(
    tensors: &mut [(String, Stored)],
    data_start: usize,
    file_bytes: usize,
) -> std::result::Result<(), String> {
    tensors.sort_by_key(|(_, stored)| (stored.bytes.start, stored.bytes.end));
    let mut expected = data_start;
    for (name, stored) in tensors.iter() {
        if stored.bytes.start != expected {
            return Err(format!(
                "tensor {}: its data starts at byte {} of the file, expected {expected}: overlap or hole",
                quote::name(name),
                stored.bytes.start
            ));
        }
        expected = stored.bytes.end;
    }
    if expected != file_bytes {
        return Err(format!(
            "found {file_bytes} bytes, expected {expected}: the header accounts for no more"
        ));
    }
    Ok(())
}

/// A JSON object in the file's order in which a second entry of a name is an error, not a silent replacement.
pub(super) struct UniqueMap<V>(pub Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for UniqueMap<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(UniqueVisitor(PhantomData))
    }
}

struct UniqueVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for UniqueVisitor<V> {
    type Value = UniqueMap<V>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(
        self,
        mut map: A,
    ) -> std::result::Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        let mut names = HashSet::new();
        while let Some((name, value)) = map.next_entry::<String, V>()? {
            if !names.insert(name.clone()) {
                return Err(serde::de::Error::custom(format_args!(
                    "found a second entry {}, expected one",
                    quote::name(&name)
                )));
            }
            entries.push((name, value));
        }
        Ok(UniqueMap(entries))
    }
}
