//! Writes a random preset as a checkpoint in the published layout, tensor by tensor: what `random:` computes in
//! memory, any other program can then read from disk.

use super::config::ModelConfig;
use super::generation::GenerationConfig;
use super::layout::{self, TensorSpec};
use super::source::ModelSource;
use super::weights::DType;
use super::{random, tokenizer_files};
use crate::error::{Error, Result};
use crate::files::{Claim, Resolved, resolve};
use memmap2::MmapMut;
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

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
    /// Of all tensors.
    pub bytes: u64,
}

/// Writes the random preset `source` to `dir`, which is made, or is empty, or holds what an interrupted call
/// left. A shard holds at most `shard_bytes` of tensors, or a single larger tensor.
///
/// Every file is written under a name that ends in `.partial`. config.json's is the first to be made and the last
/// to get its name: a directory without config.json is unfinished, and no model. Its lock is the right to write the
/// directory.
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
            "--model {source}: found a directory, expected random:PRESET[@SEED] to write"
        )));
    };
    let (config, _) = source.config()?;
    let mut output = Output::open(dir, &config)?;
    let shards = split(layout::published(&config), shard_bytes);
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
        let (path, mut file) = output.create(&name)?;
        write_shard(&mut file, specs, *seed, &mut buffer, &mut advance)
            .and_then(|()| file.sync_all())
            .map_err(|error| Error::io(path, error))?;
        names.push(name);
    }
    write_small_files(&mut output, &config, &shards, &names, bytes_total)?;
    output.finish(&names)?;
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
        shard.sort_by_key(|spec| std::cmp::Reverse(spec.role.published_dtype().bytes()));
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
        let element_bytes = spec.role.published_dtype().bytes();
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
            dtype: match spec.role.published_dtype() {
                DType::F32 => Dtype::F32,
                DType::BF16 => Dtype::BF16,
                DType::F16 => Dtype::F16,
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
    output: &mut Output<'_>,
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
    let [index_name, generation, tokenizer, tokenizer_config] = SMALL_FILES;
    output.write_json(index_name, &index)?;
    output.write_json(generation, &GenerationConfig::json_for(config))?;
    output.write_json(
        tokenizer,
        &tokenizer_files::tokenizer_json(config.vocab_size),
    )?;
    output.write_json(
        tokenizer_config,
        &tokenizer_files::tokenizer_config_json(config.max_position_embeddings),
    )
}

const CONFIG_FILE: &str = "config.json";
const SMALL_FILES: [&str; 4] = [
    "model.safetensors.index.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
];
const PARTIAL: &str = ".partial";

/// A directory being filled.
struct Output<'a> {
    dir: &'a Path,
    /// config.json, which marks the directory as unfinished until it has its name.
    marker: Claim,
    /// It was made by this call.
    new: bool,
    /// Files under the names of unfinished ones.
    partial: Vec<PathBuf>,
    /// Some files have their names, or all do.
    named: bool,
}

impl<'a> Output<'a> {
    /// Makes the directory, or empties it of what an interrupted call left, and marks it as unfinished.
    fn open(dir: &'a Path, config: &ModelConfig) -> Result<Self> {
        let new = !dir.exists();
        fs::create_dir_all(dir).map_err(|error| Error::create(dir, &error))?;
        leftovers(dir)?;
        let place = dir.join(CONFIG_FILE);
        let Resolved::Place(place) = resolve(&place)? else {
            return Err(Error::file(place, "found a device, expected no file"));
        };
        let output = Self {
            dir,
            marker: Claim::take(&place)?,
            new,
            partial: Vec::new(),
            named: false,
        };
        // Once more: another call may have ended in between.
        for name in leftovers(dir)? {
            let path = dir.join(name);
            fs::remove_file(&path).map_err(|error| Error::io(&path, error))?;
        }
        output.marker.cut(0)?;
        let text = format!("{:#}\n", config.to_json());
        let mut file = output.marker.file();
        file.write_all(text.as_bytes())
            .map_err(|error| Error::io(output.marker.path(), error))?;
        Ok(output)
    }

    fn create(&mut self, name: &str) -> Result<(PathBuf, File)> {
        let path = self.dir.join(format!("{name}{PARTIAL}"));
        match File::create(&path) {
            Ok(file) => {
                self.partial.push(path.clone());
                Ok((path, file))
            }
            Err(error) => Err(Error::create(path, &error)),
        }
    }

    fn write_json(&mut self, name: &str, value: &Value) -> Result<()> {
        let (path, mut file) = self.create(name)?;
        let text = format!("{value:#}\n");
        file.write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .map_err(|error| Error::io(path, error))
    }

    /// Gives all files their names.
    fn finish(mut self, shards: &[String]) -> Result<()> {
        self.named = true;
        let shards = shards.iter().map(String::as_str);
        for name in shards.chain(SMALL_FILES) {
            let path = self.dir.join(name);
            let partial = self.dir.join(format!("{name}{PARTIAL}"));
            fs::rename(partial, &path).map_err(|error| Error::io(path, error))?;
        }
        self.marker.install()
    }
}

impl Drop for Output<'_> {
    /// A call that fails leaves no tensors behind; it has failed already and says why. With some files named, the mark of
    /// an unfinished directory stays.
    fn drop(&mut self) {
        if self.named {
            return;
        }
        for path in &self.partial {
            let _ = fs::remove_file(path);
        }
        let _ = self.marker.remove();
        if self.new {
            let _ = fs::remove_dir(self.dir);
        }
    }
}

/// What an interrupted call left in `dir`, but for its marker.
fn leftovers(dir: &Path) -> Result<Vec<String>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir).map_err(|error| Error::io(dir, error))? {
        let entry = entry.map_err(|error| Error::io(dir, error))?;
        entries.push(entry.file_name().to_string_lossy().into_owned());
    }
    let marker = format!("{CONFIG_FILE}{PARTIAL}");
    let foreign = entries.iter().find(|name| !is_ours(name));
    if let Some(name) = foreign.or(entries.first().filter(|_| !entries.contains(&marker))) {
        return Err(Error::Usage(format!(
            "--output {}: found {name:?} in it, expected a new or empty directory",
            dir.display()
        )));
    }
    entries.retain(|name| *name != marker);
    Ok(entries)
}

/// Whether a file of this name may be what an interrupted call left: anything but config.json itself.
fn is_ours(name: &str) -> bool {
    let (name, partial) = match name.strip_suffix(PARTIAL) {
        Some(name) => (name, true),
        None => (name, false),
    };
    let is_shard = name.starts_with("model-") && name.ends_with(".safetensors");
    is_shard || SMALL_FILES.contains(&name) || (partial && name == CONFIG_FILE)
}
