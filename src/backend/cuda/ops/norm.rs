//! The embedding and the norms.

use super::super::launch::{Address, Argument};
use super::Enqueue;
use crate::error::Result;
use crate::plan::StepKind;

/// Threads of a block, and of a row (kernels/step/embed.cu, kernels/step/norm.cu).
const THREADS: u32 = 256;

impl Enqueue<'_> {
    /// h f32 `[R, H]` = rows of `embedding` `[V, H]`, in the weights' type.
    ///
    /// # Safety
    /// [`Enqueue`]'s.
    pub unsafe fn embed(&self, h: Address, embedding: Address) -> Result<()> {
        let arguments = [
            Argument::Address(h),
            Argument::Address(embedding),
            Argument::Address(self.state),
            Argument::Address(self.step),
            Argument::U32(self.hidden()),
        ];
        let grid = (self.bucket.rows, 1, 1);
        // SAFETY: the caller's promise; these are tg_embed_*'s arguments.
        unsafe { self.launch(&self.kernels.embed, grid, THREADS, 0, &arguments) }
    }

    /// x `[R, H]` in the operand type = rmsnorm(h f32 `[R, H]`, weight f32 `[H]`).
    ///
    /// # Safety
    /// [`Enqueue`]'s.
    pub unsafe fn norm(&self, x: Address, h: Address, weight: Address) -> Result<()> {
        let arguments = [
            Argument::Address(x),
            Argument::Address(h),
            Argument::Address(weight),
            Argument::Address(self.step),
            Argument::U32(self.hidden()),
            Argument::F32(self.config.norm_eps),
        ];
        let grid = (self.bucket.rows, 1, 1);
        // SAFETY: the caller's promise; these are tg_rmsnorm_*'s arguments.
        unsafe { self.launch(&self.kernels.rmsnorm, grid, THREADS, 0, &arguments) }
    }

    /// The norm before the LM head: x `[S, H]` of the sampled rows, in order; in a score step `[R, H]`.
    ///
    /// # Safety
    /// [`Enqueue`]'s.
    pub unsafe fn final_norm(&self, x: Address, h: Address, weight: Address) -> Result<()> {
        if self.bucket.kind == StepKind::Score {
            // SAFETY: the caller's promise.
            return unsafe { self.norm(x, h, weight) };
        }
        let arguments = [
            Argument::Address(x),
            Argument::Address(h),
            Argument::Address(weight),
            Argument::Address(self.state),
            Argument::Address(self.step),
            Argument::U32(self.hidden()),
            Argument::F32(self.config.norm_eps),
        ];
        let grid = (self.bucket.sequences, 1, 1);
        // SAFETY: the caller's promise; these are tg_rmsnorm_sampled_*'s arguments.
        unsafe { self.launch(&self.kernels.rmsnorm_sampled, grid, THREADS, 0, &arguments) }
    }
}
