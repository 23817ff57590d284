//! The experts' products of wide steps: a kernel that streams every expert's weights once, on GPUs that have wgmma and the
//! copy engine for tensors (kernels/wide.cuh says how). Here is which buckets it serves, and what its launches look like.

use super::super::launch::{Argument, Kernel};
use super::super::module::Module;
use super::super::tensor_map::{Boxes, TensorMap};
use super::experts::{ExpertRows, ExpertWeights, Routing, most_expert_tiles};
use super::kernels::{Types, suffix};
use super::limits::{Limits, has_warpgroups};
use super::{Bucket, Enqueue};
use crate::error::Result;
use crate::model::{DType, ModelConfig};
use std::sync::Arc;

/// Rows of a bucket, at most. Beyond, an expert's rows no longer fit one tile, and its weights are read again.
const ROWS: u32 = 256;
/// Up to so many rows that an expert gets on average, tiles have [`FEW_TILE_ROWS`]: a ring for more has fewer stages.
const FEW_AVERAGE: u32 = 8;
const FEW_TILE_ROWS: u32 = 32;
const TILE_ROWS: u32 = 64;
/// From so many pairs for each expert on, hardly one is without rows: blocks then guess which they will be given.
const GUESS_PAIRS: u32 = 4;
/// Stages of a ring: what is read besides waits behind all that was asked for, so that more of them were slower.
const STAGES: u32 = 6;

// As kernels/wide.cuh and wide_plan.cuh have it.
const OUTPUTS: u32 = 128;
const GROUP_ROWS: u32 = 16;
const COLUMNS: u32 = 64;
const ROW_BYTES: u32 = 128;
const ALIGN_BYTES: u32 = 1024;
const THREADS: u32 = 32 * (8 + 3 + 1);
const MOST_TILES: u32 = 256;
const MOST_BLOCKS: u32 = 384;

/// The kernel for one pair of types, on a GPU that has what it needs.
#[derive(Debug)]
pub struct Wide {
    experts: Kernel,
    operand: DType,
    weights: DType,
    multiprocessors: u32,
}

impl Wide {
    /// None where the GPU is not of 9.0 or the types have no such a kernel: f32 rows with other than bf16 weights.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn load(module: &Arc<Module>, types: Types) -> Result<Option<Self>> {
        if !has_warpgroups(module)? || !types.are_streamed() {
            return Ok(None);
        }
        let experts = module.kernel(&format!("tg_wide_experts_{}", suffix(types.operand)))?;
        let most = [FEW_TILE_ROWS, TILE_ROWS].map(|rows| shared_bytes(types.operand, rows));
        experts.allow_shared(most[0].max(most[1]))?;
        Ok(Some(Self {
            experts,
            operand: types.operand,
            weights: types.weights,
            multiprocessors: Limits::of(module)?.multiprocessors,
        }))
    }

    /// Whether this kernel does a bucket's experts.
    fn serves(&self, config: &ModelConfig, bucket: Bucket) -> bool {
        let (experts, top_k) = (config.num_experts as u32, config.num_experts_per_tok as u32);
        let tile_rows = self.tile_rows(config, bucket);
        bucket.rows <= ROWS
            && most_expert_tiles(bucket.rows, experts, top_k, tile_rows) <= MOST_TILES
    }

    /// Rows of an expert tile, at most.
    pub fn tile_rows(&self, config: &ModelConfig, bucket: Bucket) -> u32 {
        let pairs = bucket.rows * config.num_experts_per_tok as u32;
        let average = pairs.div_ceil(config.num_experts.max(1) as u32);
        match self.operand {
            DType::F32 => FEW_TILE_ROWS,
            _ if average <= FEW_AVERAGE => FEW_TILE_ROWS,
            _ => TILE_ROWS,
        }
    }
}

/// Dynamic shared memory of a block whose tiles have up to `tile_rows` rows: wide_stage_bytes and what aligns the first
/// stage.
fn shared_bytes(operand: DType, tile_rows: u32) -> u32 {
    let parts = if operand == DType::F32 { 3 } else { 1 };
    let tile_rows = if operand == DType::F32 {
        tile_rows.min(FEW_TILE_ROWS)
    } else {
        tile_rows
    };
    STAGES * ROW_BYTES * (OUTPUTS + parts * tile_rows) + ALIGN_BYTES
}

impl Enqueue<'_> {
    /// The kernel for wide steps, where it serves this bucket's experts.
    pub(super) fn wide(&self) -> Option<&Wide> {
        let wide = self.kernels.wide.as_ref()?;
        wide.serves(self.config, self.bucket).then_some(wide)
    }

    /// y and partial: all of [`Enqueue::expert_gate_up`], and of [`Enqueue::expert_down`] what comes before the sum.
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn wide_experts(
        &self,
        wide: &Wide,
        routing: &Routing,
        weights: &ExpertWeights,
        rows: &ExpertRows,
    ) -> Result<()> {
        let config = self.config;
        let (experts, top_k) = (config.num_experts as u32, config.num_experts_per_tok as u32);
        let (hidden, inner) = (self.hidden(), config.moe_intermediate_size as u32);
        // 64 columns by 128 rows, in groups of 16: 8 of gate and 8 of up, or 16 of down.
        let boxes = |at, columns: u32, groups: u32, strides| Boxes {
            at,
            dtype: wide.weights,
            sizes: [columns, 8, 2, groups, experts].map(u64::from),
            strides,
            each: [COLUMNS, 8, 2, OUTPUTS / GROUP_ROWS, 1],
        };
        let (x_row, y_row) = (2 * u64::from(hidden), 2 * u64::from(inner));
        let apart = weights.gate.abs_diff(weights.up);
        let expert = 2 * weights.gate_up_stride;
        let strides = [2, x_row, apart, 8 * x_row, expert];
        let gate_up = boxes(weights.gate.min(weights.up), hidden, inner / 8, strides);
        let strides = [2, y_row, 8 * y_row, 16 * y_row, 2 * weights.down_stride];
        let down = boxes(weights.down, inner, hidden / GROUP_ROWS, strides);
        let tile_rows = wide.tile_rows(config, self.bucket);
        let most_tiles = most_expert_tiles(self.bucket.rows, experts, top_k, tile_rows);
        let guess = self.bucket.rows * top_k >= GUESS_PAIRS * experts;
        let arguments = [
            Argument::TensorMap(TensorMap::new(&gate_up)?),
            Argument::TensorMap(TensorMap::new(&down)?),
            Argument::Address(rows.partial),
            Argument::Address(rows.y),
            Argument::Address(rows.x),
            Argument::Address(routing.tiles),
            Argument::Address(routing.tile_count),
            Argument::Address(routing.rows),
            Argument::U32(if guess { experts } else { 0 }),
            Argument::U32(most_tiles),
            Argument::U32(hidden),
            Argument::U32(inner),
            Argument::U32(tile_rows),
            Argument::U32(STAGES),
            Argument::U32(u32::from(weights.up < weights.gate)),
        ];
        let grid = (wide.multiprocessors.min(MOST_BLOCKS), 1, 1);
        let shared = shared_bytes(wide.operand, tile_rows);
        // SAFETY: the caller's promise; these are tg_wide_experts_*'s arguments.
        unsafe { self.launch(&wide.experts, grid, THREADS, shared, &arguments) }
    }
}
