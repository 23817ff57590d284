//! The weights each operation reads, as shapes: what tables show and what byte counts are made of.

use super::{OpKind, Plan};
use crate::model::{DType, LayerType, ModelConfig};

/// One weight of an operation.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Param {
    /// Role: the tensor's name in the checkpoint, without prefix and suffix; fused names where an operation
    /// reads several tensors as one.
    pub name: &'static str,
    pub shape: Vec<usize>,
    /// Stored in f32 whatever the checkpoint's type is.
    pub always_f32: bool,
}

impl Param {
    fn new(name: &'static str, shape: &[usize]) -> Self {
        Self {
            name,
            shape: shape.to_vec(),
            always_f32: false,
        }
    }

    pub fn elements(&self) -> f64 {
        self.shape.iter().map(|&n| n as f64).product()
    }

    /// With matrices of type `weights`.
    pub fn bytes(&self, weights: DType) -> f64 {
        let dtype = if self.always_f32 { DType::F32 } else { weights };
        self.elements() * dtype.bytes() as f64
    }
}

/// The weights that `kind` reads, the largest first. The LM head of a tied model is the embedding's table.
pub fn params(config: &ModelConfig, kind: OpKind) -> Vec<Param> {
    let hidden = config.hidden_size;
    let head_dim = config.head_dim;
    let q = config.num_attention_heads.saturating_mul(head_dim);
    let kv = config.num_key_value_heads.saturating_mul(head_dim);
    let inner = config.intermediate_size;
    let expert_inner = config.moe_intermediate_size;
    let experts = config.num_experts;
    let bias = |name, shape: &[usize]| {
        config
            .conv_bias
            .then(|| Param::new(name, shape))
            .into_iter()
            .collect::<Vec<_>>()
    };
    let one = |name, shape: &[usize]| vec![Param::new(name, shape)];
    match kind {
        OpKind::Embed => one("embed_tokens", &[config.vocab_size, hidden]),
        OpKind::OperatorNorm => one("operator_norm", &[hidden]),
        OpKind::ConvInProj => [
            one("conv.in_proj", &[hidden.saturating_mul(3), hidden]),
            bias("conv.in_proj.bias", &[hidden.saturating_mul(3)]),
        ]
        .concat(),
        OpKind::ShortConv => [
            one("conv.conv", &[hidden, 1, config.conv_l_cache]),
            bias("conv.conv.bias", &[hidden]),
        ]
        .concat(),
        OpKind::ConvOutProj => [
            one("conv.out_proj", &[hidden, hidden]),
            bias("conv.out_proj.bias", &[hidden]),
        ]
        .concat(),
        OpKind::QkvProj => one(
            "self_attn.qkv_proj",
            &[q.saturating_add(kv.saturating_mul(2)), hidden],
        ),
        OpKind::QkNormRope => one("self_attn.qk_layernorm", &[2, head_dim]),
        OpKind::AttentionOutProj => one("self_attn.out_proj", &[hidden, q]),
        OpKind::FfnNorm => one("ffn_norm", &[hidden]),
        OpKind::DenseGateUp => one("feed_forward.w1_w3", &[inner.saturating_mul(2), hidden]),
        OpKind::DenseDown => one("feed_forward.w2", &[hidden, inner]),
        OpKind::Router => {
            let mut params = one("feed_forward.gate", &[experts, hidden]);
            if config.use_expert_bias {
                params.push(Param {
                    always_f32: true,
                    ..Param::new("feed_forward.expert_bias", &[experts])
                });
            }
            params
        }
        OpKind::ExpertGateUp => one(
            "feed_forward.experts.w1_w3",
            &[experts, expert_inner.saturating_mul(2), hidden],
        ),
        OpKind::ExpertDown => one("feed_forward.experts.w2", &[experts, hidden, expert_inner]),
        OpKind::FinalNorm => one("embedding_norm", &[hidden]),
        OpKind::LmHead => one("lm_head", &[config.vocab_size, hidden]),
        OpKind::Attention | OpKind::Sample => Vec::new(),
    }
}

/// How many times the model's forward pass has `kind`.
fn occurrences(config: &ModelConfig, kind: OpKind) -> f64 {
    let count = |wanted: &dyn Fn(usize, LayerType) -> bool| {
        config
            .layer_types
            .iter()
            .enumerate()
            .filter(|&(layer, &mixer)| wanted(layer, mixer))
            .count() as f64
    };
    match kind {
        OpKind::Embed | OpKind::FinalNorm | OpKind::LmHead | OpKind::Sample => 1.0,
        OpKind::OperatorNorm | OpKind::FfnNorm => config.layer_types.len() as f64,
        OpKind::ConvInProj | OpKind::ShortConv | OpKind::ConvOutProj => {
            count(&|_, mixer| mixer == LayerType::Conv)
        }
        OpKind::QkvProj | OpKind::QkNormRope | OpKind::Attention | OpKind::AttentionOutProj => {
            count(&|_, mixer| mixer == LayerType::FullAttention)
        }
        OpKind::DenseGateUp | OpKind::DenseDown => count(&|layer, _| !config.is_moe(layer)),
        OpKind::Router | OpKind::ExpertGateUp | OpKind::ExpertDown => {
            count(&|layer, _| config.is_moe(layer))
        }
    }
}

/// Sums `size` over the model's stored weights; a tied LM head is not stored again.
fn sum(config: &ModelConfig, size: impl Fn(&Param) -> f64) -> f64 {
    OpKind::ALL
        .iter()
        .filter(|&&kind| !(kind == OpKind::LmHead && config.tie_word_embeddings))
        .map(|&kind| {
            let each: f64 = params(config, kind).iter().map(&size).sum();
            occurrences(config, kind) * each
        })
        .sum()
}

/// Parameters of the whole model.
pub fn model_parameters(config: &ModelConfig) -> f64 {
    sum(config, Param::elements)
}

/// Bytes of the whole model's weights with matrices of type `weights`.
pub fn model_bytes(config: &ModelConfig, weights: DType) -> f64 {
    sum(config, |param| param.bytes(weights))
}

impl Plan {
    /// Bytes of keys and values that one token takes in all attention layers, elements of type `compute`.
    pub fn kv_bytes_per_token(&self, compute: DType) -> f64 {
        let config = &self.config;
        occurrences(config, OpKind::Attention)
            * 2.0
            * config.num_key_value_heads as f64
            * config.head_dim as f64
            * compute.bytes() as f64
    }

    /// Bytes of conv state that one sequence takes: the last `conv_L_cache - 1` columns `[H]` of each conv layer.
    pub fn conv_state_bytes_per_sequence(&self, compute: DType) -> f64 {
        let config = &self.config;
        occurrences(config, OpKind::ShortConv)
            * config.conv_l_cache.saturating_sub(1) as f64
            * config.hidden_size as f64
            * compute.bytes() as f64
    }
}
