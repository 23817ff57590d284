//! LFM2-MoE: the operations of each layer, and the tensors that an operation reads. What else depends on a model's tensors
//! follows from these lists: checkpoints, random presets, parameters, bytes and FLOPs, and places in a device's memory.

use super::config::ModelConfig;
use super::declared::{Declared, Role};
use super::layer_types::LayerType;
use super::op::OpKind;

/// The operations of one layer, in their order.
pub fn operations(config: &ModelConfig, layer: usize) -> Vec<OpKind> {
    let mixer: &[OpKind] = match config.layer_types[layer] {
        LayerType::Conv => &[OpKind::ConvInProj, OpKind::ShortConv, OpKind::ConvOutProj],
        LayerType::FullAttention => &[
            OpKind::QkvProj,
            OpKind::QkNormRope,
            OpKind::Attention,
            OpKind::AttentionOutProj,
        ],
    };
    let feed_forward: &[OpKind] = if config.is_moe(layer) {
        &[OpKind::Router, OpKind::ExpertGateUp, OpKind::ExpertDown]
    } else {
        &[OpKind::DenseGateUp, OpKind::DenseDown]
    };
    [
        &[OpKind::OperatorNorm],
        mixer,
        &[OpKind::FfnNorm],
        feed_forward,
    ]
    .concat()
}

/// The tensors that an operation reads, in the order in which it takes them. Names are behind the layer's prefix. A tied
/// LM head reads the embedding's.
pub fn tensors(config: &ModelConfig, operation: OpKind) -> Vec<Declared> {
    let (hidden, vocab) = (config.hidden_size, config.vocab_size);
    let (inner, expert_inner) = (config.intermediate_size, config.moe_intermediate_size);
    let (experts, head_dim) = (config.num_experts, config.head_dim);
    let query = config.num_attention_heads.saturating_mul(head_dim);
    let key_value = config.num_key_value_heads.saturating_mul(head_dim);
    let hidden_three = hidden.saturating_mul(3);
    let matrix = |name, rows, columns| Declared::new(name, Role::Matrix, &[rows, columns]);
    let norm = |name, size| Declared::new(name, Role::Norm, &[size]);
    let with_bias = |tensor, bias, size| {
        let bias = Declared::new(bias, Role::Bias, &[size]);
        [tensor].into_iter().chain(config.conv_bias.then_some(bias))
    };
    match operation {
        OpKind::Embed => {
            let name = "model.embed_tokens.weight";
            vec![Declared::new(name, Role::Embedding, &[vocab, hidden])]
        }
        OpKind::OperatorNorm => vec![norm("operator_norm.weight", hidden)],
        OpKind::ConvInProj => {
            // Rows of B, then C, then X.
            let projection = matrix("conv.in_proj.weight", hidden_three, hidden);
            with_bias(projection, "conv.in_proj.bias", hidden_three).collect()
        }
        OpKind::ShortConv => {
            let shape = [hidden, 1, config.conv_l_cache];
            let taps = Declared::new("conv.conv.weight", Role::ConvTaps, &shape);
            with_bias(taps, "conv.conv.bias", hidden).collect()
        }
        OpKind::ConvOutProj => {
            let projection = matrix("conv.out_proj.weight", hidden, hidden);
            with_bias(projection, "conv.out_proj.bias", hidden).collect()
        }
        OpKind::QkvProj => vec![
            matrix("self_attn.q_proj.weight", query, hidden),
            matrix("self_attn.k_proj.weight", key_value, hidden),
            matrix("self_attn.v_proj.weight", key_value, hidden),
        ],
        OpKind::QkNormRope => vec![
            norm("self_attn.q_layernorm.weight", head_dim),
            norm("self_attn.k_layernorm.weight", head_dim),
        ],
        OpKind::AttentionOutProj => vec![matrix("self_attn.out_proj.weight", hidden, query)],
        OpKind::FfnNorm => vec![norm("ffn_norm.weight", hidden)],
        OpKind::DenseGateUp => vec![
            matrix("feed_forward.w1.weight", inner, hidden),
            matrix("feed_forward.w3.weight", inner, hidden),
        ],
        OpKind::DenseDown => vec![matrix("feed_forward.w2.weight", hidden, inner)],
        OpKind::Router => {
            let gate = Declared::new("feed_forward.gate.weight", Role::Router, &[experts, hidden]);
            let bias = Declared::new("feed_forward.expert_bias", Role::ExpertBias, &[experts]);
            let bias = config.use_expert_bias.then_some(bias);
            [gate].into_iter().chain(bias).collect()
        }
        OpKind::ExpertGateUp => {
            let fused = "feed_forward.experts.gate_up_proj";
            vec![
                matrix("feed_forward.experts.{}.w1.weight", expert_inner, hidden).of_each(
                    experts,
                    fused,
                    0..2,
                ),
                matrix("feed_forward.experts.{}.w3.weight", expert_inner, hidden).of_each(
                    experts,
                    fused,
                    1..2,
                ),
            ]
        }
        OpKind::ExpertDown => vec![
            matrix("feed_forward.experts.{}.w2.weight", hidden, expert_inner).of_each(
                experts,
                "feed_forward.experts.down_proj",
                0..1,
            ),
        ],
        OpKind::FinalNorm => vec![norm("model.embedding_norm.weight", hidden)],
        OpKind::LmHead => vec![matrix("lm_head.weight", vocab, hidden)],
        OpKind::Attention | OpKind::Sample => vec![],
    }
}
