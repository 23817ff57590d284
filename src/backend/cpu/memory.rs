//! What a stage allocates before its first step, and whether its operations fit the model.

use super::conv::ConvWeights;
use super::rope::HeadShape;
use crate::error::{Error, Result};
use crate::model::{FeedForward, LayerWeights, Mixer, ModelConfig, Tensor};
use crate::plan::{Op, OpKind};
use std::ops::Range;

/// What a layer needs widened, and where its state lies.
pub struct LayerState {
    pub operator_norm: Vec<f32>,
    pub ffn_norm: Vec<f32>,
    pub mixer: MixerState,
    pub expert_bias: Option<Vec<f32>>,
}

pub enum MixerState {
    Conv {
        weights: ConvWeights,
        in_proj_bias: Option<Vec<f32>>,
        out_proj_bias: Option<Vec<f32>>,
        /// Counted among this stage's conv layers.
        index: usize,
    },
    Attention {
        q_norm: Vec<f32>,
        k_norm: Vec<f32>,
        /// Counted among this stage's attention layers.
        index: usize,
    },
}

/// Activations; R is `step_tokens`, P = R * num_experts_per_tok.
pub struct Buffers {
    /// `[R, H]`: the residual stream
    pub h: Vec<f32>,
    /// `[R, max(H, heads * head_dim)]`: operand of the next product
    pub x: Vec<f32>,
    /// `[R, 3H]`, `[R, (heads + 2 kv_heads) head_dim]`, `[R, I]`, `[R, E]` or `[P, M]`
    pub wide: Vec<f32>,
    /// `[R, I]` or `[P, M]`
    pub up: Vec<f32>,
    /// `[P, H]`: rows of x, expert by expert
    pub packed: Vec<f32>,
    /// `[P, H]`: what is added to h
    pub out: Vec<f32>,
}

impl LayerState {
    pub fn new(layer: &LayerWeights, convs: &mut usize, attentions: &mut usize) -> Self {
        let next = |count: &mut usize| {
            *count += 1;
            *count - 1
        };
        let mixer = match &layer.mixer {
            Mixer::Conv {
                conv,
                in_proj_bias,
                conv_bias,
                out_proj_bias,
                ..
            } => MixerState::Conv {
                weights: ConvWeights::new(conv, conv_bias.as_ref()),
                in_proj_bias: in_proj_bias.as_ref().map(Tensor::to_f32),
                out_proj_bias: out_proj_bias.as_ref().map(Tensor::to_f32),
                index: next(convs),
            },
            Mixer::Attention {
                q_layernorm,
                k_layernorm,
                ..
            } => MixerState::Attention {
                q_norm: q_layernorm.to_f32(),
                k_norm: k_layernorm.to_f32(),
                index: next(attentions),
            },
        };
        let expert_bias = match &layer.feed_forward {
            FeedForward::Moe { expert_bias, .. } => expert_bias.as_ref().map(Tensor::to_f32),
            FeedForward::Dense(_) => None,
        };
        Self {
            operator_norm: layer.operator_norm.to_f32(),
            ffn_norm: layer.ffn_norm.to_f32(),
            mixer,
            expert_bias,
        }
    }
}

impl Buffers {
    pub fn new(config: &ModelConfig, rows: usize) -> Result<Self> {
        let shape = HeadShape::new(config);
        let hidden = config.hidden_size;
        let per_row = config.num_experts_per_tok.max(1);
        let inner = config
            .intermediate_size
            .max(per_row * config.moe_intermediate_size);
        let wide = inner
            .max(3 * hidden)
            .max(shape.qkv())
            .max(config.num_experts);
        let x = hidden.max(shape.q());
        let zeros = |cols: usize| -> Result<Vec<f32>> {
            sizes_fit(&[rows, cols])?;
            Ok(vec![0.0; rows * cols])
        };
        Ok(Self {
            h: zeros(hidden)?,
            x: zeros(x)?,
            wide: zeros(wide)?,
            up: zeros(inner)?,
            packed: zeros(per_row * hidden)?,
            out: zeros(per_row * hidden)?,
        })
    }
}

/// That a buffer of these f32 dimensions can be addressed at all.
pub fn sizes_fit(dimensions: &[usize]) -> Result<()> {
    let bytes = dimensions
        .iter()
        .try_fold(size_of::<f32>(), |bytes, &n| bytes.checked_mul(n));
    match bytes {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        _ => Err(Error::Memory(format!(
            "a buffer of {dimensions:?} f32 values is larger than the address space: lower max-seqs, max-context or step-tokens"
        ))),
    }
}

/// That every operation names what the model has there.
pub fn check_ops(config: &ModelConfig, ops: &[Op], layers: &Range<usize>) -> Result<()> {
    use crate::model::LayerType::{Conv, FullAttention};
    if layers.start > layers.end || layers.end > config.layer_types.len() {
        return Err(Error::Runtime(format!(
            "the plan has a stage of layers {layers:?}, expected some of 0..{}: make the plan from the model's own configuration",
            config.layer_types.len()
        )));
    }
    let ends_with_head = ops.iter().any(|op| op.kind == OpKind::Sample);
    for op in ops {
        let fits = match op.layer {
            None => match op.kind {
                OpKind::Embed => true,
                OpKind::FinalNorm | OpKind::LmHead | OpKind::Sample => ends_with_head,
                _ => false,
            },
            Some(layer) if layers.contains(&layer) => {
                let mixer = config.layer_types[layer];
                match op.kind {
                    OpKind::OperatorNorm | OpKind::FfnNorm => true,
                    OpKind::ConvInProj | OpKind::ShortConv | OpKind::ConvOutProj => mixer == Conv,
                    OpKind::QkvProj
                    | OpKind::QkNormRope
                    | OpKind::Attention
                    | OpKind::AttentionOutProj => mixer == FullAttention,
                    OpKind::DenseGateUp | OpKind::DenseDown => !config.is_moe(layer),
                    OpKind::Router | OpKind::ExpertGateUp | OpKind::ExpertDown => {
                        config.is_moe(layer)
                    }
                    OpKind::Embed | OpKind::FinalNorm | OpKind::LmHead | OpKind::Sample => false,
                }
            }
            Some(_) => false,
        };
        if !fits {
            return Err(Error::Runtime(format!(
                "the plan's layers {layers:?} hold {op:?}, which this model does not have there: make the plan from the model's own configuration"
            )));
        }
    }
    Ok(())
}
