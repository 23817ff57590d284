//! The model: its configuration and its weights, from a checkpoint on disk or a random preset.
//! Knows nothing of plans, backends or requests.

pub mod config;
pub mod philox;
pub mod weights;

pub use config::{GenerationConfig, LayerType, ModelConfig};
pub use weights::{DType, Expert, FeedForward, LayerWeights, Mixer, Tensor, Weights};

use std::path::PathBuf;

/// Where a model comes from: `--model DIR` or `--model random:PRESET[@SEED]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelSource {
    Dir(PathBuf),
    /// PRESET is `tiny`, `lfm2-8b-a1b` or a path to a config.json.
    Random {
        preset: String,
        seed: u64,
    },
}

/// A model ready to run.
#[derive(Debug)]
pub struct Model {
    pub source: ModelSource,
    pub config: ModelConfig,
    pub generation: GenerationConfig,
    pub weights: Weights,
}
