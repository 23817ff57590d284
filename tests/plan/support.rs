//! Configurations that the plan tests share.

use std::sync::Arc;
use tailgraph::model::lfm2_moe::LFM2_MOE;
use tailgraph::model::{DType, LayerType, ModelConfig, WeightFormat};
use tailgraph::plan::{Activations, GraphFile, Limits, Plan, Precision};

pub const BF16: Precision = Precision::BF16;
/// f32 on a bf16 checkpoint.
pub const F32: Precision = Precision {
    weights: WeightFormat::BF16,
    compute: DType::F32,
    activations: Activations::Stored,
};

/// LFM2-8B-A1B, as published.
pub fn lfm2_8b_a1b() -> ModelConfig {
    ModelConfig {
        family: &LFM2_MOE,
        vocab_size: 65536,
        hidden_size: 2048,
        num_hidden_layers: 24,
        intermediate_size: 7168,
        moe_intermediate_size: 1792,
        num_attention_heads: 32,
        num_key_value_heads: 8,
        head_dim: 64,
        num_dense_layers: 2,
        num_experts: 32,
        num_experts_per_tok: 4,
        use_expert_bias: true,
        norm_topk_prob: true,
        routed_scaling_factor: 1.0,
        conv_l_cache: 3,
        conv_bias: false,
        norm_eps: 1e-5,
        max_position_embeddings: 128_000,
        rope_theta: 1e6,
        tie_word_embeddings: true,
        layer_types: (0..24)
            .map(|layer| match layer {
                2 | 6 | 10 | 14 | 18 | 21 => LayerType::FullAttention,
                _ => LayerType::Conv,
            })
            .collect(),
        bos_token_id: Some(1),
        eos_token_ids: vec![7],
        pad_token_id: Some(0),
        quantization: None,
    }
}

/// A plan with the built-in bucket sizes.
pub fn plan(config: ModelConfig, stages: usize) -> Plan {
    let limits = Limits {
        stages: Some(stages),
        ..Limits::default()
    };
    GraphFile::built_in()
        .unwrap()
        .plan(Arc::new(config), &limits)
        .unwrap()
}
