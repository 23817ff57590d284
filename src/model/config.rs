//! config.json of LFM2-MoE checkpoints, both generations of spelling.

mod read;
mod rotary;

use super::layer_types::LayerType;
use serde_json::{Value, json};

/// The model's shape and options, normalised: every spelling of config.json ends up here once.
/// Field names are config.json's.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct ModelConfig {
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
}

impl ModelConfig {
    pub fn is_moe(&self, layer: usize) -> bool {
        layer >= self.num_dense_layers
    }

    /// config.json in the published spelling. Parsing it gives an equal configuration.
    pub fn to_json(&self) -> Value {
        json!({
            "architectures": ["Lfm2MoeForCausalLM"],
            "model_type": MODEL_TYPE,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "num_hidden_layers": self.num_hidden_layers,
            "intermediate_size": self.intermediate_size,
            "moe_intermediate_size": self.moe_intermediate_size,
            "num_attention_heads": self.num_attention_heads,
            "num_key_value_heads": self.num_key_value_heads,
            "head_dim": self.head_dim,
            "num_dense_layers": self.num_dense_layers,
            "num_experts": self.num_experts,
            "num_experts_per_tok": self.num_experts_per_tok,
            "use_expert_bias": self.use_expert_bias,
            "norm_topk_prob": self.norm_topk_prob,
            "routed_scaling_factor": decimal(self.routed_scaling_factor),
            "conv_L_cache": self.conv_l_cache,
            "conv_bias": self.conv_bias,
            "norm_eps": decimal(self.norm_eps),
            "max_position_embeddings": self.max_position_embeddings,
            "rope_theta": self.rope_theta,
            "rope_parameters": {"rope_theta": self.rope_theta, "rope_type": "default"},
            "tie_embedding": self.tie_word_embeddings,
            "tie_word_embeddings": self.tie_word_embeddings,
            "layer_types": self.layer_types.iter().map(|layer| layer.name()).collect::<Vec<_>>(),
            "bos_token_id": self.bos_token_id,
            "eos_token_id": ids_json(&self.eos_token_ids),
            "pad_token_id": self.pad_token_id,
            "dtype": "bfloat16",
            "torch_dtype": "bfloat16",
            "use_cache": true,
        })
    }
}

/// The f64 whose shortest decimal is that of `number`: 1e-5 is to be written as such.
fn decimal(number: f32) -> f64 {
    number.to_string().parse().unwrap_or(f64::from(number))
}

const MODEL_TYPE: &str = "lfm2_moe";

/// Ids as config files spell them: null, one number, or a list.
pub(super) fn ids_json(ids: &[u32]) -> Value {
    match ids {
        [] => Value::Null,
        [id] => json!(id),
        _ => json!(ids),
    }
}
