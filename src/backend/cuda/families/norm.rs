//! The embedding and the norms.

use super::Lowering;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::launch::Argument;
use crate::backend::cuda::matrix::Matrix;
use crate::plan::StepKind;
use crate::sys::abi;

impl Lowering<'_> {
    /// h f32 `[R, H]` = rows of `embedding` `[V, H]`.
    pub fn embed(&mut self, h: Address, embedding: Matrix) {
        let arguments = vec![
            Argument::Address(h),
            Argument::Address(embedding.address),
            Argument::Address(self.state),
            Argument::Address(self.step),
            Argument::U32(self.hidden()),
        ];
        let grid = (self.bucket.rows, 1, 1);
        self.call(
            &self.kernels.embed,
            grid,
            abi::TG_EMBED_THREADS,
            0,
            arguments,
        );
        self.with_weights([embedding]);
    }

    /// x `[R, H]` in the operand type = rmsnorm(h f32 `[R, H]`, weight f32 `[H]`).
    pub fn norm(&mut self, x: Address, h: Address, weight: Address) {
        let arguments = vec![
            Argument::Address(x),
            Argument::Address(h),
            Argument::Address(weight),
            Argument::Address(self.step),
            Argument::U32(self.hidden()),
            Argument::F32(self.config.norm_eps),
        ];
        let grid = (self.bucket.rows, 1, 1);
        self.call(
            &self.kernels.rmsnorm,
            grid,
            abi::TG_NORM_THREADS,
            0,
            arguments,
        )
    }

    /// The norm before the LM head: x `[S, H]` of the sampled rows, in order; in a score step `[R, H]`.
    pub fn final_norm(&mut self, x: Address, h: Address, weight: Address) {
        if self.bucket.kind == StepKind::Score {
            return self.norm(x, h, weight);
        }
        let arguments = vec![
            Argument::Address(x),
            Argument::Address(h),
            Argument::Address(weight),
            Argument::Address(self.state),
            Argument::Address(self.step),
            Argument::U32(self.hidden()),
            Argument::F32(self.config.norm_eps),
        ];
        let grid = (self.bucket.sequences, 1, 1);
        self.call(
            &self.kernels.rmsnorm_sampled,
            grid,
            abi::TG_NORM_THREADS,
            0,
            arguments,
        )
    }
}
