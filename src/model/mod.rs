//! The model: its configuration and its weights, from a checkpoint on disk or a random preset.
//! Knows nothing of plans, backends or requests; uses only `json`, `magic`, `files`, `telemetry` and `error`.
//!
//! - [`source`]: what `--model` names
//! - [`hub`]: a checkpoint by its name on the Hugging Face hub
//! - [`config`], [`layer_types`], [`generation`]: config.json, of each of the families, and generation_config.json (through
//!   `fields`, which words the errors)
//! - `files`: how these and the weights are opened, and what is said of something else in their place
//! - [`lfm2_moe`]: a family's spelling of config.json, its operations ([`op`]) and the tensors that they read, each
//!   [`declared`]; [`tensors`]: what follows from these
//! - [`weights`]: tensors by operation, and how each is stored; [`dtype`]: what a run computes in
//! - [`checkpoint`]: weights from safetensors files, whose headers `header` checks
//! - [`convert`]: weights in another format, with the numbers of 8 bits of [`e4m3`]
//! - [`fingerprint`]: hashes of what a model is made of
//! - [`rotary`]: frequencies of the position embedding
//! - [`random`]: weights of random presets, made by [`philox`]
//! - [`synth`]: the same weights written to disk, with the tokenizer of `tokenizer_files`

pub mod checkpoint;
pub mod config;
pub mod convert;
pub mod declared;
pub mod dtype;
pub mod e4m3;
mod fields;
mod files;
pub mod fingerprint;
pub mod generation;
mod header;
pub mod hub;
pub mod layer_types;
pub mod lfm2_moe;
pub mod op;
pub mod philox;
pub mod random;
pub mod rotary;
pub mod source;
pub mod synth;
pub mod tensors;
mod tokenizer_files;
pub mod weights;

pub use config::ModelConfig;
pub use convert::WeightsAs;
pub use dtype::DType;
pub use generation::GenerationConfig;
pub use layer_types::LayerType;
pub use source::ModelSource;
pub use weights::{Tensor, WeightFormat, Weights};

use crate::error::Result;
use config::Family;
use std::sync::Arc;

/// The families that there are.
static FAMILIES: [&Family; 1] = [&lfm2_moe::LFM2_MOE];

/// A model ready to run.
#[derive(Debug)]
pub struct Model {
    pub source: ModelSource,
    /// The configuration, with the token ids of generation_config.json where it gives any.
    pub config: ModelConfig,
    pub generation: GenerationConfig,
    pub weights: Weights,
    /// The format that runs have matrices in, whether the weights above are so already or not.
    pub weights_as: WeightsAs,
    /// What the user should know about the checkpoint, a line each.
    pub warnings: Vec<String>,
    /// The memory of a random preset's weights.
    pub arena: Option<Arc<random::Arena>>,
}

impl Model {
    /// Maps a checkpoint, or says how a random preset's weights are made.
    ///
    /// # Errors
    /// Where a file is missing, broken or not of this kind of model.
    pub fn load(source: &ModelSource) -> Result<Self> {
        let (config, generation) = source.config()?;
        let (weights, warnings, arena) = match source {
            ModelSource::Dir(dir) => {
                let (weights, warnings) = checkpoint::load(dir, &config)?;
                (weights, warnings, None)
            }
            ModelSource::Random { seed, .. } => {
                let (weights, arena) = random::weights(&config, *seed)?;
                (weights, Vec::new(), Some(arena))
            }
        };
        Ok(Self {
            source: source.clone(),
            config,
            generation,
            weights,
            weights_as: WeightsAs::Stored,
            warnings,
            arena,
        })
    }

    /// The format of the matrices that runs have: f32 where they have several.
    pub fn matrix_format(&self) -> WeightFormat {
        let stored = self.weights.matrix_format().unwrap_or(WeightFormat::F32);
        self.weights_as.of(stored)
    }

    /// With the weights as [`Self::weights_as`] says, made in the host's memory where the checkpoint's are not so.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] naming a tensor with a value that the format does not hold.
    pub fn converted(self) -> Result<Self> {
        // A preset's matrices are all of one format.
        let is_made =
            self.arena.is_some() && self.weights.matrix_format() == Some(self.matrix_format());
        if self.weights_as == WeightsAs::Stored || is_made {
            return Ok(self);
        }
        let weights = convert::converted(&self.config, &self.weights, self.weights_as)?;
        Ok(Self {
            weights,
            arena: None,
            ..self
        })
    }

    /// Makes a random preset's weights in the host's memory, unless they are there; does nothing for a checkpoint.
    ///
    /// # Errors
    /// [`crate::Error::Memory`]: it cannot be had.
    pub fn make(&self) -> Result<()> {
        self.arena.as_ref().map_or(Ok(()), |arena| arena.make())
    }
}
