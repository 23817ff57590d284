//! The experts' products of wide steps: kernels that stream every expert's weights once, on GPUs that have wgmma and the
//! copy engine for tensors (kernels/wide.cuh says how). Here is which buckets they serve, and what their launches look
//! like.

use super::super::launch::{Address, Argument, Kernel, TensorMap};
use super::super::module::{Module, failed};
use super::experts::{ExpertWeights, Routing, most_expert_tiles};
use super::kernels::{Types, suffix};
use super::{Bucket, Enqueue};
use crate::error::Result;
use crate::model::{DType, ModelConfig};
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use std::sync::Arc;

/// Rows of a bucket, at most. Beyond, an expert's rows no longer fit one tile, and its weights are read again.
const ROWS: u32 = 256;
/// Up to so many rows that an expert gets on average, tiles have [`FEW_TILE_ROWS`]: a ring for more has fewer stages.
const FEW_AVERAGE: u32 = 8;
const FEW_TILE_ROWS: u32 = 32;
const TILE_ROWS: u32 = 64;
/// From so many pairs for each expert on, hardly one is without rows: blocks then guess which they will be given.
const GUESS_PAIRS: u32 = 4;
/// Stages of a ring: more make what else is read wait longer, and it was slower.
const STAGES: u32 = 6;

// As kernels/wide.cuh and wide_plan.cuh have it.
const OUTPUTS: u32 = 128;
const COLUMNS: u32 = 64;
const ROW_BYTES: u32 = 128;
const ALIGN_BYTES: u32 = 1024;
const THREADS: u32 = 32 * (8 + 3 + 1);
const MOST_TILES: u32 = 256;

/// The kernels for one pair of types, on a GPU that has what they need.
#[derive(Debug)]
pub struct Wide {
    gate_up: Kernel,
    down: Kernel,
    operand: DType,
    weights: DType,
    multiprocessors: u32,
}

/// Matrices of a kind, one for each expert, as the copy engine reads them: boxes of 64 columns by 128 rows, in which 8
/// rows of `first` and 8 of the second matrix take turns.
#[derive(Debug, Clone, Copy)]
struct Matrices {
    first: Address,
    /// Bytes from 8 rows to those they take turns with.
    pair_bytes: u64,
    /// Bytes from one such pair to the next.
    next_bytes: u64,
    /// Such pairs of an expert.
    pairs: u32,
    /// Columns, and elements of a row.
    inner: u32,
    /// Elements from one expert to the next.
    stride: u64,
}

impl Wide {
    /// None where the GPU is not of 9.0 or the types have no such kernels: f32 rows with other than bf16 weights.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn load(module: &Arc<Module>, types: Types) -> Result<Option<Self>> {
        let attribute = |attribute| {
            let refused = |error| failed("asking for a GPU's attributes", error);
            let value = module.context().attribute(attribute).map_err(refused)?;
            Ok::<_, crate::error::Error>(value as u32)
        };
        let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        let served = types.operand == types.weights && types.operand != DType::F32
            || (types.operand, types.weights) == (DType::F32, DType::BF16);
        if (major, minor) != (9, 0) || !served {
            return Ok(None);
        }
        let kernel = |name: &str| {
            let kernel = module.kernel(&format!("tg_wide_{name}_{}", suffix(types.operand)))?;
            let most = [FEW_TILE_ROWS, TILE_ROWS].map(|rows| shared_bytes(types.operand, rows));
            kernel.allow_shared(most[0].max(most[1]))?;
            Ok::<_, crate::error::Error>(kernel)
        };
        Ok(Some(Self {
            gate_up: kernel("gate_up")?,
            down: kernel("down")?,
            operand: types.operand,
            weights: types.weights,
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        }))
    }

    /// Whether these kernels do a bucket's experts.
    fn serves(&self, config: &ModelConfig, bucket: Bucket) -> bool {
        let (experts, top_k) = (
            config.num_experts as u32,
            config.num_experts_per_tok as u32,
        );
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

    fn tensor(&self, matrices: &Matrices, experts: u32) -> Result<TensorMap> {
        let row = 2 * u64::from(matrices.inner);
        TensorMap::of(
            self.weights,
            matrices.first,
            [
                u64::from(matrices.inner),
                8,
                2,
                u64::from(matrices.pairs),
                u64::from(experts),
            ],
            [
                row,
                matrices.pair_bytes,
                matrices.next_bytes,
                2 * matrices.stride,
            ],
            [COLUMNS, 8, 2, OUTPUTS / 16, 1],
        )
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
    /// The kernels for wide steps, where they serve this bucket's experts.
    pub(super) fn wide(&self) -> Option<&Wide> {
        let wide = self.kernels.wide.as_ref()?;
        wide.serves(self.config, self.bucket).then_some(wide)
    }

    /// Blocks, and expert tiles at most.
    fn wide_grid(&self, wide: &Wide, slices: u32) -> ((u32, u32, u32), u32) {
        let tiles = most_expert_tiles(
            self.bucket.rows,
            self.config.num_experts as u32,
            self.config.num_experts_per_tok as u32,
            wide.tile_rows(self.config, self.bucket),
        );
        ((wide.multiprocessors.min(tiles * slices), 1, 1), tiles)
    }

    /// [`Enqueue::expert_gate_up`].
    ///
    /// # Safety
    /// As there.
    pub(super) unsafe fn wide_gate_up(
        &self,
        wide: &Wide,
        routing: &Routing,
        weights: &ExpertWeights,
        y: Address,
        x: Address,
    ) -> Result<()> {
        let (experts, hidden) = (self.config.num_experts as u32, self.hidden());
        let inner = self.config.moe_intermediate_size as u32;
        let tile_rows = wide.tile_rows(self.config, self.bucket);
        let tensor = wide.tensor(
            &Matrices {
                first: weights.gate.min(weights.up),
                pair_bytes: weights.gate.abs_diff(weights.up),
                next_bytes: 2 * 8 * u64::from(hidden),
                pairs: inner / 8,
                inner: hidden,
                stride: weights.gate_up_stride,
            },
            experts,
        )?;
        let (grid, most_tiles) = self.wide_grid(wide, (2 * inner).div_ceil(OUTPUTS));
        let pairs = self.bucket.rows * self.config.num_experts_per_tok as u32;
        let guess = pairs >= GUESS_PAIRS * experts;
        let arguments = [
            Argument::Tensor(tensor),
            Argument::Address(y),
            Argument::Address(x),
            Argument::Address(routing.tiles),
            Argument::Address(routing.tile_count),
            Argument::Address(routing.rows),
            Argument::U32(if guess { experts } else { 0 }),
            Argument::U32(most_tiles),
            Argument::U32(inner),
            Argument::U32(hidden),
            Argument::U32(tile_rows),
            Argument::U32(STAGES),
            Argument::U32(u32::from(weights.up < weights.gate)),
        ];
        let shared = shared_bytes(wide.operand, tile_rows);
        // SAFETY: the caller's promise; these are tg_wide_gate_up_*'s arguments.
        unsafe { self.launch(&wide.gate_up, grid, THREADS, shared, &arguments) }
    }

    /// partial f32 `[R K, H]`, by place = w2_e y: what [`Enqueue::expert_down`] sums.
    ///
    /// # Safety
    /// As there; nothing was launched since [`Enqueue::wide_gate_up`], before whose end this reads what the token sort
    /// left.
    pub(super) unsafe fn wide_down(
        &self,
        wide: &Wide,
        routing: &Routing,
        weights: &ExpertWeights,
        partial: Address,
        y: Address,
    ) -> Result<()> {
        let (experts, hidden) = (self.config.num_experts as u32, self.hidden());
        let inner = self.config.moe_intermediate_size as u32;
        let tile_rows = wide.tile_rows(self.config, self.bucket);
        let tensor = wide.tensor(
            &Matrices {
                first: weights.down,
                pair_bytes: 2 * 8 * u64::from(inner),
                next_bytes: 2 * 16 * u64::from(inner),
                pairs: hidden / 16,
                inner,
                stride: weights.down_stride,
            },
            experts,
        )?;
        let (grid, most_tiles) = self.wide_grid(wide, hidden.div_ceil(OUTPUTS));
        let arguments = [
            Argument::Tensor(tensor),
            Argument::Address(partial),
            Argument::Address(y),
            Argument::Address(routing.tiles),
            Argument::Address(routing.tile_count),
            Argument::U32(most_tiles),
            Argument::U32(hidden),
            Argument::U32(inner),
            Argument::U32(tile_rows),
            Argument::U32(STAGES),
        ];
        let shared = shared_bytes(wide.operand, tile_rows);
        // SAFETY: the caller's promise; these are tg_wide_down_*'s arguments.
        unsafe { self.launch(&wide.down, grid, THREADS, shared, &arguments) }
    }
}
