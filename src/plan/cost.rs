//! What an operation moves and computes in one step. Counts are of the operation as [`super::OpKind`] states it:
//! each weight, operand and result crosses once. Expected values where routing decides, so everything is f64.

use super::{NeededRows, Op, OpKind, Plan, Stage, StepKind};
use crate::model::tensors::{Declared, Role, declared};
use crate::model::{DType, LayerType, ModelConfig, WeightFormat};
use std::ops::{Add, AddAssign, Mul};

/// Bytes of an f32, the type of the residual stream, the router's result and the logits.
const F32: f64 = 4.0;

/// How products of prompts' rows with weights in 8 bits are computed, where steps have many: `--activations`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Activations {
    /// In the type of rows.
    #[default]
    Stored,
    /// With rows in e4m3, and a scale for each 128 columns of a row.
    FP8,
}

impl Activations {
    pub const ALL: [Self; 2] = [Self::Stored, Self::FP8];

    /// The name in `--activations`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stored => "as-is",
            Self::FP8 => "fp8",
        }
    }

    /// The one of that [`Activations::name`].
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|way| way.name() == name)
    }

    /// Its name, where it is not the default.
    pub fn chosen(self) -> Option<String> {
        (self != Self::Stored).then(|| self.name().to_owned())
    }
}

/// What a run computes in, and what with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Precision {
    /// How matrices are stored, the embedding among them, where the run has them.
    pub weights: WeightFormat,
    /// The type of matrix inputs, keys and values, and conv state: `--dtype`.
    pub compute: DType,
    pub activations: Activations,
}

impl Precision {
    /// The type that models are published in.
    pub const BF16: Self = Self {
        weights: WeightFormat::BF16,
        compute: DType::BF16,
        activations: Activations::Stored,
    };

    /// f32 keeps the checkpoint's format (widening is exact); bf16 and f16 convert weights that are not in 8 bits.
    pub fn new(dtype: DType, checkpoint: WeightFormat) -> Self {
        let weights = if dtype.is_half() && checkpoint != WeightFormat::E4M3 {
            dtype.into()
        } else {
            checkpoint
        };
        Self {
            weights,
            compute: dtype,
            activations: Activations::Stored,
        }
    }

    /// Whether the kernels that stream weights come in these: rows and weights of one type of 16 bits, or bf16 or f32 rows and weights in
    /// bf16 or 8 bits.
    pub fn is_streamed(self) -> bool {
        match self.weights {
            WeightFormat::E4M3 => self.compute != DType::F16,
            weights if self.compute.is_half() => weights == self.compute.into(),
            weights => weights == WeightFormat::BF16,
        }
    }

    /// What products with a matrix of this format are of.
    pub fn with(self, weights: WeightFormat) -> Self {
        Self { weights, ..self }
    }
}

/// The step that costs are counted for: all its sequences are alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepShape {
    pub kind: StepKind,
    pub rows: u32,
    /// Positions that a sequence has once the step is done, the step's rows included. A mixed or score step holds
    /// the last `min(rows, context)` positions of each of its prompts.
    pub context: u32,
}

impl StepShape {
    /// Rows of each sequence.
    pub fn chunk(&self) -> f64 {
        match self.kind {
            StepKind::Decode => 1.0,
            StepKind::Mixed | StepKind::Score => f64::from(self.rows.min(self.context).max(1)),
        }
    }

    pub fn sequences(&self) -> f64 {
        (f64::from(self.rows) / self.chunk()).ceil()
    }

    /// Keys that one of a sequence's last `chunk` rows attends to, on average: its own position and all before.
    pub fn attended(&self, chunk: f64) -> f64 {
        (f64::from(self.context.max(1)) - (chunk - 1.0) / 2.0).max(1.0)
    }

    /// Rows that get logits.
    pub fn logit_rows(&self) -> f64 {
        match self.kind {
            StepKind::Decode => f64::from(self.rows),
            StepKind::Mixed => self.sequences(),
            StepKind::Score => f64::from(self.rows),
        }
    }

    /// Rows that a token is sampled for.
    pub fn sampled_rows(&self) -> f64 {
        match self.kind {
            StepKind::Decode | StepKind::Mixed => self.logit_rows(),
            StepKind::Score => 0.0,
        }
    }
}

/// Bytes moved and operations computed. A multiply and an add are two FLOPs.
#[derive(Debug, Clone, Copy, PartialEq, Default, serde::Serialize)]
pub struct Cost {
    pub weight_bytes: f64,
    /// Keys, values and conv state, read and written.
    pub cache_bytes: f64,
    /// Operands and results, the residual stream included.
    pub activation_bytes: f64,
    pub flops: f64,
}

impl Cost {
    /// What has to come from memory however the operations are fused: the floor of a step's traffic.
    pub fn floor_bytes(&self) -> f64 {
        self.weight_bytes + self.cache_bytes
    }
}

impl Add for Cost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            weight_bytes: self.weight_bytes + other.weight_bytes,
            cache_bytes: self.cache_bytes + other.cache_bytes,
            activation_bytes: self.activation_bytes + other.activation_bytes,
            flops: self.flops + other.flops,
        }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Mul<f64> for Cost {
    type Output = Self;
    fn mul(self, times: f64) -> Self {
        Self {
            weight_bytes: self.weight_bytes * times,
            cache_bytes: self.cache_bytes * times,
            activation_bytes: self.activation_bytes * times,
            flops: self.flops * times,
        }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), Add::add)
    }
}

/// Experts that at least one of `rows` rows chooses, expected: E (1 - (1 - K/E)^rows), where each row chooses K of E
/// uniformly and independently. Real routing is less even, so it touches fewer.
pub fn distinct_experts(config: &ModelConfig, rows: f64) -> f64 {
    let experts = config.num_experts as f64;
    let chosen = config.num_experts_per_tok as f64;
    if experts == 0.0 {
        return 0.0;
    }
    experts * (1.0 - (1.0 - chosen / experts).max(0.0).powf(rows))
}

/// The cost of one operation of a plan in a step of `shape`, with even routing: for the rows that are needed of it.
pub fn op_cost(config: &ModelConfig, op: &Op, shape: &StepShape, precision: Precision) -> Cost {
    let needed = NeededRows::of_step(config, shape.kind).filter(|needed| needed.are_all_of(op));
    let chunk = needed.map_or(shape.chunk(), |needed| {
        shape.chunk().min(f64::from(needed.rows))
    });
    cost_of_rows(config, op.kind, shape, chunk, precision)
}

/// The cost of an operation that all rows of a step of `shape` are needed of.
pub fn kind_cost(
    config: &ModelConfig,
    kind: OpKind,
    shape: &StepShape,
    precision: Precision,
) -> Cost {
    cost_of_rows(config, kind, shape, shape.chunk(), precision)
}

/// The cost of an operation for the last `chunk` rows of each sequence.
fn cost_of_rows(
    config: &ModelConfig,
    kind: OpKind,
    shape: &StepShape,
    chunk: f64,
    precision: Precision,
) -> Cost {
    let rows = f64::from(shape.rows).min(shape.sequences() * chunk);
    let compute = precision.compute.bytes() as f64;
    let hidden = config.hidden_size as f64;
    let q = config.num_attention_heads as f64 * config.head_dim as f64;
    let kv = config.num_key_value_heads as f64 * config.head_dim as f64;
    let per_token = config.num_experts_per_tok as f64;
    let expert_inner = config.moe_intermediate_size as f64;
    let vocab = config.vocab_size as f64;
    let tensors = declared(config, kind);
    let stored: f64 = tensors.iter().map(|t| t.bytes(precision.weights)).sum();
    // A product of every row with the whole of the operation's matrices.
    let matrices = tensors
        .iter()
        .filter(|t| matches!(t.role, Role::Matrix | Role::Head | Role::Router));
    let product = 2.0 * rows * matrices.map(Declared::elements).sum::<f64>();
    let x = rows * hidden * compute;
    let h = rows * hidden * F32;

    // (weight bytes, cache bytes, activation bytes, FLOPs)
    let (weight_bytes, cache_bytes, activation_bytes, flops) = match kind {
        OpKind::Embed => {
            let stored = Role::Embedding.stored(precision.weights);
            let gathered = rows * hidden * stored.bytes() as f64;
            (gathered, 0.0, h, 0.0)
        }
        // Square, sum, scale, weigh.
        OpKind::OperatorNorm | OpKind::FfnNorm => (stored, 0.0, h + x, 4.0 * rows * hidden),
        OpKind::ConvInProj => (stored, 0.0, x + 3.0 * x, product),
        OpKind::ShortConv => {
            let taps = config.conv_l_cache as f64;
            let state = shape.sequences() * (taps - 1.0).max(0.0) * hidden * compute;
            // B * X, the taps, C * y.
            let flops = rows * hidden * (2.0 * taps + 2.0);
            (stored, 2.0 * state, 3.0 * x + x, flops)
        }
        OpKind::ConvOutProj => (stored, 0.0, x + 2.0 * h, product),
        OpKind::QkvProj => (stored, 0.0, x + rows * (q + 2.0 * kv) * compute, product),
        OpKind::QkNormRope => {
            let written = rows * 2.0 * kv * compute;
            let moved = rows * (q + 2.0 * kv) * compute + rows * q * compute;
            // Norm 4, rotation 3 an element of q and k.
            (stored, written, moved, 7.0 * rows * (q + kv))
        }
        OpKind::Attention => {
            // A sequence's keys and values are read once for all its rows.
            let read = shape.sequences() * f64::from(shape.context.max(1)) * 2.0 * kv * compute;
            (
                0.0,
                read,
                2.0 * rows * q * compute,
                4.0 * rows * shape.attended(chunk) * q,
            )
        }
        OpKind::AttentionOutProj => (stored, 0.0, rows * q * compute + 2.0 * h, product),
        OpKind::DenseGateUp => {
            let inner = config.intermediate_size as f64;
            (stored, 0.0, x + rows * inner * compute, product)
        }
        OpKind::DenseDown => {
            let inner = config.intermediate_size as f64;
            (stored, 0.0, rows * inner * compute + 2.0 * h, product)
        }
        // An index and a weight for each chosen expert.
        OpKind::Router => (stored, 0.0, x + rows * per_token * 2.0 * F32, product),
        OpKind::ExpertGateUp | OpKind::ExpertDown => {
            let experts = config.num_experts.max(1) as f64;
            let touched = stored * distinct_experts(config, rows) / experts;
            let inner = rows * per_token * expert_inner * compute;
            let outer = if kind == OpKind::ExpertGateUp {
                x
            } else {
                2.0 * h
            };
            (touched, 0.0, inner + outer, product * per_token / experts)
        }
        OpKind::FinalNorm => {
            let normed = shape.logit_rows() * hidden;
            (stored, 0.0, normed * (F32 + compute), 4.0 * normed)
        }
        // Logits are stored and read; a backend may spare that for the greedy rows of decode steps.
        OpKind::LmHead => {
            let logit_rows = shape.logit_rows();
            let moved = logit_rows * (hidden * compute + vocab * F32);
            (stored, 0.0, moved, 2.0 * logit_rows * hidden * vocab)
        }
        // A comparison for each logit, as in greedy decoding.
        OpKind::Sample => {
            let logits = shape.sampled_rows() * vocab;
            (0.0, 0.0, logits * F32 + shape.sampled_rows() * F32, logits)
        }
    };
    Cost {
        weight_bytes,
        cache_bytes,
        activation_bytes,
        flops,
    }
}

impl Stage {
    /// The cost of each operation of the stage in one step of `shape`.
    pub fn costs(
        &self,
        config: &ModelConfig,
        shape: &StepShape,
        precision: Precision,
    ) -> impl Iterator<Item = Cost> {
        let ops = self.ops.iter();
        ops.map(move |op| op_cost(config, op, shape, precision))
    }

    /// All operations of the stage in one step of `shape`.
    pub fn cost(&self, config: &ModelConfig, shape: &StepShape, precision: Precision) -> Cost {
        self.costs(config, shape, precision).sum()
    }
}

impl Plan {
    /// [`Stage::costs`] of all stages.
    pub fn costs(&self, shape: &StepShape, precision: Precision) -> impl Iterator<Item = Cost> {
        let stages = self.stages.iter();
        stages.flat_map(move |stage| stage.costs(&self.config, shape, precision))
    }

    /// All operations of all stages in one step of `shape`.
    pub fn cost(&self, shape: &StepShape, precision: Precision) -> Cost {
        self.costs(shape, precision).sum()
    }
}

/// Layers of this type.
fn layers(config: &ModelConfig, wanted: LayerType) -> f64 {
    let types = config.layer_types.iter();
    types.filter(|&&found| found == wanted).count() as f64
}

impl Plan {
    /// Bytes of keys and values that one token takes in all attention layers, elements of type `compute`.
    pub fn kv_bytes_per_token(&self, compute: DType) -> f64 {
        let config = &self.config;
        layers(config, LayerType::FullAttention)
            * 2.0
            * config.num_key_value_heads as f64
            * config.head_dim as f64
            * compute.bytes() as f64
    }

    /// Bytes of conv state that one sequence takes: the last `conv_L_cache - 1` columns `[H]` of each conv layer.
    pub fn conv_state_bytes_per_sequence(&self, compute: DType) -> f64 {
        let config = &self.config;
        layers(config, LayerType::Conv)
            * config.conv_l_cache.saturating_sub(1) as f64
            * config.hidden_size as f64
            * compute.bytes() as f64
    }
}
