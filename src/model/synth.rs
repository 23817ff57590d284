//! Writes a random preset as a checkpoint in the published layout, tensor by tensor: what `random:` computes in
//! memory, any other program can then read from disk.

use super::config::ModelConfig;
use super::generation::GenerationConfig;
use super::source::ModelSource;
use super::tensors::{self, TensorSpec};
use super::weights::WeightFormat;
use super::{checkpoint, random, tokenizer_files};
use crate::error::{Error, Result};
use crate::files::Folder;
use memmap2::MmapMut;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
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
    let ModelSource::Random { seed, .. } = source else {
        return Err(Error::Usage(format!(
            "`model` {source}: found a directory, expected random:PRESET[@SEED] to write"
        )));
    };
    let (config, _) = source.config()?;
    let mut output = Folder::open(dir, &is_ours)?;
    let shards = split(tensors::published(&config), shard_bytes);
    let bytes_total = shards.iter().flatten().map(bytes).sum();
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
    for (i, specs) in shards.iter().enumerate() {
        let name = format!("model-{:05}-of-{:05}.safetensors", i + 1, shards.len());
        output.put(&name, |file| {
            write_shard(file, specs, *seed, &mut buffer, &mut advance)
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

fn bytes(spec: &TensorSpec) -> u64 {
    spec.published_bytes() as u64
}

/// Tensors in order, a new shard wherever the last one is full. Within a shard the widest types come first, so
/// that every tensor is aligned for its type.
fn split(specs: Vec<TensorSpec>, shard_bytes: u64) -> Vec<Vec<TensorSpec>> {
    let mut shards: Vec<Vec<TensorSpec>> = Vec::new();
    let mut filled = 0;
    for spec in specs {
        let size = bytes(&spec);
        match shards.last_mut() {
            Some(shard) if filled + size <= shard_bytes => {
                shard.push(spec);
                filled += size;
            }
            _ => {
                shards.push(vec![spec]);
                filled = size;
            }
        }
    }
    for shard in &mut shards {
        shard.sort_by_key(|spec| std::cmp::Reverse(spec.role.published_format().bytes()));
    }
    shards
}

fn write_shard(
    file: &mut File,
    specs: &[TensorSpec],
    seed: u64,
    buffer: &mut [u8],
    advance: &mut dyn FnMut(u64),
) -> std::io::Result<()> {
    file.write_all(&shard_header(specs)?)?;
    for spec in specs {
        let element_bytes = spec.role.published_format().bytes();
        let total = spec.published_bytes();
        for start in (0..total).step_by(buffer.len()) {
            let part_bytes = buffer.len().min(total - start);
            let part = &mut buffer[..part_bytes];
            random::fill(spec, seed, (start / element_bytes) as u64, part);
            file.write_all(part)?;
            advance(part.len() as u64);
        }
    }
    Ok(())
}

/// The length and the JSON before the data, padded so that the data is aligned.
fn shard_header(specs: &[TensorSpec]) -> std::io::Result<Vec<u8>> {
    let mut end = 0;
    let entries = specs.iter().map(|spec| {
        let start = end;
        end += spec.published_bytes();
        let info = TensorInfo {
            dtype: match spec.role.published_format() {
                WeightFormat::F32 => Dtype::F32,
                WeightFormat::BF16 => Dtype::BF16,
                WeightFormat::F16 => Dtype::F16,
            },
            shape: spec.shape.clone(),
            data_offsets: (start, end),
        };
        (spec.name.clone(), info)
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
    shards: &[Vec<TensorSpec>],
    names: &[String],
    bytes_total: u64,
) -> Result<()> {
    let weight_map: Map<String, Value> = shards
        .iter()
        .zip(names)
        .flat_map(|(shard, name)| {
            shard
                .iter()
                .map(move |spec| (spec.name.clone(), json!(name)))
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
