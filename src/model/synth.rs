//! Writes a random preset as a checkpoint in the published layout, tensor by tensor: what `random:` computes in
//! memory, any other program can then read from disk.

use super::config::{ModelConfig, Quantization};
use super::convert::WeightsAs;
use super::generation::GenerationConfig;
use super::source::ModelSource;
use super::tensors::{self, TensorSpec};
use super::weights::{WeightFormat, widen};
use super::{checkpoint, e4m3, random, tokenizer_files};
use crate::error::{Error, Result};
use crate::files::Folder;
use memmap2::MmapMut;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Seek, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The usual size of a shard.
pub const SHARD_BYTES: u64 = 5_000_000_000;

/// What is made at once: large enough for all cores, small beside a shard.
const BUFFER_BYTES: usize = 32 << 20;

/// How far the writing is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    pub bytes_done: u64,
    pub bytes_total: u64,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    pub tensors: usize,
    pub shards: usize,
    /// Bytes of all tensors.
    pub bytes: u64,
}

/// Writes the random preset `source` to `dir`, which is made, or is empty. A shard holds at most `shard_bytes` of tensors, or a
/// single larger tensor. Until all is there the directory is called DIR.partial, which a later call takes over.
///
/// # Errors
/// `Error::Usage` where `source` is not a preset or `dir` holds anything else; `Error::Io` where it cannot be
/// written.
pub fn write(
    source: &ModelSource,
    dir: &Path,
    shard_bytes: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Written> {
    write_as(WeightsAs::Stored, source, dir, shard_bytes, progress)
}

/// [`write()`] of the weights in another format.
///
/// # Errors
/// Fails as [`write()`] does.
pub fn write_as(
    weights: WeightsAs,
    source: &ModelSource,
    dir: &Path,
    shard_bytes: u64,
    progress: &mut dyn FnMut(Progress),
) -> Result<Written> {
    let ModelSource::Random { seed, .. } = source else {
        return Err(Error::Usage(format!(
            "`model` {source}: found a directory, expected random:PRESET[@SEED] to write"
        )));
    };
    let (mut config, _) = source.config()?;
    config.quantization = (weights == WeightsAs::FP8).then_some(Quantization::Channel);
    let mut output = Folder::open(dir, &is_ours)?;
    let specs = tensors::published(&config).into_iter();
    let shards = split(specs.map(|spec| entries(spec, weights)), shard_bytes);
    let bytes_total = shards.iter().flatten().map(Entry::bytes).sum();
    let mut buffer = MmapMut::map_anon(BUFFER_BYTES)
        .map_err(|error| Error::Memory(format!("a buffer of {BUFFER_BYTES} bytes: {error}")))?;
    let mut bytes_done = 0;
    let mut advance = |bytes: u64| {
        bytes_done += bytes;
        progress(Progress {
            bytes_done,
            bytes_total,
        });
    };
    let mut names = Vec::new();
    for (i, entries) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        output.put(&name, |file| {
            write_shard(file, entries, *seed, &mut buffer, &mut advance)
        })?;
        names.push(name);
    }
    write_small_files(&mut output, &config, &shards, &names, bytes_total)?;
    output.finish()?;
    Ok(Written {
        tensors: shards.iter().map(Vec::len).sum(),
        shards: shards.len(),
        bytes: bytes_total,
    })
}

/// A tensor of a shard.
struct Entry {
    name: String,
    shape: Vec<usize>,
    format: WeightFormat,
    what: What,
}

enum What {
    /// Elements as random presets have them, or these in 8 bits.
    Elements(TensorSpec),
    /// The scales of the tensor of this name.
    Scales(String),
}

impl Entry {
    fn bytes(&self) -> u64 {
        (self.shape.iter().product::<usize>() * self.format.bytes()) as u64
    }
}

/// A tensor and, where it is in 8 bits, its scales.
fn entries(spec: TensorSpec, weights: WeightsAs) -> Vec<Entry> {
    let format = spec.role.stored(weights.of(WeightFormat::BF16));
    let scales = (format == WeightFormat::E4M3).then(|| Entry {
        name: format!("{}_scale", spec.name),
        shape: vec![spec.shape[0], 1],
        format: WeightFormat::F32,
        what: What::Scales(spec.name.clone()),
    });
    let tensor = Entry {
        name: spec.name.clone(),
        shape: spec.shape.clone(),
        format,
        what: What::Elements(spec),
    };
    [tensor].into_iter().chain(scales).collect()
}

/// Tensors in order, a new shard wherever the last one is full. Within a shard the widest types come first, so
/// that every tensor is aligned for its type.
fn split(groups: impl Iterator<Item = Vec<Entry>>, shard_bytes: u64) -> Vec<Vec<Entry>> {
    let mut shards: Vec<Vec<Entry>> = Vec::new();
    let mut filled = 0;
    for entries in groups {
        let size: u64 = entries.iter().map(Entry::bytes).sum();
        match shards.last_mut() {
            Some(shard) if filled + size <= shard_bytes => {
                shard.extend(entries);
                filled += size;
            }
            _ => {
                shards.push(entries);
                filled = size;
            }
        }
    }
    for shard in &mut shards {
        shard.sort_by_key(|entry| std::cmp::Reverse(entry.format.bytes()));
    }
    shards
}

fn write_shard(
    file: &mut File,
    entries: &[Entry],
    seed: u64,
    buffer: &mut [u8],
    advance: &mut dyn FnMut(u64),
) -> std::io::Result<()> {
    file.write_all(&shard_header(entries)?)?;
    // Scales come before what they are known by: their places are filled once that is made.
    let mut places = HashMap::new();
    for entry in entries {
        match &entry.what {
            What::Elements(spec) if entry.format == WeightFormat::E4M3 => {
                let scales = write_quantized(file, spec, seed, buffer, advance)?;
                let scales: Vec<u8> = scales
                    .iter()
                    .flat_map(|scale| scale.to_le_bytes())
                    .collect();
                file.write_all_at(&scales, places[&spec.name])?;
            }
            What::Elements(spec) => {
                let element_bytes = entry.format.bytes();
                let total = spec.published_bytes();
                for start in (0..total).step_by(buffer.len()) {
                    let part_bytes = buffer.len().min(total - start);
                    let part = &mut buffer[..part_bytes];
                    random::fill(spec, seed, (start / element_bytes) as u64, part);
                    file.write_all(part)?;
                    advance(part.len() as u64);
                }
            }
            What::Scales(of) => {
                places.insert(of.clone(), file.stream_position()?);
                file.write_all(&vec![0; entry.bytes() as usize])?;
                advance(entry.bytes());
            }
        }
    }
    Ok(())
}

/// Writes a matrix in 8 bits, some rows after the other, and gives the scales of all.
fn write_quantized(
    file: &mut File,
    spec: &TensorSpec,
    seed: u64,
    buffer: &mut [u8],
    advance: &mut dyn FnMut(u64),
) -> std::io::Result<Vec<f32>> {
    let format = spec.role.published_format();
    let (rows, columns) = (spec.shape[0], spec.shape[1]);
    let at_once = (buffer.len() / (columns * format.bytes())).clamp(1, rows);
    let mut values = vec![0.0; at_once * columns];
    let mut scales = Vec::with_capacity(rows);
    for first in (0..rows).step_by(at_once) {
        let elements = at_once.min(rows - first) * columns;
        let made = &mut buffer[..elements * format.bytes()];
        random::fill(spec, seed, (first * columns) as u64, made);
        widen(format, made, &mut values[..elements]);
        let quantized = e4m3::quantize(&values[..elements], columns);
        file.write_all(&quantized.bits)?;
        advance(elements as u64);
        scales.extend(quantized.scales);
    }
    Ok(scales)
}

/// The length and the JSON before the data, padded so that the data is aligned.
fn shard_header(entries: &[Entry]) -> std::io::Result<Vec<u8>> {
    let mut end = 0;
    let entries = entries.iter().map(|entry| {
        let start = end;
        end += entry.bytes() as usize;
        let info = TensorInfo {
            dtype: match entry.format {
                WeightFormat::F32 => Dtype::F32,
                WeightFormat::BF16 => Dtype::BF16,
                WeightFormat::F16 => Dtype::F16,
                WeightFormat::E4M3 => Dtype::F8_E4M3,
            },
            shape: entry.shape.clone(),
            data_offsets: (start, end),
        };
        (entry.name.clone(), info)
    });
    let format = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), entries.collect()).map_err(std::io::Error::other)?;
    let mut json = serde_json::to_vec(&metadata)?;
    json.resize(json.len().next_multiple_of(8), b' ');
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.append(&mut json);
    Ok(header)
}

fn write_small_files(
    output: &mut Folder,
    config: &ModelConfig,
    shards: &[Vec<Entry>],
    names: &[String],
    bytes_total: u64,
) -> Result<()> {
    let weight_map: Map<String, Value> = shards
        .iter()
        .zip(names)
        .flat_map(|(shard, name)| {
            shard
                .iter()
                .map(move |entry| (entry.name.clone(), json!(name)))
        })
        .collect();
    let index = json!({"metadata": {"total_size": bytes_total}, "weight_map": weight_map});
    let [
        index_name,
        generation,
        tokenizer,
        tokenizer_config,
        config_name,
    ] = SMALL_FILES;
    let context = config.max_position_embeddings;
    for (name, value) in [
        (index_name, index),
        (generation, GenerationConfig::json_for(config)),
        (
            tokenizer,
            tokenizer_files::tokenizer_json(config.vocab_size),
        ),
        (
            tokenizer_config,
            tokenizer_files::tokenizer_config_json(context),
        ),
        (config_name, config.to_json()),
    ] {
        output.put(name, |file| {
            file.write_all(format!("{value:#}\n").as_bytes())
        })?;
    }
    Ok(())
}

/// Written besides the shards.
const SMALL_FILES: [&str; 5] = [
    checkpoint::INDEX_FILE,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "config.json",
];

/// Whether a file of this name may be what an interrupted call left.
fn is_ours(name: &str) -> bool {
    let is_shard = name.starts_with("model-") && name.ends_with(".safetensors");
    is_shard || SMALL_FILES.contains(&name)
}
