//! A safetensors file, mapped: what arrays it has and where their bytes lie.

use crate::error::{Error, Result};
use crate::quote;
use crate::{json, magic};
use memmap2::Mmap;
use safetensors::tensor::TensorInfo;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// One array: its bytes are little-endian and row-major.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Array {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    range: Range<usize>,
}

/// A mapped file and its arrays by name.
#[derive(Debug)]
pub struct TensorFile {
    path: PathBuf,
    map: Mmap,
    arrays: BTreeMap<String, Array>,
}

impl TensorFile {
    /// # Errors
    /// The file cannot be read, or its header does not describe its bytes.
    pub fn open(path: &Path) -> Result<Self> {
        let expected = "a .safetensors file";
        let fail = |error| Error::open(path, &error, expected);
        // Before it is opened: a pipe would wait for its writer, and none of these can be mapped.
        let about = std::fs::metadata(path).map_err(fail)?;
        if !about.is_file() {
            let found = if about.is_dir() {
                "a directory"
            } else {
                "a pipe or a device"
            };
            let message = format!("found {found}, expected {expected}");
            return Err(Error::file(path, message));
        }
        let file = File::open(path).map_err(fail)?;
        // SAFETY: the map is only read; a file that another process cuts short meanwhile ends this one, as
        // for every program that maps its input.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::io(path, error))?;
        check_header(&map).map_err(|message| Error::file(path, message))?;
        // Checks offsets against shapes, types and the length of the file.
        let (header_bytes, metadata) = SafeTensors::read_metadata(&map).map_err(|error| {
            Error::file(
                path,
                format!("not a safetensors file: {}", quote::message(error)),
            )
        })?;
        let data_start = header_bytes + size_of::<u64>();
        let array = |(name, info): (String, &TensorInfo)| {
            let (start, end) = info.data_offsets;
            let array = Array {
                dtype: info.dtype,
                shape: info.shape.clone(),
                range: data_start + start..data_start + end,
            };
            (name, array)
        };
        let arrays = metadata.tensors().into_iter().map(array).collect();
        Ok(Self {
            path: path.to_owned(),
            map,
            arrays,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn get(&self, name: &str) -> Option<&Array> {
        self.arrays.get(name)
    }

    pub fn bytes(&self, array: &Array) -> &[u8] {
        &self.map[array.range.clone()]
    }

    /// The whole file.
    pub fn all(&self) -> &[u8] {
        &self.map
    }

    /// Arrays called `{prefix}{i}`, ascending by i.
    pub fn numbered(&self, prefix: &str) -> Vec<(u64, &str, &Array)> {
        let mut found: Vec<_> = self
            .arrays
            .iter()
            .filter_map(|(name, array)| {
                let digits = name.strip_prefix(prefix)?;
                // "007" and "+7" are other names, not 7.
                let number: u64 = digits.parse().ok()?;
                (number.to_string() == digits).then_some((number, name.as_str(), array))
            })
            .collect();
        found.sort_unstable_by_key(|&(number, ..)| number);
        found
    }
}

/// Values of JSON in a header, at most: each takes tens of bytes in memory, however short it is in the file.
const MAX_HEADER_VALUES: usize = 1 << 22;

/// What is wrong with a file's beginning that reading the header would not say, or would take memory to find.
fn check_header(file: &[u8]) -> std::result::Result<(), String> {
    if let Some(found) = magic::recognise(&file[..file.len().min(512)]) {
        return Err(format!("found {found}, expected a .safetensors file"));
    }
    let Some((length, rest)) = file.split_first_chunk() else {
        return Ok(());
    };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let header = &rest[..length.min(rest.len())];
    if (MAX_HEADER_VALUES..=MAX_HEADER_BYTES).contains(&length)
        && json::count_values(header) > MAX_HEADER_VALUES
    {
        return Err(format!(
            "found more than {MAX_HEADER_VALUES} values in its header, expected fewer"
        ));
    }
    Ok(())
}

/// The format's limit, which its reader checks.
const MAX_HEADER_BYTES: usize = 100_000_000;
