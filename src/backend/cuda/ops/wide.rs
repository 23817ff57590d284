//! The experts' products of wide steps: a kernel that streams every expert's weights once, on GPUs that have wgmma and the
//! copy engine for tensors (kernels/wide.cuh says how). Here is which buckets it serves, and what its launches look like.

use super::super::launch::{Address, Argument, Kernel};
use super::super::module::{Module, failed};
use super::super::tensor_map::TensorMap;
use super::experts::{ExpertRows, ExpertWeights, Routing, most_expert_tiles};
use super::kernels::{Types, suffix};
use super::limits::{Limits, has_warpgroups};
use super::{Bucket, Enqueue};
use crate::error::Result;
use crate::model::{DType, ModelConfig};
use cudarc::driver::sys;
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

/// Matrices of 16-bit elements, one for each expert, as the copy engine reads them: in groups of 16 rows, 8 and 8.
#[derive(Debug, Clone, Copy)]
struct Matrices {
    at: Address,
    /// Bytes from the first 8 rows of a group to the others.
    half_bytes: u64,
    /// Bytes from one group to the next.
    group_bytes: u64,
    /// Groups of an expert.
    groups: u32,
    /// Elements of a row.
    columns: u32,
    /// Elements from one expert to the next.
    stride: u64,
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

    /// Boxes of 64 columns by 128 rows; what of one lies past its matrix is zeros.
    fn tensor_map(&self, matrices: &Matrices, experts: u32) -> Result<TensorMap> {
        let element = match self.weights {
            DType::F16 => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            _ => sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        };
        let sizes = [matrices.columns, 8, 2, matrices.groups, experts].map(u64::from);
        let strides = [
            2 * u64::from(matrices.columns),
            matrices.half_bytes,
            matrices.group_bytes,
            2 * matrices.stride,
        ];
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        // SAFETY: the map and the arrays, of five dimensions, live through the call; nothing is read through the address.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                element,
                5,
                matrices.at as *mut _,
                sizes.as_ptr(),
                strides.as_ptr(),
                [COLUMNS, 8, 2, OUTPUTS / GROUP_ROWS, 1].as_ptr(),
                [1; 5].as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                // With 256 bytes such boxes come at 4.2 TB/s on an H200, with these at 4.5.
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(|error| failed(&format!("making a tensor map of {matrices:?}"), error))?;
        Ok(TensorMap(map))
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
        let gate_up = Matrices {
            at: weights.gate.min(weights.up),
            half_bytes: weights.gate.abs_diff(weights.up),
            group_bytes: 2 * 8 * u64::from(hidden),
            groups: inner / 8,
            columns: hidden,
            stride: weights.gate_up_stride,
        };
        let down = Matrices {
            at: weights.down,
            half_bytes: 2 * 8 * u64::from(inner),
            group_bytes: 2 * 16 * u64::from(inner),
            groups: hidden / GROUP_ROWS,
            columns: inner,
            stride: weights.down_stride,
        };
        let tile_rows = wide.tile_rows(config, self.bucket);
        let most_tiles = most_expert_tiles(self.bucket.rows, experts, top_k, tile_rows);
        let guess = self.bucket.rows * top_k >= GUESS_PAIRS * experts;
        let arguments = [
            Argument::TensorMap(wide.tensor_map(&gate_up, experts)?),
            Argument::TensorMap(wide.tensor_map(&down, experts)?),
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
