//! The launches of the skinny kernels.

mod guess;

pub use guess::Guess;

use super::super::Lowering;
use super::super::conv::ShortConv;
use super::super::experts::{ExpertWeights, Routing};
use super::super::head::Found;
use super::super::router::RouterWeights;
use super::Skinny;
use super::sizing::{GATE_OUTPUTS, HELD_THREADS, OUTPUTS, Ring, Sizing, THREADS, score_bytes};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::launch::{Argument, Kernel};
use crate::backend::cuda::tuning::variants::Products;
use crate::plan::StepKind;

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

impl Lowering<'_> {
    /// With as many stages as this bucket's variant has.
    fn skinny_sizing(&self, skinny: &Skinny) -> Sizing {
        match self.variant.products {
            Products::Skinny { stages } => skinny.sizing(stages),
            Products::SwapAb | Products::Persistent | Products::Tiled => {
                unreachable!("skinny kernels, in a bucket that others serve")
            }
        }
    }

    /// A launch with one of [`Skinny`]'s kernels; `ring` is that of shapes that [`Sizing::serves`](super::sizing::Sizing::serves).
    /// These are the kernel's arguments.
    fn launch_skinny(
        &mut self,
        kernel: &Kernel,
        grid: (u32, u32, u32),
        ring: Ring,
        arguments: Vec<Argument>,
    ) {
        self.call(kernel, grid, THREADS, ring.shared_bytes, arguments)
    }

    /// x = C * conv(B * X) of (B, C, X) = in_proj(rmsnorm(h)); the state moves on. `conv.bcx` is not used. May leave a `guess`.
    /// Shapes as [`ShortConv`] and [`ConvIn`] say, h f32 `[R, H]`.
    pub fn skinny_conv(
        &mut self,
        skinny: &Skinny,
        conv: &ShortConv,
        weights: &ConvIn,
        h: Address,
        guess: Option<&Guess>,
    ) {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let ring = self
            .skinny_sizing(skinny)
            .normed(rows, hidden, None)
            .expect("served");
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
        let (guess, guessing) = Guess::arguments(guess, self.config.num_experts as u32);
        let grid = self
            .skinny_sizing(skinny)
            .blocks(hidden / OUTPUTS, guessing);
        let fused = self.fused_conv(conv, weights.bias);
        let arguments = [&arrays[..], &fused, &guess, &sizes].concat();
        self.launch_skinny(&skinny.family(rows).conv, grid, ring, arguments)
    }

    /// y `[R, outputs]` in the operand type = w `[outputs, H]` times rmsnorm(h f32 `[R, H]`). May leave a `guess`.
    pub fn skinny_project(
        &mut self,
        skinny: &Skinny,
        y: Address,
        h: Address,
        norm: Address,
        (w, outputs): (Address, u32),
        guess: Option<&Guess>,
    ) {
        self.skinny_product(skinny, (y, 0), h, norm, (w, outputs), guess);
    }

    /// logits f32 `[S, V]` = lm_head `[V, H]` times rmsnorm(h f32 `[R, H]`) of the sampled rows, as [`Lowering::lm_head`] says;
    /// where the best ones are, in `best`.
    /// `best` as [`Found`] says.
    pub fn skinny_lm_head(
        &mut self,
        skinny: &Skinny,
        logits: Address,
        best: Address,
        h: Address,
        norm: Address,
        lm_head: Address,
    ) -> Found {
        debug_assert_eq!(
            self.bucket.kind,
            StepKind::Decode,
            "not all logits are stored"
        );
        let outputs = self.config.vocab_size as u32;
        let parts = self.skinny_product(skinny, (logits, best), h, norm, (lm_head, outputs), None);
        Found { parts }
    }

    /// y of the step's rows, or with `best` of the sampled ones. Returns the blocks that it takes.
    fn skinny_product(
        &mut self,
        skinny: &Skinny,
        (y, best): (Address, Address),
        h: Address,
        norm: Address,
        (w, outputs): (Address, u32),
        guess: Option<&Guess>,
    ) -> u32 {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let ring = self
            .skinny_sizing(skinny)
            .normed(rows, hidden, None)
            .expect("served");
        let (guess, guessing) = Guess::arguments(guess, self.config.num_experts as u32);
        let grid = self
            .skinny_sizing(skinny)
            .blocks(outputs.div_ceil(OUTPUTS), guessing);
        let arrays = [
            Argument::Address(y),
            Argument::Address(best),
            Argument::Address(h),
            Argument::Address(norm),
            Argument::Address(w),
            Argument::Address(self.state),
            Argument::Address(self.step),
        ];
        let sizes = [
            Argument::U32(outputs),
            Argument::U32(hidden),
            Argument::U32(rows),
            Argument::U32(ring.stages),
            Argument::F32(self.config.norm_eps),
        ];
        let arguments = [&arrays[..], &guess, &sizes].concat();
        self.launch_skinny(&skinny.family(rows).project, grid, ring, arguments);
        grid.0
    }

    /// h f32 `[R, H]` += w x + bias; with `router` also each tile's part of the scores of what h then is.
    /// Shapes as [`Residual`], [`RouterWeights`] and [`Routing`] say.
    pub fn skinny_out(
        &mut self,
        skinny: &Skinny,
        h: Address,
        product: &Residual,
        router: Option<(&Routing, &RouterWeights)>,
    ) {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let experts = router.map_or(0, |_| self.config.num_experts as u32);
        let beside = router.map_or(0, |_| score_bytes(rows, experts));
        let arrays = [
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
        ];
        let (sizing, family) = (self.skinny_sizing(skinny), skinny.family(rows));
        if let Some(bytes) = sizing.holding(rows, product.inner, beside) {
            let grid = (hidden / OUTPUTS, 1, 1);
            return self.call(&family.held_out, grid, HELD_THREADS, bytes, arrays.to_vec());
        }
        let ring = sizing.adding(rows, product.inner, beside).expect("served");
        let arguments = [&arrays[..], &[Argument::U32(ring.stages)]].concat();
        let grid = sizing.blocks(hidden / OUTPUTS, 0);
        self.launch_skinny(&family.out, grid, ring, arguments)
    }

    /// y `[R, I]` in the operand type = silu(w1 z) * w3 z, z = rmsnorm(h f32 `[R, H]`).
    /// W1 and w3 are `[I, H]`.
    pub fn skinny_gate_up(
        &mut self,
        skinny: &Skinny,
        y: Address,
        h: Address,
        norm: Address,
        (w1, w3): (Address, Address),
    ) {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let outputs = self.config.intermediate_size as u32;
        let ring = self
            .skinny_sizing(skinny)
            .normed(rows, hidden, None)
            .expect("served");
        let arguments = vec![
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
        let grid = self
            .skinny_sizing(skinny)
            .blocks(outputs.div_ceil(GATE_OUTPUTS), 0);
        self.launch_skinny(&skinny.family(rows).gate_up, grid, ring, arguments)
    }

    /// y `[R K, M]` in the operand type, by pair = silu(w1_e z) * w3_e z of each row's experts, z = rmsnorm(h f32
    /// `[R, H]`); chosen from the score parts that [`Lowering::skinny_out`] left, experts that the layer's first kernel guessed come first.
    /// Leaves `routing.experts` and `.weights`.
    /// Shapes as [`Routing`], [`RouterWeights`] and [`ExpertWeights`] say.
    pub fn skinny_expert_gate_up(
        &mut self,
        skinny: &Skinny,
        y: Address,
        h: Address,
        (routing, router): (&Routing, &RouterWeights),
        weights: &ExpertWeights,
        guess: Option<&Guess>,
    ) {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let ring = self
            .skinny_sizing(skinny)
            .normed(rows, hidden, Some(self.config.num_experts))
            .expect("served");
        let arrays = [Argument::Address(y), Argument::Address(h)];
        let rest = self.skinny_choosing((routing, router), weights, guess, ring);
        let arguments = [&arrays[..], &rest].concat();
        let grid = self.chosen_blocks(skinny);
        self.launch_skinny(&skinny.family(rows).expert_gate_up, grid, ring, arguments)
    }

    /// Of one row, what [`Lowering::skinny_expert_gate_up`] and [`Lowering::skinny_down`] do: h f32 `[1, H]` += sum over its experts of
    /// weight * w2_e y, y `[K, M]` being what `guess` leaves unsaid, which its blocks hand to each other.
    /// As there. The layer's first kernel left this guess in the same step, for fused experts.
    pub fn skinny_fused_experts(
        &mut self,
        skinny: &Skinny,
        h: Address,
        (routing, router): (&Routing, &RouterWeights),
        weights: &ExpertWeights,
        guess: &Guess,
    ) {
        let (rows, config) = (self.bucket.rows, self.config);
        let inner = config.moe_intermediate_size as u32;
        let per_row = config.num_experts_per_tok as u32;
        let sizing = self.skinny_sizing(skinny);
        let ring = sizing.fused(self.hidden(), inner, per_row, config.num_experts);
        let (ring, kernel) = ring
            .zip(skinny.family(rows).experts.as_ref())
            .expect("served");
        let (handed, _) = guess.handed.expect("a guess for fused experts");
        let arrays = [
            Argument::Address(handed),
            Argument::Address(h),
            Argument::Address(weights.down),
            Argument::U64(weights.down_stride),
        ];
        let rest = self.skinny_choosing((routing, router), weights, Some(guess), ring);
        let arguments = [&arrays[..], &rest].concat();
        let grid = self.chosen_blocks(skinny);
        self.launch_skinny(kernel, grid, ring, arguments)
    }

    /// SKINNY_EXPERTS_OF of kernels/skinny/experts.cu.
    fn skinny_choosing(
        &self,
        (routing, router): (&Routing, &RouterWeights),
        weights: &ExpertWeights,
        guess: Option<&Guess>,
        ring: Ring,
    ) -> Vec<Argument> {
        let arrays = [
            Argument::Address(router.norm),
            Argument::Address(weights.gate),
            Argument::Address(weights.up),
            Argument::U64(weights.gate_up_stride),
            Argument::Address(routing.experts),
            Argument::Address(routing.weights),
            Argument::Address(routing.score_parts),
            Argument::Address(router.bias),
            Argument::Address(self.step),
            Argument::U32(self.config.moe_intermediate_size as u32),
            Argument::U32(self.hidden()),
        ];
        let sizes = [
            Argument::U32(Guess::sign(guess)),
            Argument::U32(self.bucket.rows),
            Argument::U32(ring.stages),
            Argument::F32(self.config.norm_eps),
        ];
        [&arrays[..], &self.weighing(), &sizes].concat()
    }

    /// For tiles of gate and up of as many experts as the rows may have.
    fn chosen_blocks(&self, skinny: &Skinny) -> (u32, u32, u32) {
        let config = self.config;
        let pairs = self.bucket.rows * config.num_experts_per_tok as u32;
        let each = (config.moe_intermediate_size as u32).div_ceil(GATE_OUTPUTS);
        self.skinny_sizing(skinny)
            .blocks_at_most(pairs.min(config.num_experts as u32) * each)
    }

    /// h f32 `[R, H]` += sum over a row's experts of weight * w2_e y, ascending; y is
    /// [`Lowering::skinny_expert_gate_up`]'s, which is the kernel right before: this one hears from it which experts were chosen,
    /// before that has ended.
    /// As there.
    pub fn skinny_down(
        &mut self,
        skinny: &Skinny,
        h: Address,
        y: Address,
        routing: &Routing,
        weights: &ExpertWeights,
    ) {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let inner = self.config.moe_intermediate_size as u32;
        let ring = self
            .skinny_sizing(skinny)
            .adding(rows, inner, 0)
            .expect("served");
        let arguments = vec![
            Argument::Address(h),
            Argument::Address(y),
            Argument::Address(weights.down),
            Argument::U64(weights.down_stride),
            Argument::Address(routing.score_parts),
            Argument::Address(routing.weights),
            Argument::Address(self.step),
            Argument::U32(hidden),
            Argument::U32(inner),
            Argument::U32(self.config.num_experts_per_tok as u32),
            Argument::U32(rows),
            Argument::U32(ring.stages),
        ];
        let grid = self.skinny_sizing(skinny).blocks(hidden / OUTPUTS, 0);
        self.launch_skinny(&skinny.family(rows).down, grid, ring, arguments)
    }
}
