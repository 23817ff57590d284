//! LFM2-MoE: config.json in both generations of spelling, the operations of each layer, and the tensors that an operation
//! reads. What else depends on a model's tensors follows from these lists: checkpoints, random presets, parameters, bytes and
//! FLOPs, and places in a device's memory.

use super::config::read::{head_dim, limit, single};
use super::config::rotary::theta;
use super::config::{Family, ModelConfig, decimal, ids_json};
use super::declared::{Declared, Role};
use super::fields::Fields;
use super::layer_types::{self, LayerType};
use super::op::OpKind;
use crate::error::Result;
use serde_json::{Value, json};

pub static LFM2_MOE: Family = Family {
    model_type: "lfm2_moe",
    read,
    write,
    operations,
    tensors,
};

fn read(fields: &Fields<'_>) -> Result<ModelConfig> {
    let num_hidden_layers = fields.required_size("num_hidden_layers", 1, limit::LAYERS)?;
    let hidden_size = fields.required_size("hidden_size", 1, limit::WIDTH)?;
    let num_attention_heads = fields.required_size("num_attention_heads", 1, limit::HEADS)?;
    Ok(ModelConfig {
        family: &LFM2_MOE,
        vocab_size: fields.required_size("vocab_size", 1, limit::VOCAB)?,
        hidden_size,
        num_hidden_layers,
        intermediate_size: fields.required_size("intermediate_size", 1, limit::WIDTH)?,
        moe_intermediate_size: fields.required_size("moe_intermediate_size", 1, limit::WIDTH)?,
        num_attention_heads,
        num_key_value_heads: fields.required_size("num_key_value_heads", 1, limit::HEADS)?,
        head_dim: head_dim(fields, hidden_size, num_attention_heads)?,
        num_dense_layers: fields.required_size("num_dense_layers", 0, num_hidden_layers as u64)?,
        num_experts: num_experts(fields)?,
        num_experts_per_tok: fields.required_size("num_experts_per_tok", 1, limit::EXPERTS)?,
        use_expert_bias: fields.bool("use_expert_bias")?.unwrap_or(true),
        norm_topk_prob: fields.bool("norm_topk_prob")?.unwrap_or(true),
        routed_scaling_factor: single(fields, "routed_scaling_factor")?.unwrap_or(1.0),
        conv_l_cache: fields
            .size("conv_L_cache", 1, limit::CONV_TAPS)?
            .unwrap_or(3),
        conv_bias: fields.bool("conv_bias")?.unwrap_or(false),
        norm_eps: single(fields, "norm_eps")?.unwrap_or(1e-5),
        max_position_embeddings: fields
            .size("max_position_embeddings", 1, limit::POSITIONS)?
            .unwrap_or(128_000),
        rope_theta: theta(fields)?,
        tie_word_embeddings: match fields.bool("tie_embedding")? {
            Some(tied) => tied,
            None => fields.bool("tie_word_embeddings")?.unwrap_or(true),
        },
        layer_types: layer_types::read(fields, num_hidden_layers)?,
        bos_token_id: fields.token_id("bos_token_id")?,
        eos_token_ids: fields.token_ids("eos_token_id")?.unwrap_or_default(),
        pad_token_id: fields.token_id("pad_token_id")?,
        quantization: None,
    })
}

/// `num_experts`, which some exports call `num_local_experts`; where both are given they must agree.
fn num_experts(fields: &Fields<'_>) -> Result<usize> {
    const ALIAS: &str = "num_local_experts";
    let alias = fields.size(ALIAS, 1, limit::EXPERTS)?;
    match (fields.size("num_experts", 1, limit::EXPERTS)?, alias) {
        (Some(experts), Some(other)) if experts != other => Err(fields.error(
            ALIAS,
            format!("found {other}, expected {experts} like num_experts"),
        )),
        (Some(experts), _) | (None, Some(experts)) => Ok(experts),
        (None, None) => fields.required_size("num_experts", 1, limit::EXPERTS),
    }
}

fn write(config: &ModelConfig) -> Value {
    json!({
        "architectures": ["Lfm2MoeForCausalLM"],
        "model_type": config.family.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "intermediate_size": config.intermediate_size,
        "moe_intermediate_size": config.moe_intermediate_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "num_dense_layers": config.num_dense_layers,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.num_experts_per_tok,
        "use_expert_bias": config.use_expert_bias,
        "norm_topk_prob": config.norm_topk_prob,
        "routed_scaling_factor": decimal(config.routed_scaling_factor),
        "conv_L_cache": config.conv_l_cache,
        "conv_bias": config.conv_bias,
        "norm_eps": decimal(config.norm_eps),
        "max_position_embeddings": config.max_position_embeddings,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_theta": config.rope_theta, "rope_type": "default"},
        "tie_embedding": config.tie_word_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "layer_types": config.layer_types.iter().map(|layer| layer.name()).collect::<Vec<_>>(),
        "bos_token_id": config.bos_token_id,
        "eos_token_id": ids_json(&config.eos_token_ids),
        "pad_token_id": config.pad_token_id,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
        "use_cache": true,
    })
}

fn operations(config: &ModelConfig, layer: usize) -> Vec<OpKind> {
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

fn tensors(config: &ModelConfig, operation: OpKind) -> Vec<Declared> {
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
        OpKind::LmHead => vec![Declared::new(
            "lm_head.weight",
            Role::Head,
            &[vocab, hidden],
        )],
        OpKind::Attention | OpKind::Sample => vec![],
    }
}
