//! What follows from the tensors that a model declares.

use super::config::ModelConfig;
pub use super::declared::{Declared, Role};
use super::op::{Op, OpKind};
use super::weights::{WeightFormat, Weights};
use crate::error::Result;
use std::ops::Range;

/// One tensor of the published layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The published name; experts are separate tensors.
    pub name: String,
    pub shape: Vec<usize>,
    pub role: Role,
    /// Where newer exports keep it instead.
    pub fused: Option<FusedSpec>,
}

/// A part of a tensor that holds all experts of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FusedSpec {
    pub name: String,
    /// The shape of the whole tensor: `[E, 2M, H]` or `[E, H, M]`.
    pub shape: [usize; 3],
    pub expert: usize,
    /// The rows of the expert's matrix: w1 comes before w3.
    pub rows: Range<usize>,
}

impl TensorSpec {
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Size in the published layout.
    pub fn published_bytes(&self) -> usize {
        self.elements() * self.role.published_format().bytes()
    }
}

/// The operations of a forward pass through `layers`, with the embedding before the model's first layer and the head behind
/// its last.
pub fn operations(config: &ModelConfig, layers: Range<usize>) -> Vec<Op> {
    let outside = |kind| Op { layer: None, kind };
    let mut ops = Vec::new();
    if layers.start == 0 {
        ops.push(outside(OpKind::Embed));
    }
    for layer in layers.clone() {
        let kinds = (config.family.operations)(config, layer).into_iter();
        ops.extend(kinds.map(|kind| Op {
            layer: Some(layer),
            kind,
        }));
    }
    if layers.end == config.num_hidden_layers {
        ops.extend([OpKind::FinalNorm, OpKind::LmHead, OpKind::Sample].map(outside));
    }
    ops
}

/// The tensors that an operation reads, in the order in which it takes them; of a tied LM head as if it had its own.
pub fn declared(config: &ModelConfig, operation: OpKind) -> Vec<Declared> {
    (config.family.tensors)(config, operation)
}

/// The shape of an operation's matrices as one: all outputs beside all inputs, after the experts where each has its own.
pub fn matrix_shape(config: &ModelConfig, operation: OpKind) -> Option<Vec<usize>> {
    let is_matrix =
        |tensor: &Declared| matches!(tensor.role, Role::Matrix | Role::Head | Role::Router);
    let mut matrices = declared(config, operation)
        .into_iter()
        .filter(|tensor| is_matrix(tensor));
    let mut shape = matrices.next()?.whole_shape();
    let outputs = shape.len() - 2;
    for other in matrices {
        shape[outputs] += other.shape[0];
    }
    Some(shape)
}

/// Sums `size` over the tensors of a whole model; a tied LM head has none of its own.
fn sum(config: &ModelConfig, size: impl Fn(&Declared) -> f64) -> f64 {
    let ops = operations(config, 0..config.num_hidden_layers).into_iter();
    ops.filter(|op| !is_tied(config, op.kind))
        .flat_map(|op| declared(config, op.kind))
        .map(|tensor| size(&tensor))
        .sum()
}

fn is_tied(config: &ModelConfig, operation: OpKind) -> bool {
    operation == OpKind::LmHead && config.tie_word_embeddings
}

/// Parameters of a whole model.
pub fn model_parameters(config: &ModelConfig) -> f64 {
    sum(config, Declared::elements)
}

/// Bytes of a whole model's checkpoint with matrices of this format.
pub fn model_bytes(config: &ModelConfig, matrices: WeightFormat) -> f64 {
    sum(config, |tensor| tensor.bytes(matrices))
}

/// All tensors of the published layout, in the order of operations.
pub fn published(config: &ModelConfig) -> Vec<TensorSpec> {
    let ops = operations(config, 0..config.num_hidden_layers).into_iter();
    ops.flat_map(|op| specs(config, op)).collect()
}

/// The tensors of one operation; none of a tied LM head.
fn specs(config: &ModelConfig, op: Op) -> Vec<TensorSpec> {
    if is_tied(config, op.kind) {
        return vec![];
    }
    let prefix = op
        .layer
        .map_or(String::new(), |layer| format!("model.layers.{layer}."));
    let tensors = declared(config, op.kind);
    let experts = tensors
        .iter()
        .find_map(|tensor| tensor.each_expert.as_ref());
    let experts = experts.map_or(1, |each| each.experts);
    let spec = |expert: usize, tensor: &Declared| {
        let fused = tensor.each_expert.as_ref().map(|each| {
            let rows = tensor.shape[0];
            FusedSpec {
                name: format!("{prefix}{}", each.fused),
                shape: [each.experts, each.part.end * rows, tensor.shape[1]],
                expert,
                rows: each.part.start * rows..(each.part.start + 1) * rows,
            }
        });
        TensorSpec {
            name: prefix.clone() + &tensor.name.replace("{}", &expert.to_string()),
            shape: tensor.shape.clone(),
            role: tensor.role,
            fused,
        }
    };
    (0..experts)
        .flat_map(|expert| tensors.iter().map(move |tensor| (expert, tensor)))
        .map(|(expert, tensor)| spec(expert, tensor))
        .collect()
}

/// Asks `get` for each tensor of a model, in the order of [`published`].
///
/// # Errors
/// The first error of `get`.
pub fn build<T: Clone>(
    config: &ModelConfig,
    mut get: impl FnMut(TensorSpec) -> Result<T>,
) -> Result<Weights<T>> {
    let mut weights = Weights::default();
    for op in operations(config, 0..config.num_hidden_layers) {
        let tensors: Vec<T> = if is_tied(config, op.kind) {
            weights.of(None, OpKind::Embed).to_vec()
        } else {
            let specs = specs(config, op).into_iter();
            specs.map(&mut get).collect::<Result<_>>()?
        };
        weights.put(op, tensors);
    }
    Ok(weights)
}
