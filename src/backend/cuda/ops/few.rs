//! Decode steps of few rows: products that stream their weights, with what stands between them folded in
//! (kernels/few.cuh says how). Here is which buckets they serve, and what their launches look like.
//!
//! | kernel | operations |
//! |---|---|
//! | `tg_few_conv_*` | operator norm, in-projection, short convolution |
//! | `tg_few_project_*` | operator norm and q, k, v; or final norm and LM head |
//! | `tg_few_out_*` | out-projection, or a dense feed-forward's down; the router's scores, in parts |
//! | `tg_few_gate_up_*` | FFN norm and a dense feed-forward's gate and up |
//! | `tg_few_expert_gate_up_*` | the router's choice, FFN norm, gate and up of the chosen experts |
//! | `tg_few_down_*` | the chosen experts' down and their sum |

use super::super::launch::{Address, Argument, Kernel};
use super::super::module::Module;
use super::conv::ShortConv;
use super::experts::{ExpertWeights, RouterWeights, Routing};
use super::kernels::{Types, suffix};
use super::limits::{Limits, has_bulk_copies};
use super::{Bucket, Enqueue};
use crate::error::Result;
use crate::model::ModelConfig;
use crate::plan::StepKind;
use crate::plan::arena::{FEW_EXPERTS, FEW_OUTPUTS, FEW_ROWS};
use std::sync::Arc;

/// Outputs of a tile, as kernels/few.cuh has it.
const OUTPUTS: u32 = FEW_OUTPUTS as u32;
/// Outputs of a tile of gate and up, which has both's weight rows.
const GATE_OUTPUTS: u32 = OUTPUTS / 2;
/// Weight rows of a stage of the ring.
const STAGE_ROWS: u32 = 8;
/// Columns of a stage, at most, and what they are a multiple of.
const STAGE_COLUMNS: u32 = 2048;
const UNIT: u32 = 32;
const CONSUMER_WARPS: u32 = 8;
const THREADS: u32 = 32 * (CONSUMER_WARPS + 1);
const SUM_PITCH: u32 = OUTPUTS + 4;
/// Floats between the rows of what tg_few_out_* makes scores of (kernels/few_add.cu).
const SCORE_PITCH: u32 = OUTPUTS + 1;
/// `FewChoice` of kernels/few_choice.cuh, which asserts it.
const CHOICE_BYTES: u32 = 1376;
/// Stages of a ring: as many as keep the memory busy. Fewer where there is no room, at least what overlaps at all.
const STAGES: u32 = 4;
const FEWEST_STAGES: u32 = 2;
/// The kernels for one pair of types, on a GPU that has bulk copies.
#[derive(Debug)]
pub struct Few {
    conv: Kernel,
    project: Kernel,
    gate_up: Kernel,
    expert_gate_up: Kernel,
    out: Kernel,
    down: Kernel,
    operand_bytes: u32,
    limits: Limits,
}

/// One launch's ring and shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Ring {
    stages: u32,
    shared_bytes: u32,
}

/// Weights and biases of a conv layer up to its out-projection; shapes as [`ShortConv`] has them.
#[derive(Debug, Clone, Copy)]
pub struct ConvIn {
    /// f32 `[H]`
    pub norm: Address,
    /// `[3H, H]`
    pub in_proj: Address,
    /// f32 `[3H]`, or 0.
    pub bias: Address,
}

/// A product that adds to the residual stream.
#[derive(Debug, Clone, Copy)]
pub struct Residual {
    /// `[R, inner]`, operand type.
    pub x: Address,
    /// `[H, inner]`
    pub w: Address,
    /// f32 `[H]`, or 0.
    pub bias: Address,
    pub inner: u32,
}

impl Few {
    /// None where the GPU is older than 9.0 or the types have no such kernels: f32 rows with other than bf16 weights.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn load(module: &Arc<Module>, types: Types) -> Result<Option<Self>> {
        if !has_bulk_copies(module)? || !types.are_streamed() {
            return Ok(None);
        }
        let limits = Limits::of(module)?;
        let kernel = |name: &str| {
            let kernel = module.kernel(&format!("tg_few_{name}_{}", suffix(types.operand)))?;
            kernel.allow_shared(limits.block_bytes)?;
            Ok::<_, crate::error::Error>(kernel)
        };
        Ok(Some(Self {
            conv: kernel("conv")?,
            project: kernel("project")?,
            gate_up: kernel("gate_up")?,
            expert_gate_up: kernel("expert_gate_up")?,
            out: kernel("out")?,
            down: kernel("down")?,
            operand_bytes: types.operand.bytes() as u32,
            limits,
        }))
    }

    /// Whether these kernels do a bucket's steps: decode steps of up to [`FEW_ROWS`] rows, of a model whose rows fit a
    /// block's shared memory beside a ring and whose experts a warp has a lane for each. What they do not serve, and all
    /// on older GPUs, goes to the kernels for any shape.
    fn serves(&self, config: &ModelConfig, bucket: Bucket) -> bool {
        let hidden = config.hidden_size as u32;
        let beside = CHOICE_BYTES.max(score_bytes(bucket.rows, config.num_experts as u32));
        let attended = (config.num_attention_heads * config.head_dim) as u32;
        let inner = [config.intermediate_size, config.moe_intermediate_size];
        bucket.kind == StepKind::Decode
            && bucket.rows as usize <= FEW_ROWS
            && config.num_experts <= FEW_EXPERTS
            && self.normed(bucket.rows, hidden, true).is_some()
            && inner
                .map(|inner| inner as u32)
                .into_iter()
                .chain([hidden, attended])
                .all(|inner| self.adding(bucket.rows, inner, beside).is_some())
    }

    /// Of a kernel that norms its rows of `width` and has them in shared memory whole.
    fn normed(&self, rows: u32, width: u32, choice: bool) -> Option<Ring> {
        let weight_and_rows = 4 * width + rows * pitch(width, self.operand_bytes);
        let choice = if choice { CHOICE_BYTES } else { 0 };
        let fixed = sum_bytes(rows) + weight_and_rows + choice;
        self.limits.ring(fixed, stage_bytes(width))
    }

    /// Of a kernel that adds to the residual stream; its rows come a stage's columns at a time. `beside`: for the choice
    /// or the scores.
    fn adding(&self, rows: u32, inner: u32, beside: u32) -> Option<Ring> {
        let x = rows * pitch(stage_columns(inner), self.operand_bytes);
        self.limits
            .ring(sum_bytes(rows) + x + beside, stage_bytes(inner))
    }

    /// Blocks for `tiles` tiles: one for each SM at most, as the ring is sized for.
    fn blocks(&self, tiles: u32) -> (u32, u32, u32) {
        (tiles.min(self.limits.multiprocessors), 1, 1)
    }
}

impl Limits {
    /// [`STAGES`] stages, or as many as a block has room for beside the `fixed` bytes that it also needs.
    fn ring(&self, fixed: u32, stage_bytes: u32) -> Option<Ring> {
        let stages = (self.block_bytes.checked_sub(fixed)? / stage_bytes).min(STAGES);
        (stages >= FEWEST_STAGES).then_some(Ring {
            stages,
            shared_bytes: fixed + stages * stage_bytes,
        })
    }
}

/// Bytes from a row of `elements` in shared memory to the next one, as few_pitch of kernels/few.cuh.
fn pitch(elements: u32, element_bytes: u32) -> u32 {
    let bytes = elements * element_bytes;
    let rest = if element_bytes == 2 { 64 } else { 16 };
    bytes + (rest + 128 - bytes % 128) % 128
}

/// Columns of a stage, as few_stage_k there.
fn stage_columns(inner: u32) -> u32 {
    let stages = inner.div_ceil(STAGE_COLUMNS);
    inner.div_ceil(stages).next_multiple_of(UNIT)
}

/// Weights have 16 bits in all of these kernels.
fn stage_bytes(inner: u32) -> u32 {
    STAGE_ROWS * pitch(stage_columns(inner), 2)
}

fn sum_bytes(rows: u32) -> u32 {
    2 * CONSUMER_WARPS * rows * SUM_PITCH * 4
}

/// Shared memory of tg_few_out_* for the scores of a tile.
fn score_bytes(rows: u32, experts: u32) -> u32 {
    ((rows + experts) * SCORE_PITCH * 4).next_multiple_of(16)
}

impl Enqueue<'_> {
    /// The kernels for few rows, where they serve this bucket.
    pub fn few(&self) -> Option<&Few> {
        let few = self.kernels.few.as_ref()?;
        few.serves(self.config, self.bucket).then_some(few)
    }

    /// A launch with one of [`Few`]'s kernels; `ring` is that of shapes that [`Few::serves`].
    ///
    /// # Safety
    /// [`Enqueue`]'s; these are the kernel's arguments.
    unsafe fn launch_few(
        &self,
        kernel: &Kernel,
        grid: (u32, u32, u32),
        ring: Ring,
        arguments: &[Argument],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.launch(kernel, grid, THREADS, ring.shared_bytes, arguments) }
    }

    /// x = C * conv(B * X) of (B, C, X) = in_proj(rmsnorm(h)); the state moves on. `conv.bcx` is not used.
    ///
    /// # Safety
    /// [`Enqueue`]'s; shapes as [`ShortConv`] and [`ConvIn`] say, h f32 `[R, H]`.
    pub unsafe fn few_conv(
        &self,
        few: &Few,
        conv: &ShortConv,
        weights: &ConvIn,
        h: Address,
    ) -> Result<()> {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let ring = few.normed(rows, hidden, false).expect("served");
        let arrays = [
            Argument::Address(conv.x),
            Argument::Address(conv.state),
            Argument::Address(h),
            Argument::Address(weights.norm),
            Argument::Address(weights.in_proj),
        ];
        let sizes = [
            Argument::U32(rows),
            Argument::U32(ring.stages),
            Argument::F32(self.config.norm_eps),
        ];
        let arguments = [&arrays[..], &self.fused_conv(conv, weights.bias), &sizes].concat();
        let grid = few.blocks(hidden / OUTPUTS);
        // SAFETY: the caller's promise; these are tg_few_conv_*'s arguments.
        unsafe { self.launch_few(&few.conv, grid, ring, &arguments) }
    }

    /// y `[R, outputs]` in the operand type = w `[outputs, H]` times rmsnorm(h f32 `[R, H]`).
    ///
    /// # Safety
    /// [`Enqueue`]'s.
    pub unsafe fn few_project(
        &self,
        few: &Few,
        y: Address,
        h: Address,
        norm: Address,
        w: Address,
        outputs: u32,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.few_product(few, y, h, norm, w, outputs, false) }
    }

    /// logits f32 `[S, V]` = lm_head `[V, H]` times rmsnorm(h f32 `[R, H]`) of the sampled rows.
    ///
    /// # Safety
    /// [`Enqueue`]'s.
    pub unsafe fn few_lm_head(
        &self,
        few: &Few,
        logits: Address,
        h: Address,
        norm: Address,
        lm_head: Address,
    ) -> Result<()> {
        let outputs = self.config.vocab_size as u32;
        // SAFETY: the caller's promise.
        unsafe { self.few_product(few, logits, h, norm, lm_head, outputs, true) }
    }

    #[allow(clippy::too_many_arguments)]
    unsafe fn few_product(
        &self,
        few: &Few,
        y: Address,
        h: Address,
        norm: Address,
        w: Address,
        outputs: u32,
        logits: bool,
    ) -> Result<()> {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let ring = few.normed(rows, hidden, false).expect("served");
        let arguments = [
            Argument::Address(y),
            Argument::Address(h),
            Argument::Address(norm),
            Argument::Address(w),
            Argument::Address(self.state),
            Argument::Address(self.step),
            Argument::U32(outputs),
            Argument::U32(hidden),
            Argument::U32(rows),
            Argument::U32(u32::from(logits)),
            Argument::U32(u32::from(logits)),
            Argument::U32(ring.stages),
            Argument::F32(self.config.norm_eps),
        ];
        let grid = few.blocks(outputs.div_ceil(OUTPUTS));
        // SAFETY: the caller's promise; these are tg_few_project_*'s arguments.
        unsafe { self.launch_few(&few.project, grid, ring, &arguments) }
    }

    /// h f32 `[R, H]` += w x + bias; with `router` also each tile's part of the scores of what h then is.
    ///
    /// # Safety
    /// [`Enqueue`]'s; shapes as [`Residual`], [`RouterWeights`] and [`Routing`] say.
    pub unsafe fn few_out(
        &self,
        few: &Few,
        h: Address,
        product: &Residual,
        router: Option<(&Routing, &RouterWeights)>,
    ) -> Result<()> {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let experts = router.map_or(0, |_| self.config.num_experts as u32);
        let beside = router.map_or(0, |_| score_bytes(rows, experts));
        let ring = few.adding(rows, product.inner, beside).expect("served");
        let arguments = [
            Argument::Address(h),
            Argument::Address(product.x),
            Argument::Address(product.w),
            Argument::Address(product.bias),
            Argument::Address(router.map_or(0, |(routing, _)| routing.score_parts)),
            Argument::Address(router.map_or(0, |(_, weights)| weights.gate)),
            Argument::Address(router.map_or(0, |(_, weights)| weights.norm)),
            Argument::Address(self.step),
            Argument::U32(hidden),
            Argument::U32(product.inner),
            Argument::U32(experts),
            Argument::U32(rows),
            Argument::U32(ring.stages),
        ];
        let grid = few.blocks(hidden / OUTPUTS);
        // SAFETY: the caller's promise; these are tg_few_out_*'s arguments.
        unsafe { self.launch_few(&few.out, grid, ring, &arguments) }
    }

    /// y `[R, I]` in the operand type = silu(w1 z) * w3 z, z = rmsnorm(h f32 `[R, H]`).
    ///
    /// # Safety
    /// [`Enqueue`]'s; w1 and w3 are `[I, H]`.
    pub unsafe fn few_gate_up(
        &self,
        few: &Few,
        y: Address,
        h: Address,
        norm: Address,
        (w1, w3): (Address, Address),
    ) -> Result<()> {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let outputs = self.config.intermediate_size as u32;
        let ring = few.normed(rows, hidden, false).expect("served");
        let arguments = [
            Argument::Address(y),
            Argument::Address(h),
            Argument::Address(norm),
            Argument::Address(w1),
            Argument::Address(w3),
            Argument::Address(self.step),
            Argument::U32(outputs),
            Argument::U32(hidden),
            Argument::U32(rows),
            Argument::U32(ring.stages),
            Argument::F32(self.config.norm_eps),
        ];
        let grid = few.blocks(outputs.div_ceil(GATE_OUTPUTS));
        // SAFETY: the caller's promise; these are tg_few_gate_up_*'s arguments.
        unsafe { self.launch_few(&few.gate_up, grid, ring, &arguments) }
    }

    /// y `[R K, M]` in the operand type, by pair = silu(w1_e z) * w3_e z of each row's experts, z = rmsnorm(h f32
    /// `[R, H]`); chosen from the score parts that [`Enqueue::few_out`] left. Leaves `routing.experts` and `.weights`.
    ///
    /// # Safety
    /// [`Enqueue`]'s; shapes as [`Routing`], [`RouterWeights`] and [`ExpertWeights`] say.
    pub unsafe fn few_expert_gate_up(
        &self,
        few: &Few,
        y: Address,
        h: Address,
        routing: &Routing,
        router: &RouterWeights,
        weights: &ExpertWeights,
    ) -> Result<()> {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let outputs = self.config.moe_intermediate_size as u32;
        let ring = few.normed(rows, hidden, true).expect("served");
        let arguments = [
            &[
                Argument::Address(y),
                Argument::Address(h),
                Argument::Address(router.norm),
                Argument::Address(weights.gate),
                Argument::Address(weights.up),
                Argument::U64(weights.gate_up_stride),
                Argument::Address(routing.experts),
                Argument::Address(routing.weights),
                Argument::Address(routing.score_parts),
                Argument::Address(router.bias),
                Argument::Address(self.step),
                Argument::U32(outputs),
                Argument::U32(hidden),
            ][..],
            &self.few_choosing(ring),
        ]
        .concat();
        let config = self.config;
        let pairs = rows * config.num_experts_per_tok as u32;
        let grid =
            few.blocks(pairs.min(config.num_experts as u32) * outputs.div_ceil(GATE_OUTPUTS));
        // SAFETY: the caller's promise; these are tg_few_expert_gate_up_*'s arguments.
        unsafe { self.launch_few(&few.expert_gate_up, grid, ring, &arguments) }
    }

    /// h f32 `[R, H]` += sum over a row's experts of weight * w2_e y, ascending; y is
    /// [`Enqueue::few_expert_gate_up`]'s, which is the kernel right before: this one chooses too, before that has ended.
    ///
    /// # Safety
    /// [`Enqueue`]'s; as there.
    pub unsafe fn few_down(
        &self,
        few: &Few,
        h: Address,
        y: Address,
        routing: &Routing,
        router: &RouterWeights,
        weights: &ExpertWeights,
    ) -> Result<()> {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let inner = self.config.moe_intermediate_size as u32;
        let ring = few.adding(rows, inner, CHOICE_BYTES).expect("served");
        let arguments = [
            &[
                Argument::Address(h),
                Argument::Address(y),
                Argument::Address(weights.down),
                Argument::U64(weights.down_stride),
                Argument::Address(routing.score_parts),
                Argument::Address(router.bias),
                Argument::Address(self.step),
                Argument::U32(hidden),
                Argument::U32(inner),
            ][..],
            &self.few_choosing(ring),
        ]
        .concat();
        let grid = few.blocks(hidden / OUTPUTS);
        // SAFETY: the caller's promise; these are tg_few_down_*'s arguments.
        unsafe { self.launch_few(&few.down, grid, ring, &arguments) }
    }

    /// The last arguments of the kernels that choose experts.
    fn few_choosing(&self, ring: Ring) -> Vec<Argument> {
        let sizes = [
            Argument::U32(self.bucket.rows),
            Argument::U32(ring.stages),
            Argument::F32(self.config.norm_eps),
        ];
        [&self.weighing()[..], &sizes].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_shrink_where_rows_are_large() {
        let stage = stage_bytes(2048);
        assert_eq!(stage, 8 * (4096 + 64));
        let stages = |fixed| Limits::H200.ring(fixed, stage).map(|ring| ring.stages);
        assert_eq!(stages(15_000), Some(4));
        assert_eq!(stages(110_000), Some(3));
        assert_eq!(stages(160_000), Some(2));
        assert_eq!(stages(170_000), None);
        assert_eq!(stages(u32::MAX), None);
    }

    #[test]
    fn long_rows_come_in_stages_of_one_size() {
        assert_eq!(
            [32, 1792, 2048, 2080].map(stage_columns),
            [32, 1792, 2048, 1056]
        );
        assert_eq!(stage_columns(7168), 1792);
    }

    /// Eight lanes read 16 bytes each of two rows: rows half the banks (or for f32 a quarter) apart.
    #[test]
    fn rows_lie_in_different_banks() {
        for elements in [32, 96, 1792, 2048] {
            assert_eq!(pitch(elements, 2) % 128, 64);
            assert_eq!(pitch(elements, 4) % 128, 16);
        }
    }
}
