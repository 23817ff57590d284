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
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::tuning::variants::Products;
use crate::plan::StepKind;
use crate::sys::abi;

/// Weights and biases of a conv layer up to its out-projection; shapes as [`ShortConv`] has them.
#[derive(Debug, Clone, Copy)]
pub struct ConvIn {
    /// f32 `[H]`
    pub norm: Address,
    /// `[3H, H]`
    pub in_proj: Matrix,
    /// f32 `[3H]`, or 0.
    pub bias: Address,
}

/// A product that adds to the residual stream.
#[derive(Debug, Clone, Copy)]
pub struct Residual {
    /// `[R, K]`, operand type.
    pub x: Address,
    /// `[H, K]`
    pub w: Matrix,
    /// f32 `[H]`, or 0.
    pub bias: Address,
}

impl Lowering<'_> {
    /// With as many stages as this bucket's variant has.
    fn skinny_sizing(&self, skinny: &Skinny) -> Sizing {
        let Products::Skinny { stages } = self.variant.products else {
            unreachable!("skinny kernels, in a bucket that others serve")
        };
        skinny.sizing(stages)
    }

    /// The ring of a kernel that norms its rows, and chooses among `experts`.
    fn skinny_normed(&self, skinny: &Skinny, experts: Option<usize>) -> Ring {
        let sizing = self.skinny_sizing(skinny);
        let ring = sizing.normed(self.bucket.rows, self.hidden(), experts);
        ring.expect("served")
    }

    /// A launch with one of [`Skinny`]'s kernels, which multiplies with `weights`.
    fn launch_skinny(
        &mut self,
        kernel: &Kernel,
        blocks: u32,
        ring: Ring,
        args: Argument,
        weights: impl Into<Vec<Matrix>>,
    ) {
        self.call(
            kernel,
            (blocks, 1, 1),
            THREADS,
            ring.shared_bytes,
            vec![args],
        );
        self.with_weights(weights);
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
        let ring = self.skinny_normed(skinny, None);
        let args = abi::tg_skinny_conv_args {
            x: conv.x,
            columns: conv.state,
            h,
            norm_weight: weights.norm,
            w: weights.in_proj.address,
            bias: weights.bias,
            taps: conv.taps,
            taps_bias: conv.bias,
            state: self.state,
            step: self.step,
            prediction: Guess::args(guess, self.config.num_experts as u32),
            hidden,
            length: self.config.conv_l_cache as u32,
            bucket: rows,
            stages: ring.stages,
            eps: self.config.norm_eps,
            pad: 0,
        };
        let blocks = self.skinny_sizing(skinny);
        let blocks = blocks.blocks(hidden / OUTPUTS, args.prediction.blocks);
        let kernel = &skinny.family(rows).conv;
        self.launch_skinny(kernel, blocks, ring, Argument::of(&args), [weights.in_proj]);
    }

    /// y `[R, N]` in the operand type = w `[N, H]` times rmsnorm(h f32 `[R, H]`). May leave a `guess`.
    pub fn skinny_project(
        &mut self,
        skinny: &Skinny,
        y: Address,
        h: Address,
        norm: Address,
        w: &Matrix,
        guess: Option<&Guess>,
    ) {
        self.skinny_product(skinny, (y, 0), h, norm, w, guess);
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
        lm_head: &Matrix,
    ) -> Found {
        let kind = self.bucket.kind;
        debug_assert_eq!(kind, StepKind::Decode, "not all logits are stored");
        let parts = self.skinny_product(skinny, (logits, best), h, norm, lm_head, None);
        Found { parts }
    }

    /// y of the step's rows, or with `best` of the sampled ones. Returns the blocks that it takes.
    fn skinny_product(
        &mut self,
        skinny: &Skinny,
        (y, best): (Address, Address),
        h: Address,
        norm: Address,
        w: &Matrix,
        guess: Option<&Guess>,
    ) -> u32 {
        let rows = self.bucket.rows;
        let ring = self.skinny_normed(skinny, None);
        let args = abi::tg_skinny_project_args {
            y,
            best,
            h,
            norm_weight: norm,
            w: w.address,
            state: self.state,
            step: self.step,
            prediction: Guess::args(guess, self.config.num_experts as u32),
            outputs: w.rows,
            hidden: self.hidden(),
            bucket: rows,
            stages: ring.stages,
            eps: self.config.norm_eps,
            pad: 0,
        };
        let sizing = self.skinny_sizing(skinny);
        let blocks = sizing.blocks(w.rows.div_ceil(OUTPUTS), args.prediction.blocks);
        let kernel = &skinny.family(rows).project;
        self.launch_skinny(kernel, blocks, ring, Argument::of(&args), [*w]);
        blocks
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
        let inner = product.w.columns;
        let gate = router.map(|(_, weights)| weights.gate);
        let weights: Vec<Matrix> = [product.w].into_iter().chain(gate).collect();
        let args = |stages| {
            let args = abi::tg_skinny_out_args {
                h,
                x: product.x,
                w: product.w.address,
                bias: product.bias,
                parts: router.map_or(0, |(routing, _)| routing.score_parts),
                gate: router.map_or(0, |(_, weights)| weights.gate.address),
                norm_weight: router.map_or(0, |(_, weights)| weights.norm),
                step: self.step,
                outputs: hidden,
                inner,
                expert_count: experts,
                bucket: rows,
                stages,
                pad: 0,
            };
            Argument::of(&args)
        };
        let (sizing, family) = (self.skinny_sizing(skinny), skinny.family(rows));
        if let Some(bytes) = sizing.holding(rows, inner, beside) {
            let grid = (hidden / OUTPUTS, 1, 1);
            self.call(&family.held_out, grid, HELD_THREADS, bytes, vec![args(0)]);
            return self.with_weights(weights);
        }
        let ring = sizing.adding(rows, inner, beside).expect("served");
        let blocks = sizing.blocks(hidden / OUTPUTS, 0);
        self.launch_skinny(&family.out, blocks, ring, args(ring.stages), weights);
    }

    /// y `[R, I]` in the operand type = silu(w1 z) * w3 z, z = rmsnorm(h f32 `[R, H]`).
    /// W1 and w3 are `[I, H]`.
    pub fn skinny_gate_up(
        &mut self,
        skinny: &Skinny,
        y: Address,
        h: Address,
        norm: Address,
        (w1, w3): (Matrix, Matrix),
    ) {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let ring = self.skinny_normed(skinny, None);
        let args = abi::tg_skinny_gate_up_args {
            y,
            h,
            norm_weight: norm,
            gate: w1.address,
            up: w3.address,
            step: self.step,
            outputs: w1.rows,
            hidden,
            bucket: rows,
            stages: ring.stages,
            eps: self.config.norm_eps,
            pad: 0,
        };
        let tiles = w1.rows.div_ceil(GATE_OUTPUTS);
        let blocks = self.skinny_sizing(skinny).blocks(tiles, 0);
        let kernel = &skinny.family(rows).gate_up;
        self.launch_skinny(kernel, blocks, ring, Argument::of(&args), [w1, w3]);
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
        let ring = self.skinny_normed(skinny, Some(self.config.num_experts));
        let args = self.skinny_choosing((y, h), (routing, router), weights, guess, ring);
        let blocks = self.chosen_blocks(skinny, weights);
        let kernel = &skinny.family(self.bucket.rows).expert_gate_up;
        let read = [weights.gate, weights.up];
        self.launch_skinny(kernel, blocks, ring, Argument::of(&args), read);
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
        let (inner, per_row) = (weights.gate.rows, config.num_experts_per_tok as u32);
        let sizing = self.skinny_sizing(skinny);
        let ring = sizing.fused(self.hidden(), inner, per_row, config.num_experts);
        let (ring, kernel) = ring
            .zip(skinny.family(rows).experts.as_ref())
            .expect("served");
        let (handed, _) = guess.handed.expect("a guess for fused experts");
        let choosing = (routing, router);
        let args = abi::tg_skinny_experts_args {
            gate_up: self.skinny_choosing((handed, h), choosing, weights, Some(guess), ring),
            down: weights.down.address,
            down_stride: weights.down.stride,
        };
        let blocks = self.chosen_blocks(skinny, weights);
        let read = [weights.gate, weights.up, weights.down];
        self.launch_skinny(kernel, blocks, ring, Argument::of(&args), read);
    }

    /// Gate and up of the experts that the kernel chooses.
    fn skinny_choosing(
        &self,
        (y, h): (Address, Address),
        (routing, router): (&Routing, &RouterWeights),
        weights: &ExpertWeights,
        guess: Option<&Guess>,
        ring: Ring,
    ) -> abi::tg_skinny_expert_gate_up_args {
        let config = self.config;
        abi::tg_skinny_expert_gate_up_args {
            y,
            h,
            norm_weight: router.norm,
            gate: weights.gate.address,
            up: weights.up.address,
            stride: weights.gate.stride,
            experts: routing.experts,
            weights: routing.weights,
            parts: routing.score_parts,
            bias: router.bias,
            step: self.step,
            outputs: weights.gate.rows,
            hidden: self.hidden(),
            expert_count: config.num_experts as u32,
            k: config.num_experts_per_tok as u32,
            normalize: config.norm_topk_prob.into(),
            scaling: config.routed_scaling_factor,
            layer: Guess::sign(guess),
            bucket: self.bucket.rows,
            stages: ring.stages,
            eps: config.norm_eps,
        }
    }

    /// For tiles of gate and up of as many experts as the rows may have.
    fn chosen_blocks(&self, skinny: &Skinny, weights: &ExpertWeights) -> u32 {
        let (experts, per_row) = self.experts();
        let most = experts.min(self.bucket.rows * per_row);
        let each = weights.gate.rows.div_ceil(GATE_OUTPUTS);
        self.skinny_sizing(skinny).blocks_at_most(most * each)
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
        let (sizing, inner) = (self.skinny_sizing(skinny), weights.down.columns);
        let ring = sizing.adding(rows, inner, 0).expect("served");
        let args = abi::tg_skinny_down_args {
            h,
            y,
            w: weights.down.address,
            stride: weights.down.stride,
            parts: routing.score_parts,
            weights: routing.weights,
            step: self.step,
            outputs: hidden,
            inner,
            k: self.config.num_experts_per_tok as u32,
            bucket: rows,
            stages: ring.stages,
            pad: 0,
        };
        let blocks = sizing.blocks(hidden / OUTPUTS, 0);
        let kernel = &skinny.family(rows).down;
        self.launch_skinny(kernel, blocks, ring, Argument::of(&args), [weights.down]);
    }
}
