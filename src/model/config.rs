//! config.json and generation_config.json of LFM2-MoE checkpoints, both generations of spelling.

/// What mixes tokens in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerType {
    Conv,
    FullAttention,
}

/// The model's shape and options, normalised: every spelling of config.json ends up here once.
/// Field names are config.json's.
#[derive(Debug, Clone, PartialEq)]
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
}

/// generation_config.json: defaults of the checkpoint's makers. Token ids here win over config.json's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct GenerationConfig {
    pub bos_token_id: Option<u32>,
    pub eos_token_ids: Option<Vec<u32>>,
    pub pad_token_id: Option<u32>,
    pub do_sample: Option<bool>,
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub max_new_tokens: Option<u32>,
}
