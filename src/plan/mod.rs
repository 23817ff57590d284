//! A model as work: stages of operations, bucket ladders, what each operation moves and computes, and how
//! much memory a run needs. Pure data: knows the model's shape, no backend.

pub mod op;

pub use op::{Op, OpKind};

use crate::model::ModelConfig;
use std::ops::Range;
use std::sync::Arc;

/// What a step computes; each kind has its own ladder. The numbers are `TG_KIND_*` of kernels/abi.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StepKind {
    /// One row a sequence.
    Decode = 0,
    /// Prompt chunks too; LM head for the sampled rows only.
    Mixed = 1,
    /// LM head for every row, in tiles of [`SCORE_TILE_ROWS`].
    Score = 2,
}

pub const SCORE_TILE_ROWS: usize = 512;

/// Bucket sizes in rows, ascending, for each kind of step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ladders {
    pub decode: Vec<u32>,
    pub mixed: Vec<u32>,
    pub score: Vec<u32>,
}

/// A range of layers and its operations in order. The first stage embeds, the last one norms, projects to
/// logits and samples.
#[derive(Debug, Clone)]
pub struct Stage {
    pub index: usize,
    pub layers: Range<usize>,
    pub ops: Vec<Op>,
}

/// The whole model as work.
#[derive(Debug, Clone)]
pub struct Plan {
    pub config: Arc<ModelConfig>,
    pub ladders: Ladders,
    pub stages: Vec<Stage>,
}
