//! A model's weights in a GPU's memory, in the layout that the launchers take: q, k and v back to back, a layer's
//! experts packed and at a constant stride, matrices in one type, all else in f32.

mod placer;
mod target;

use self::placer::Placer;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::families::Types;
use crate::backend::cuda::families::experts::ExpertWeights;
use crate::backend::cuda::families::limits::Library;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::error::Result;
use crate::model::tensors;
use crate::model::{DType, Model, ModelConfig, Weights};
use crate::plan::Section;
use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;

/// Where everything lies. Shapes are those of [`Weights`].
#[derive(Debug, Clone)]
pub struct WeightAddresses {
    /// Of a section that embeds.
    pub embed_tokens: Option<Address>,
    /// Of a section that has the model's last layer.
    pub head: Option<HeadAddresses>,
    /// All of the model's; none for a layer that the section does not have.
    pub layers: Vec<Option<LayerAddresses>>,
    /// f32 `[head_dim / 2]`
    pub inverse_frequencies: Address,
}

/// What is behind the last layer.
#[derive(Debug, Clone, Copy)]
pub struct HeadAddresses {
    pub norm: Address,
    pub lm_head: Address,
}

/// Weights in a GPU's memory.
#[derive(Debug)]
pub struct DeviceWeights {
    pub at: WeightAddresses,
    _buffer: Buffer,
}

#[derive(Debug, Clone)]
pub struct LayerAddresses {
    pub operator_norm: Address,
    pub ffn_norm: Address,
    pub mixer: MixerAddresses,
    pub feed_forward: FeedForwardAddresses,
}

/// A bias that the model does not have is 0.
#[derive(Debug, Clone)]
pub enum MixerAddresses {
    Conv {
        in_proj: Address,
        in_proj_bias: Address,
        taps: Address,
        taps_bias: Address,
        out_proj: Address,
        out_proj_bias: Address,
    },
    Attention {
        /// `[(heads + 2 kv_heads) D, H]`
        qkv_proj: Address,
        out_proj: Address,
        q_norm: Address,
        k_norm: Address,
    },
}

#[derive(Debug, Clone)]
pub enum FeedForwardAddresses {
    Dense {
        w1: Address,
        w3: Address,
        w2: Address,
    },
    Moe {
        gate: Address,
        bias: Address,
        /// bf16 `[E, H]`, `gate` times the layer's `ffn_norm`; 0 where nobody reads it.
        guess: Address,
        experts: ExpertWeights,
    },
}

/// The types that a model of these weights runs with: matrices in the operand's type, for f32 in the checkpoint's,
/// or in f32 where that has several.
pub fn types(weights: &Weights, operand: DType) -> Types {
    Types {
        operand,
        weights: match operand {
            DType::F32 => weights.matrix_dtype().unwrap_or(DType::F32),
            _ => operand,
        },
    }
}

impl DeviceWeights {
    /// Allocates the memory for the section's weights and copies them there, converted where their type is another; random ones are made
    /// there. The stream comes to the end of that later.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] where the GPU has too little; [`crate::Error::Usage`] naming a tensor with a value that the type
    /// does not hold.
    pub fn upload(
        context: &Arc<CudaContext>,
        stream: &CudaStream,
        library: &Library,
        model: &Model,
        section: &Section,
        types: Types,
    ) -> Result<Self> {
        let (_, bytes) = WeightAddresses::new(&model.config, section, types.weights, 0)?;
        let buffer = Buffer::named(context, "the weights", bytes)?;
        let mut placer = Placer::into(&buffer, (context, stream), library, types.weights)?;
        let at = placer.model(&model.config, section, &model.weights)?;
        drop(placer);
        Ok(Self {
            at,
            _buffer: buffer,
        })
    }
}

impl WeightAddresses {
    /// Bytes of a section's weights with matrices of this type.
    pub fn bytes(config: &ModelConfig, section: &Section, matrices: DType) -> u64 {
        let (_, bytes) = Self::new(config, section, matrices, 0).expect("nothing is copied");
        bytes as u64
    }

    /// Where the weights of a model's section would lie from `start` on, matrices in this type, and the bytes of all.
    ///
    /// # Errors
    /// None that a caller can cause.
    pub fn new(
        config: &ModelConfig,
        section: &Section,
        matrices: DType,
        start: Address,
    ) -> Result<(Self, usize)> {
        let mut measure = Placer::measuring(start, matrices);
        let placed = measure.model(config, section, &tensors::all_declared(config))?;
        Ok((placed, measure.bytes()))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::model::ModelSource;
    use crate::plan::{GraphFile, Limits};

    pub fn model(folder: &tempfile::TempDir, text: &str) -> Model {
        let config = folder.path().join("config.json");
        std::fs::write(&config, text).unwrap();
        let source = ModelSource::parse(&format!("random:{}", config.display())).unwrap();
        Model::load(&source).unwrap()
    }

    pub fn config(vocab: usize, hidden: usize, inner: usize, bias: bool, tied: bool) -> String {
        format!(
            r#"{{"model_type": "lfm2_moe", "vocab_size": {vocab}, "hidden_size": {hidden}, "num_hidden_layers": 3,
                "intermediate_size": 64, "moe_intermediate_size": {inner}, "num_attention_heads": 2,
                "num_key_value_heads": 1, "head_dim": 64, "num_dense_layers": 1, "num_experts": 5,
                "num_experts_per_tok": 2, "conv_bias": {bias}, "tie_embedding": {tied},
                "layer_types": ["conv", "full_attention", "conv"], "max_position_embeddings": 100}}"#
        )
    }

    /// Of models whose rows are no whole blocks of [`packed`], too.
    #[test]
    fn tensors_are_placed_where_their_declarations_are() {
        let folder = tempfile::tempdir().unwrap();
        for (hidden, inner, bias, tied) in [(256, 64, false, true), (96, 160, true, false)] {
            let model = model(&folder, &config(40, hidden, inner, bias, tied));
            let limits = Limits {
                stages: Some(3),
                ..Limits::default()
            };
            let graphs = GraphFile::open(None).unwrap();
            let plan = graphs
                .plan(Arc::new(model.config.clone()), &limits)
                .unwrap();
            let sections = [0..3, 0..1, 1..2, 2..3, 0..2];
            for section in sections.map(|stages| Section::of(&model.config, &plan.stages[stages])) {
                for matrices in [DType::BF16, DType::F16, DType::F32] {
                    let (at, bytes) =
                        WeightAddresses::new(&model.config, &section, matrices, 0).unwrap();
                    let mut placer = Placer::measuring(0, matrices);
                    let placed = placer.model(&model.config, &section, &model.weights);
                    assert_eq!(format!("{:?}", placed.unwrap()), format!("{at:?}"));
                    assert_eq!(bytes, placer.bytes(), "{hidden} {section:?}");
                    assert_eq!(at.embed_tokens.is_some(), section.has_embedding());
                    assert_eq!(at.head.is_some(), section.has_head());
                    let layers: Vec<_> = at.layers.iter().map(Option::is_some).collect();
                    let has: Vec<_> = (0..3).map(|layer| section.has(layer)).collect();
                    assert_eq!(layers, has);
                }
            }
        }
    }
}
