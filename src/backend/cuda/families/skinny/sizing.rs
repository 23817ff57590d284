//! Which buckets the skinny kernels serve, and the ring and shared memory of their blocks.

use super::super::limits::Limits;
use crate::backend::cuda::tuning::limits::{
    HEAD_PARTS, SKINNY_EXPERTS, SKINNY_ROWS, expert_words, skinny_predicted_experts,
};
use crate::backend::cuda::tuning::variants::SKINNY_STAGES;
use crate::model::{ModelConfig, WeightFormat};
use crate::plan::Precision;
use crate::sys::abi;
use std::ops::RangeInclusive;

/// Outputs of a tile.
pub const OUTPUTS: u32 = abi::TG_SKINNY_OUTPUTS;
/// Outputs of a tile of gate and up, which has both's weight rows.
pub const GATE_OUTPUTS: u32 = OUTPUTS / 2;
/// Columns of a stage, at most.
const STAGE_COLUMNS: u32 = abi::TG_SKINNY_K;
const CONSUMER_WARPS: u32 = abi::TG_SKINNY_CONSUMER_WARPS;
pub const THREADS: u32 = 32 * (CONSUMER_WARPS + 1);
/// Threads of a block without a ring.
pub const HELD_THREADS: u32 = 32 * CONSUMER_WARPS;
/// Bytes on which weight rows of a stage begin.
const LINE: u32 = abi::TG_SKINNY_LINE;

/// How many parts of 16 bits a row is stored as in a bucket of `rows` rows: those of bf16x3 of f32, and of f16x2 of bf16 beside weights in 8
/// bits. `None`: it is stored whole.
pub fn parts(precision: Precision, rows: u32) -> Option<u32> {
    let parts = match (precision.compute.is_half(), precision.weights) {
        (false, _) => abi::TG_PARTS,
        (true, WeightFormat::E4M3) => abi::TG_SKINNY_F16_PARTS,
        (true, _) => return None,
    };
    (rows <= abi::TG_SKINNY_PARTS_ROWS).then_some(parts)
}

/// One launch's ring and shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ring {
    pub stages: u32,
    pub shared_bytes: u32,
}

/// What sizes these kernels' launches beside the bucket.
#[derive(Debug, Clone, Copy)]
pub struct Sizing {
    pub precision: Precision,
    pub limits: Limits,
    /// Stages of a ring, at most: fewer where there is no room.
    pub stages: u32,
}

/// Places for a tile's sums, as SkinnySums of kernels/skinny/skinny.cuh without LOOSE.
const SUM_PLACES: u32 = 2;

/// What [`Sizing`] counts stages in: a stage of weights in 8 bits has half of the bytes.
const STAGE_WEIGHT_BYTES: u32 = 2;

impl Sizing {
    /// Whether these kernels do the products of a decode bucket of `rows` rows: up to [`SKINNY_ROWS`], of a model whose rows fit
    /// a block's shared memory beside a ring. `experts`: and the experts.
    ///
    /// # Errors
    /// What of the model they have no room for.
    pub fn serves(&self, config: &ModelConfig, rows: u32, experts: bool) -> Result<(), String> {
        if rows as usize > SKINNY_ROWS {
            return Err(format!("the skinny kernels take up to {SKINNY_ROWS}"));
        }
        if experts && config.num_experts > SKINNY_EXPERTS {
            return Err(format!(
                "num_experts is {}, the skinny kernels choose among up to {SKINNY_EXPERTS}",
                config.num_experts
            ));
        }
        let hidden = config.hidden_size as u32;
        let no_room = |what: &str, size: u32| {
            format!(
                "{what} is {size}: {rows} tokens of it and {} stages of weights do not fit a block's {} bytes of shared memory",
                SKINNY_STAGES.start(),
                self.limits.block_bytes
            )
        };
        let choice = experts.then_some(config.num_experts);
        if self.normed(rows, hidden, choice).is_none() {
            return Err(no_room("hidden_size", hidden));
        }
        let beside = choice.map_or(0, |experts| score_bytes(rows, experts as u32));
        let attended = (config.num_attention_heads * config.head_dim) as u32;
        let mut inner = vec![
            ("hidden_size", hidden),
            ("heads * head_dim", attended),
            ("intermediate_size", config.intermediate_size as u32),
        ];
        if experts {
            inner.push(("moe_intermediate_size", config.moe_intermediate_size as u32));
        }
        let fails = |&&(_, inner): &&(&str, u32)| self.adding(rows, inner, beside).is_none();
        match inner.iter().find(fails) {
            None => Ok(()),
            Some(&(what, inner)) => Err(no_room(what, inner)),
        }
    }

    /// Whether one kernel does all of the experts of one row: what its blocks hand to each other is left unsaid by blocks that
    /// predict.
    ///
    /// # Errors
    /// What of the model there is no room for.
    pub fn fuses(&self, config: &ModelConfig) -> Result<(), String> {
        let (hidden, experts) = (config.hidden_size as u32, config.num_experts);
        let inner = config.moe_intermediate_size as u32;
        let per_row = config.num_experts_per_tok as u32;
        if self.fused(hidden, inner, per_row, experts).is_none() {
            return Err(format!(
                "moe_intermediate_size is {inner}, with {per_row} experts a row: the fused experts take up to {STAGE_COLUMNS}, if {} stages of \
                 weights and rows of hidden_size {hidden} fit a block beside",
                SKINNY_STAGES.start()
            ));
        }
        let qkv = (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim;
        for outputs in [hidden, qkv as u32] {
            if self.prediction_blocks(outputs.div_ceil(OUTPUTS), experts) == 0 {
                return Err(format!(
                    "{} multiprocessors leave no room for blocks that predict beside {outputs} outputs, which the fused experts need",
                    self.limits.multiprocessors
                ));
            }
        }
        Ok(())
    }

    /// The ring of the fused experts of one row, `per_row` of `experts`, with stages of either width.
    pub fn fused(&self, width: u32, inner: u32, per_row: u32, experts: usize) -> Option<Ring> {
        let of_value = parts(self.precision, 1).unwrap_or(1);
        let fixed = self.normed_bytes(1, width, Some(experts));
        let handed = CONSUMER_WARPS * (32 * (16 * of_value + 8 * per_row) + 4 * per_row);
        let stage = self.stage_bytes(width).max(self.stage_bytes(inner));
        let fits = inner <= STAGE_COLUMNS;
        fits.then(|| self.ring(fixed + handed, stage))?
    }

    /// The ring of a kernel that norms its rows of `width`, has them in shared memory whole, and chooses among `experts`.
    pub fn normed(&self, rows: u32, width: u32, experts: Option<usize>) -> Option<Ring> {
        let fixed = self.normed_bytes(rows, width, experts);
        self.ring(fixed, self.stage_bytes(width))
    }

    /// What such a kernel has in shared memory beside its ring.
    fn normed_bytes(&self, rows: u32, width: u32, experts: Option<usize>) -> u32 {
        let weight_and_rows = 4 * width + self.row_bytes(rows, width);
        let choice = experts.map_or(0, choice_bytes);
        let places = if self.precision.weights == WeightFormat::E4M3 {
            abi::TG_SKINNY_LOOSE_SUM_PLACES
        } else {
            SUM_PLACES
        };
        sum_bytes(rows, places) + weight_and_rows + choice
    }

    /// The ring of a kernel that adds to the residual stream; its rows come a stage's columns at a time. `beside`: for the
    /// scores.
    pub fn adding(&self, rows: u32, inner: u32, beside: u32) -> Option<Ring> {
        let columns = self.stage_columns(inner);
        // Rows that are copied ahead are whole. Down of a bucket that stores them in parts needs less: two parts of each row.
        let x = if self.precision.weights == WeightFormat::E4M3 && self.precision.compute.is_half()
        {
            abi::TG_SKINNY_ROW_PLACES * rows * self.pitch(columns, self.compute_bytes())
        } else {
            self.row_bytes(rows, columns)
        };
        let (fixed, stage) = (
            sum_bytes(rows, SUM_PLACES) + x + beside,
            self.stage_bytes(inner),
        );
        self.ring(fixed, stage)
    }

    /// Shared memory of a kernel that adds to the residual stream and holds its weights in registers; `None` where they are
    /// too many, or there is no room.
    pub fn holding(&self, rows: u32, inner: u32, beside: u32) -> Option<u32> {
        let bytes = sum_bytes(rows, SUM_PLACES) + self.row_bytes(rows, inner) + beside;
        (inner <= STAGE_COLUMNS && bytes <= self.limits.block_bytes).then_some(bytes)
    }

    /// Blocks that predict for `experts` experts beside those of `tiles` tiles; none where they would take the place of
    /// others.
    pub fn prediction_blocks(&self, tiles: u32, experts: usize) -> u32 {
        let all = self.limits.multiprocessors;
        let blocks = experts.div_ceil(skinny_predicted_experts(experts)) as u32;
        let fits = blocks < all && tiles.div_ceil(all - blocks) == tiles.div_ceil(all);
        if fits { blocks } else { 0 }
    }

    /// Columns of a stage, as skinny_stage_k of kernels/skinny/skinny.cuh.
    fn stage_columns(&self, inner: u32) -> u32 {
        let stages = inner.div_ceil(STAGE_COLUMNS);
        let whole = if stages > 1 {
            abi::TG_PACKED_COLUMNS
        } else {
            abi::TG_SKINNY_UNIT
        };
        inner.div_ceil(stages).next_multiple_of(whole)
    }

    /// Bytes of a stage, as SkinnyPipeline::stage_bytes of kernels/skinny/pipeline.cuh.
    fn stage_bytes(&self, inner: u32) -> u32 {
        let row = self.stage_columns(inner) * self.weight_bytes();
        let scales = if self.precision.weights == WeightFormat::E4M3 {
            LINE
        } else {
            0
        };
        abi::TG_SKINNY_STAGE_ROWS * row.next_multiple_of(LINE) + scales
    }

    fn weight_bytes(&self) -> u32 {
        self.precision.weights.bytes() as u32
    }

    /// Bytes of `columns` of all of a bucket's rows in shared memory.
    fn row_bytes(&self, rows: u32, columns: u32) -> u32 {
        match parts(self.precision, rows) {
            Some(parts) => parts * rows * self.pitch(columns, WeightFormat::BF16.bytes() as u32),
            None => rows * self.pitch(columns, self.compute_bytes()),
        }
    }

    fn compute_bytes(&self) -> u32 {
        self.precision.compute.bytes() as u32
    }

    /// Bytes from a row of `elements` in shared memory to the next one, as skinny_pitch of kernels/skinny/skinny.cuh.
    fn pitch(&self, elements: u32, element_bytes: u32) -> u32 {
        let bytes = elements * element_bytes;
        let is_read_by_fours = element_bytes == 2 && self.weight_bytes() == 2;
        let rest = if is_read_by_fours { 64 } else { 16 };
        bytes + (rest + 128 - bytes % 128) % 128
    }

    /// [`Limits::ring`] of stages of so many bytes.
    fn ring(&self, fixed: u32, stage_bytes: u32) -> Option<Ring> {
        let of_weights = |stages| stages * STAGE_WEIGHT_BYTES / self.weight_bytes();
        let most = of_weights(self.stages).min(abi::TG_SKINNY_MOST_STAGES);
        // The producer has so many stages under way: with fewer it would wait for one that it has filled anew.
        let least = of_weights(*SKINNY_STAGES.start());
        self.limits.ring(fixed, stage_bytes, least..=most)
    }

    /// Blocks for `tiles` tiles, and `others`: one for each SM at most, as the ring is sized for; and no more than it takes for
    /// none to have more tiles than it would then, so that the next kernels find SMs that are free.
    /// And no more than [`HEAD_PARTS`], since the LM head's leave a part each.
    pub fn blocks(&self, tiles: u32, others: u32) -> u32 {
        let most = self.limits.multiprocessors.min(HEAD_PARTS as u32) - others;
        let each = tiles.div_ceil(tiles.min(most));
        tiles.div_ceil(each) + others
    }

    /// Blocks for `tiles` tiles at most: as many as there are SMs, since nobody knows what each will have.
    pub fn blocks_at_most(&self, tiles: u32) -> u32 {
        tiles.min(self.limits.multiprocessors)
    }
}

impl Limits {
    /// So many `stages` as a block has room for beside the `fixed` bytes that it also needs. The first stage begins at a line.
    fn ring(&self, fixed: u32, stage_bytes: u32, stages: RangeInclusive<u32>) -> Option<Ring> {
        let (least, most) = stages.into_inner();
        let fixed = fixed.checked_add(LINE)?;
        let stages = (self.block_bytes.checked_sub(fixed)? / stage_bytes).min(most);
        (stages >= least).then_some(Ring {
            stages,
            shared_bytes: fixed + stages * stage_bytes,
        })
    }
}

/// Bytes of a `SkinnyChoice` (kernels/skinny/choice.cuh).
fn choice_bytes(experts: usize) -> u32 {
    match expert_words(experts) {
        1 => abi::TG_SKINNY_CHOICE_BYTES,
        _ => abi::TG_SKINNY_CHOICE_BYTES_2,
    }
}

fn sum_bytes(rows: u32, places: u32) -> u32 {
    places * CONSUMER_WARPS * rows * abi::TG_SKINNY_SUM_PITCH * 4
}

/// Shared memory of tg_skinny_out_* and tg_skinny_held_out_* for the scores of a tile.
pub fn score_bytes(rows: u32, experts: u32) -> u32 {
    ((rows + experts) * abi::TG_SKINNY_SCORE_PITCH * 4).next_multiple_of(16)
}

#[cfg(test)]
mod tests;
