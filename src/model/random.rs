//! Random presets: a shape, a seed, and weights that every machine makes to the same bits.

use super::config::ModelConfig;
use super::philox::Stream;
use super::tensors::{self, Role, TensorSpec};
use super::weights::{Tensor, WeightFormat, Weights};
use crate::error::{Error, Result};
use memmap2::{Mmap, MmapMut};
use rayon::prelude::*;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// The presets with a name: (name, config.json).
/// They keep the ids of LFM2's bos, eos and pad, which the built-in tokenizer of random presets has too.
const PRESETS: [(&str, &str); 5] = [
    ("tiny", include_str!("presets/tiny.json")),
    ("lfm2-8b-a1b", include_str!("presets/lfm2-8b-a1b.json")),
    ("lfm2.5-8b-a1b", include_str!("presets/lfm2.5-8b-a1b.json")),
    ("lfm2-24b-a2b", include_str!("presets/lfm2-24b-a2b.json")),
    (
        "lfm2.5-24b-a2b",
        include_str!("presets/lfm2.5-24b-a2b.json"),
    ),
];

/// Tensors start on multiples of this in memory: a cache line, and more than any vector load wants.
const ALIGN_BYTES: usize = 64;
/// Elements that one thread makes at a time.
const CHUNK_ELEMENTS: usize = 1 << 16;

/// The configuration of a preset: one with a name, or a path to a config.json, whose quantization is not taken: random weights are
/// made in the published types.
///
/// # Errors
/// Where there is neither such a preset nor such a file, or the file is wrong.
pub fn preset_config(preset: &str) -> Result<ModelConfig> {
    match PRESETS.iter().find(|(name, _)| *name == preset) {
        Some((name, json)) => ModelConfig::from_json(json.as_bytes(), Path::new(name)),
        None => Ok(ModelConfig {
            quantization: None,
            ..ModelConfig::from_file(Path::new(preset))?
        }),
    }
}

/// Whether `preset` is one with a name.
pub fn is_named_preset(preset: &str) -> bool {
    PRESETS.iter().any(|(name, _)| *name == preset)
}

/// The names of all presets, for messages.
pub fn preset_names() -> String {
    PRESETS.map(|(name, _)| name).join(", ")
}

/// All weights of the model, in the published types. They are in memory, in one allocation, only when [`Arena::make`] has been
/// called: whoever can make them elsewhere (a GPU) needs none of the host's.
///
/// # Errors
/// Sizes that no memory has.
pub fn weights(config: &ModelConfig, seed: u64) -> Result<(Weights, Arc<Arena>)> {
    let specs = tensors::published(config);
    let ranges = arrange(&specs)?;
    let mut next = ranges.clone().into_iter();
    let arena = Arc::new(Arena {
        specs,
        ranges,
        seed,
        made: OnceLock::new(),
    });
    let weights = tensors::build(config, |spec| {
        let range = next.next().unwrap_or_default();
        let (format, stream) = (spec.role.published_format(), stream(&spec, seed));
        let tensor = Tensor::new(spec.name, format, spec.shape, arena.clone(), range);
        Ok(tensor.made_by(stream))
    })?;
    Ok((weights, arena))
}

/// The memory of a random preset's weights, made when they are first asked for.
#[derive(Debug)]
pub struct Arena {
    specs: Vec<TensorSpec>,
    ranges: Vec<Range<usize>>,
    seed: u64,
    made: OnceLock<Mmap>,
}

impl Arena {
    /// Makes the weights, unless they are there.
    ///
    /// # Errors
    /// Where the memory cannot be had.
    pub fn make(&self) -> Result<()> {
        if self.made.get().is_none() {
            // Two at once make the same bits; one of them is kept.
            let _ = self.made.set(self.filled()?);
        }
        Ok(())
    }

    fn filled(&self) -> Result<Mmap> {
        let total_bytes = self.ranges.last().map_or(0, |range| range.end);
        let mut arena = MmapMut::map_anon(total_bytes).map_err(|error| {
            Error::Memory(format!(
                "{} tensors of random weights need {:.2} GB of memory, which could not be had: {error}",
                self.specs.len(),
                total_bytes as f64 / 1e9
            ))
        })?;
        // Fewer page faults now and fewer TLB misses later; without it everything works the same.
        #[cfg(target_os = "linux")]
        let _ = arena.advise(memmap2::Advice::HugePage);
        fill_all(&self.specs, &self.ranges, self.seed, &mut arena);
        let made = arena.make_read_only();
        made.map_err(|error| Error::Memory(format!("random weights: {error}")))
    }
}

impl AsRef<[u8]> for Arena {
    /// Panics where they are not there and the memory for them cannot be had.
    fn as_ref(&self) -> &[u8] {
        self.made.get_or_init(|| {
            let filled = self.filled();
            filled.unwrap_or_else(|error| panic!("{error}; Model::make says so without a panic"))
        })
    }
}

/// Where each tensor lies in the arena, in bytes.
fn arrange(specs: &[TensorSpec]) -> Result<Vec<Range<usize>>> {
    let mut end = 0usize;
    specs
        .iter()
        .map(|spec| {
            let start = end.checked_next_multiple_of(ALIGN_BYTES);
            let range = start.and_then(|start| {
                let end = start.checked_add(spec.published_bytes())?;
                Some(start..end)
            });
            let range = range.ok_or_else(|| {
                Error::Memory(format!("{}: more than 64 bits can address", spec.name))
            })?;
            end = range.end;
            Ok(range)
        })
        .collect()
}

fn fill_all(specs: &[TensorSpec], ranges: &[Range<usize>], seed: u64, arena: &mut [u8]) {
    let mut rest = arena;
    let mut taken = 0;
    let mut parts = Vec::with_capacity(specs.len());
    for (spec, range) in specs.iter().zip(ranges) {
        let (_, from) = std::mem::take(&mut rest).split_at_mut(range.start - taken);
        let (part, after) = from.split_at_mut(range.len());
        parts.push((spec, part));
        rest = after;
        taken = range.end;
    }
    parts
        .into_par_iter()
        .for_each(|(spec, part)| fill(spec, seed, 0, part));
}

/// Fills `out` with the elements `first ..` of a tensor as the published layout stores them. `out` holds whole
/// elements and is aligned for them.
pub(super) fn fill(spec: &TensorSpec, seed: u64, first: u64, out: &mut [u8]) {
    let stream = stream(spec, seed);
    let chunk_start = |chunk: usize| first + (chunk * CHUNK_ELEMENTS) as u64;
    match spec.role.published_format() {
        WeightFormat::F32 => bytemuck::cast_slice_mut::<u8, u32>(out)
            .par_chunks_mut(CHUNK_ELEMENTS)
            .enumerate()
            .for_each(|(i, chunk)| stream.fill_f32(chunk_start(i), chunk)),
        WeightFormat::BF16 => bytemuck::cast_slice_mut::<u8, u16>(out)
            .par_chunks_mut(CHUNK_ELEMENTS)
            .enumerate()
            .for_each(|(i, chunk)| stream.fill_bf16(chunk_start(i), chunk)),
        WeightFormat::F16 | WeightFormat::E4M3 => {
            unreachable!("the published layout is of bf16 and f32")
        }
    }
}

/// The distribution of a tensor: standard deviations that keep activations of order one through the layers.
fn stream(spec: &TensorSpec, seed: u64) -> Stream {
    let fan_in = spec.shape.last().copied().unwrap_or(1) as f64;
    let (mean, std) = match spec.role {
        Role::Embedding => (0.0, 0.02),
        Role::Norm => (1.0, 0.1),
        Role::Matrix | Role::Head | Role::Router => (0.0, 1.0 / fan_in.sqrt()),
        Role::ConvTaps => (0.0, 0.5),
        Role::Bias => (0.0, 0.02),
        Role::ExpertBias => (0.0, 0.05),
    };
    Stream::new(seed, &spec.name, mean, std)
}
