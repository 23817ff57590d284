//! A model's shape and options, whatever its family, and what a family is.

pub mod quantization;
pub mod read;
pub mod rotary;

use super::declared::Declared;
use super::fields::Fields;
use super::layer_types::LayerType;
use super::op::OpKind;
use crate::error::Result;
pub use quantization::Quantization;
use serde_json::{Value, json};

/// A family of models: how its config.json is spelled, and what each layer is made of.
#[derive(Debug)]
pub struct Family {
    /// Its name in config.json.
    pub model_type: &'static str,
    pub(super) read: fn(&Fields<'_>) -> Result<ModelConfig>,
    pub(super) write: fn(&ModelConfig) -> Value,
    /// The operations of one layer, in their order.
    pub operations: fn(&ModelConfig, usize) -> Vec<OpKind>,
    /// The tensors that an operation reads, in the order in which it takes them. Names are behind the layer's prefix. A tied
    /// LM head reads the embedding's.
    pub tensors: fn(&ModelConfig, OpKind) -> Vec<Declared>,
}

impl PartialEq for Family {
    fn eq(&self, other: &Self) -> bool {
        self.model_type == other.model_type
    }
}

/// The model's shape and options, normalised: every spelling of config.json ends up here once.
/// Field names are config.json's.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct ModelConfig {
    #[serde(skip)]
    pub family: &'static Family,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub num_hidden_layers: usize,
    /// Inner size of the dense feed-forward, used as it is.
    pub intermediate_size: usize,
    /// Inner size of one expert.
    pub moe_intermediate_size: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    pub head_dim: usize,
    /// The first layers with a dense feed-forward; the rest are mixtures of experts.
    pub num_dense_layers: usize,
    pub num_experts: usize,
    pub num_experts_per_tok: usize,
    pub use_expert_bias: bool,
    pub norm_topk_prob: bool,
    pub routed_scaling_factor: f32,
    /// Taps of the short convolution; its state is `conv_l_cache - 1` columns.
    pub conv_l_cache: usize,
    pub conv_bias: bool,
    pub norm_eps: f32,
    pub max_position_embeddings: usize,
    pub rope_theta: f64,
    pub tie_word_embeddings: bool,
    pub layer_types: Vec<LayerType>,
    pub bos_token_id: Option<u32>,
    pub eos_token_ids: Vec<u32>,
    pub pad_token_id: Option<u32>,
    /// How a checkpoint has matrices in 8 bits, where it has any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<Quantization>,
}

impl ModelConfig {
    pub fn is_moe(&self, layer: usize) -> bool {
        layer >= self.num_dense_layers
    }

    /// config.json in the published spelling. Parsing it gives an equal configuration.
    pub fn to_json(&self) -> Value {
        let mut json = (self.family.write)(self);
        if let Some(quantization) = self.quantization {
            json["quantization_config"] = quantization.to_json();
        }
        json
    }
}

/// The f64 whose shortest decimal is that of `number`: 1e-5 is to be written as such.
pub(super) fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

/// Ids as config files spell them: null, one number, or a list.
pub(super) fn ids_json(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [id] => json!(id),
        _ => json!(ids),
    }
}
