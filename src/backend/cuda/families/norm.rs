//! The embedding and the norms.

use super::Lowering;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::matrix::Matrix;
use crate::plan::StepKind;
use crate::sys::abi;

impl Lowering<'_> {
    /// h f32 `[R, H]` = rows of `embedding` `[V, H]`.
    pub fn embed(&mut self, h: Address, embedding: Matrix) {
        let (grid, hidden) = ((self.bucket.rows, 1, 1), self.hidden());
        let arguments = arguments![h, embedding.address, self.state, self.step, hidden];
        let kernel = &self.kernels.embed;
        self.call_plain(kernel, grid, abi::TG_EMBED_THREADS, arguments);
        self.with_weights([embedding]);
    }

    /// x `[R, H]` in the operand type = rmsnorm(h f32 `[R, H]`, weight f32 `[H]`).
    pub fn norm(&mut self, x: Address, h: Address, weight: Address) {
        let (hidden, eps) = (self.hidden(), self.config.norm_eps);
        let arguments = arguments![x, h, weight, self.step, hidden, eps];
        let (kernel, grid) = (&self.kernels.rmsnorm, (self.bucket.rows, 1, 1));
        self.call_plain(kernel, grid, abi::TG_NORM_THREADS, arguments)
    }

    /// The norm before the LM head: x `[S, H]` of the sampled rows, in order; in a score step `[R, H]`.
    pub fn final_norm(&mut self, x: Address, h: Address, weight: Address) {
        if self.bucket.kind == StepKind::Score {
            return self.norm(x, h, weight);
        }
        let (hidden, eps) = (self.hidden(), self.config.norm_eps);
        let arguments = arguments![x, h, weight, self.state, self.step, hidden, eps];
        let grid = (self.bucket.sequences, 1, 1);
        let kernel = &self.kernels.rmsnorm_sampled;
        self.call_plain(kernel, grid, abi::TG_NORM_THREADS, arguments)
    }
}
