//! A model as work: stages of operations, bucket sizes, what each operation moves and computes, and how
//! much memory a run needs. Knows the model's shape, no backend; uses `model`, `sys` and `error` only.
//!
//! - [`build`]: a configuration as stages of operations
//! - [`layer_range`]: what one device has of a model
//! - [`graphs`]: bucket sizes and stage cuts from `graphs/*.toml`
//! - [`cost`]: an operation's bytes and FLOPs
//! - [`options`], [`memory`], [`budget`]: the sizes an engine starts with, and whether they fit; `core_bytes`: what the
//!   scheduler takes of it
//! - `needed`: which rows the last layers compute

pub mod budget;
pub mod build;
mod core_bytes;
pub mod cost;
pub mod graphs;
pub mod layer_range;
pub mod memory;
mod needed;
pub mod options;

pub use budget::Budget;
pub use cost::{Activations, Cost, Precision, StepShape};
pub use graphs::GraphFile;
pub use layer_range::LayerRange;
pub use memory::{MemoryPlan, Place, WeightPlacement};
pub use needed::NeededRows;
pub use options::{EngineOptions, Limits, Prompts, RingCapacities, Usual};

use crate::error::{Error, Result};
use crate::model::ModelConfig;
pub use crate::model::op::{Op, OpKind};
use crate::sys::abi;
use std::ops::Range;
use std::sync::Arc;

/// Limits of kernels/abi.h.
pub const MAX_SEQS: u32 = abi::TG_MAX_SLOTS;
pub const MAX_STEPS_IN_FLIGHT: u32 = abi::TG_MAX_STEPS;
pub const MAX_STAGES: usize = abi::TG_MAX_STAGES as usize;
pub const MAX_BUCKETS: usize = abi::TG_MAX_BUCKETS as usize;

/// What a step computes; each kind has its own bucket sizes. The numbers are `TG_KIND_*` of kernels/abi.h.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum StepKind {
    /// One row a sequence.
    Decode = 0,
    /// Prompt chunks too; LM head for the sampled rows only.
    Mixed = 1,
    /// LM head for every row, in tiles of [`SCORE_TILE_ROWS`].
    Score = 2,
}

impl StepKind {
    pub const ALL: [Self; 3] = [Self::Decode, Self::Mixed, Self::Score];

    /// The name in `graphs/*.toml` and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode",
            Self::Mixed => "mixed",
            Self::Score => "score",
        }
    }
}

pub const SCORE_TILE_ROWS: usize = 512;

/// Bucket sizes in rows, ascending, for each kind of step.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BucketSizes {
    pub decode: Vec<u32>,
    pub mixed: Vec<u32>,
    pub score: Vec<u32>,
}

impl BucketSizes {
    pub fn of(&self, kind: StepKind) -> &[u32] {
        match kind {
            StepKind::Decode => &self.decode,
            StepKind::Mixed => &self.mixed,
            StepKind::Score => &self.score,
        }
    }

    /// The buckets that some step of these sizes needs: who captures a graph for each captures no more than these.
    pub fn reachable(&self, options: &EngineOptions) -> Self {
        let up_to = |sizes: &[u32], rows: u32| {
            let needed = sizes.partition_point(|&bucket| bucket < rows) + 1;
            sizes[..needed.min(sizes.len())].to_vec()
        };
        Self {
            decode: up_to(&self.decode, options.max_seqs),
            mixed: up_to(&self.mixed, options.step_tokens),
            score: up_to(&self.score, options.step_tokens),
        }
    }

    /// All buckets of `kinds`, and of the others the largest alone: for whoever takes no step of these. A scheduler wants
    /// that one all the same.
    pub fn only(&self, kinds: &[StepKind]) -> Self {
        let kept = |kind| {
            let sizes = self.of(kind);
            let first = if kinds.contains(&kind) {
                0
            } else {
                sizes.len().saturating_sub(1)
            };
            sizes[first..].to_vec()
        };
        Self {
            decode: kept(StepKind::Decode),
            mixed: kept(StepKind::Mixed),
            score: kept(StepKind::Score),
        }
    }

    /// Rows of the largest bucket of all.
    pub fn largest(&self) -> u32 {
        let bucket_sizes = StepKind::ALL.map(|kind| self.of(kind).last().copied());
        bucket_sizes.into_iter().flatten().max().unwrap_or(0)
    }

    /// The smallest bucket of `kind` that holds `rows`; `None` where the largest is too small.
    pub fn bucket(&self, kind: StepKind, rows: u32) -> Option<u32> {
        self.of(kind).iter().copied().find(|&bucket| bucket >= rows)
    }
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
    pub bucket_sizes: BucketSizes,
    pub stages: Vec<Stage>,
}

impl Plan {
    /// The stages of each of so many devices: neighbours are together, and each device has about as many.
    ///
    /// # Errors
    /// [`Error::Usage`]: there are more devices than stages.
    pub fn shares(&self, devices: usize) -> Result<Vec<&[Stage]>> {
        let count = self.stages.len();
        if devices == 0 || devices > count {
            return Err(Error::Usage(format!(
                "{devices} devices for {count} stages: expected at least one stage for each device"
            )));
        }
        let of_device =
            |a: &Stage, b: &Stage| a.index * devices / count == b.index * devices / count;
        Ok(self.stages.chunk_by(of_device).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reachable_bucket_sizes_end_with_the_bucket_that_holds_the_largest_step() {
        let bucket_sizes = BucketSizes {
            decode: vec![1, 2, 4, 8],
            mixed: vec![512, 1024],
            score: vec![600],
        };
        let options = EngineOptions {
            max_seqs: 3,
            max_context: 64,
            page_tokens: 16,
            pages: 12,
            step_tokens: 512,
            chunk_tokens: 512,
            chunk_share: 0,
            chunk_align: 64,
            steps_in_flight: 1,
            prefixes: 0,
            record: false,
        };
        let reachable = bucket_sizes.reachable(&options);
        assert_eq!(reachable.decode, [1, 2, 4]);
        assert_eq!(reachable.mixed, [512]);
        assert_eq!(reachable.score, [600]);
        assert_eq!(reachable.largest(), 600);
    }
}
