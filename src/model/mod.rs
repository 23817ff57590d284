//! The model: its configuration and its weights, from a checkpoint on disk or a random preset.
//! Knows nothing of plans, backends or requests; uses only `json`, `magic`, `files`, `telemetry` and `error`.
//!
//! - [`source`]: what `--model` names
//! - [`hub`]: a checkpoint by its name on the Hugging Face hub
//! - [`config`], [`layer_types`], [`generation`]: config.json and generation_config.json (through `fields`, which
//!   words the errors)
//! - `files`: how these and the weights are opened, and what is said of something else in their place
//! - [`weights`]: tensors by role; [`layout`]: their published names, shapes and order
//! - [`checkpoint`]: weights from safetensors files, whose headers `header` checks
//! - [`fingerprint`]: hashes of what a model is made of
//! - [`rotary`]: frequencies of the position embedding
//! - [`random`]: weights of random presets, made by [`philox`]
//! - [`synth`]: the same weights written to disk, with the tokenizer of `tokenizer_files`

pub mod checkpoint;
pub mod config;
mod fields;
mod files;
pub mod fingerprint;
pub mod generation;
mod header;
pub mod hub;
pub mod layer_types;
pub mod layout;
pub mod philox;
pub mod random;
pub mod rotary;
pub mod source;
pub mod synth;
mod tokenizer_files;
pub mod weights;

pub use config::ModelConfig;
pub use generation::GenerationConfig;
pub use layer_types::LayerType;
pub use source::ModelSource;
pub use weights::{DType, Expert, FeedForward, LayerWeights, Mixer, Tensor, Weights};

use crate::error::Result;

/// A model ready to run.
#[derive(Debug)]
pub struct Model {
    pub source: ModelSource,
    /// With the token ids of generation_config.json where it gives any.
    pub config: ModelConfig,
    pub generation: GenerationConfig,
    pub weights: Weights,
    /// What the user should know about the checkpoint, a line each.
    pub warnings: Vec<String>,
}

impl Model {
    /// Maps a checkpoint or makes a random preset's weights.
    ///
    /// # Errors
    /// Where a file is missing, broken or not of this kind of model, or the memory cannot be had.
    pub fn load(source: &ModelSource) -> Result<Self> {
        let (config, generation) = source.config()?;
        let (weights, warnings) = match source {
            ModelSource::Dir(dir) => checkpoint::load(dir, &config)?,
            ModelSource::Random { seed, .. } => (random::weights(&config, *seed)?, Vec::new()),
        };
        Ok(Self {
            source: source.clone(),
            config,
            generation,
            weights,
            warnings,
        })
    }
}
