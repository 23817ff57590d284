//! Element types of a model on a GPU, and how kernels are named after them.

use crate::model::DType;

/// Element types that a model runs with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Types {
    /// Matrix inputs, KV pages and conv state: `--dtype`.
    pub operand: DType,
    /// Matrices and the embedding: the operand's own type, or for f32 the checkpoint's.
    pub weights: DType,
}

impl Types {
    /// Whether the kernels that stream weights come in these: rows and weights of one 16-bit type, or f32 rows and bf16
    /// weights.
    pub(super) fn are_streamed(self) -> bool {
        match self.operand {
            DType::F32 => self.weights == DType::BF16,
            operand => self.weights == operand,
        }
    }
}
