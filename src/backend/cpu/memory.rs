//! What a stage allocates before its first step, and whether its operations fit the model.

use super::conv::ConvWeights;
use super::rope::HeadShape;
use crate::error::{Error, Result};
use crate::model::tensors::operations;
use crate::model::{LayerType, Model, ModelConfig, Tensor};
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
    /// `index`: of the layer among the stage's with such a mixer.
    pub fn new(model: &Model, layer: usize, index: usize) -> Self {
        let of = |kind| model.weights.of(Some(layer), kind);
        let widened = |kind, at: usize| of(kind).get(at).map(Tensor::to_f32);
        let norm = |kind, at| widened(kind, at).unwrap_or_default();
        let mixer = match model.config.layer_types[layer] {
            LayerType::Conv => MixerState::Conv {
                weights: ConvWeights::new(of(OpKind::ShortConv)),
                in_proj_bias: widened(OpKind::ConvInProj, 1),
                out_proj_bias: widened(OpKind::ConvOutProj, 1),
                index,
            },
            LayerType::FullAttention => MixerState::Attention {
                q_norm: norm(OpKind::QkNormRope, 0),
                k_norm: norm(OpKind::QkNormRope, 1),
                index,
            },
        };
        Self {
            operator_norm: norm(OpKind::OperatorNorm, 0),
            ffn_norm: norm(OpKind::FfnNorm, 0),
            mixer,
            expert_bias: widened(OpKind::Router, 1),
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

/// That the operations are those that the model has in these layers.
pub fn check_ops(config: &ModelConfig, ops: &[Op], layers: &Range<usize>) -> Result<()> {
    let all = config.num_hidden_layers;
    let expected = "make the plan from the model's own configuration";
    if layers.start > layers.end || layers.end > all {
        return Err(Error::Runtime(format!(
            "the plan has a stage of layers {layers:?}, expected some of 0..{all}: {expected}"
        )));
    }
    let own = operations(config, layers.clone());
    let samples = ops.iter().any(|op| op.kind == OpKind::Sample);
    let is_own = |op: &Op| {
        let is_head = matches!(op.kind, OpKind::FinalNorm | OpKind::LmHead);
        own.contains(op) && (samples || !is_head)
    };
    match ops.iter().find(|op| !is_own(op)) {
        None => Ok(()),
        Some(op) => Err(Error::Runtime(format!(
            "the plan's layers {layers:?} hold {op:?}, which this model does not have there: {expected}"
        ))),
    }
}
