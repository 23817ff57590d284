//! The launches of the skinny kernels.

use super::super::Lowering;
use super::super::conv::ShortConv;
use super::super::experts::{ExpertWeights, Routing};
use super::super::head::Found;
use super::super::router::RouterWeights;
use super::SkinnyBucket;
use super::sizing::{GATE_OUTPUTS, HELD_THREADS, OUTPUTS, Ring, THREADS, score_bytes};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::driver::launch::Kernel;
use crate::backend::cuda::matrix::Matrix;
use crate::plan::StepKind;
use crate::sys::abi;
use bytemuck::NoUninit;

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

/// A prediction by a layer's first kernel of which experts its rows will go to: gate and up of these are begun first.
#[derive(Debug, Clone, Copy)]
pub struct Prediction {
    layer: usize,
    routing: Routing,
    router: RouterWeights,
    blocks: u32,
    /// What its blocks leave unsaid for the fused experts, and its bytes.
    fused_y: Option<(Address, u32)>,
}

/// A layer that nobody predicts for, SKINNY_NO_LAYER of kernels/skinny/prediction.cuh.
const NO_LAYER: u32 = u32::MAX;

impl Prediction {
    /// In a layer whose first kernel has `outputs` of them, or of conv layers as many channels; `None` where there is no room
    /// for the blocks that predict.
    pub fn of(
        queue: &Lowering<'_>,
        skinny: SkinnyBucket<'_>,
        layer: usize,
        outputs: u32,
        routing: &Routing,
        router: &RouterWeights,
        fused_y: Option<(Address, u32)>,
    ) -> Option<Self> {
        let (tiles, experts) = (outputs.div_ceil(OUTPUTS), queue.config.num_experts);
        let blocks = skinny.sizing.prediction_blocks(tiles, experts);
        (blocks > 0).then_some(Self {
            layer,
            routing: *routing,
            router: *router,
            blocks,
            fused_y,
        })
    }

    /// The kernels' arguments; without a prediction it has no blocks.
    fn args(prediction: Option<&Self>, experts: u32) -> abi::tg_skinny_prediction_args {
        let (fused_y, bytes) = prediction
            .and_then(|prediction| prediction.fused_y)
            .unwrap_or((0, 0));
        let at = |of: fn(&Self) -> Address| prediction.map_or(0, of);
        abi::tg_skinny_prediction_args {
            router: at(|prediction| prediction.router.predictor),
            bias: at(|prediction| prediction.router.bias),
            routing: at(|prediction| prediction.routing.score_parts),
            fused_y,
            fused_y_pieces: bytes / 16,
            expert_count: experts,
            blocks: prediction.map_or(0, |prediction| prediction.blocks),
            layer: Self::sign(prediction),
        }
    }

    fn sign(prediction: Option<&Self>) -> u32 {
        prediction.map_or(NO_LAYER, |prediction| prediction.layer as u32)
    }
}

impl Lowering<'_> {
    /// The ring of a kernel that norms its rows, and chooses among `experts`.
    fn skinny_normed(&self, skinny: SkinnyBucket<'_>, experts: Option<usize>) -> Ring {
        let ring = skinny
            .sizing
            .normed(self.bucket.rows, self.hidden(), experts);
        ring.expect("served")
    }

    /// A launch of a kernel with a ring, which multiplies with `weights`.
    fn launch_skinny<T: NoUninit>(
        &mut self,
        kernel: &Kernel,
        blocks: u32,
        ring: Ring,
        args: &T,
        weights: impl Into<Vec<Matrix>>,
    ) {
        let (grid, bytes) = ((blocks, 1, 1), ring.shared_bytes);
        self.call(kernel, grid, THREADS, bytes, arguments![args]);
        self.with_weights(weights);
    }

    /// x = C * conv(B * X) of (B, C, X) = in_proj(rmsnorm(h)); the state moves on. `conv.bcx` is not used. May leave a `prediction`.
    /// Shapes as [`ShortConv`] and [`ConvIn`] say, h f32 `[R, H]`.
    pub fn skinny_conv(
        &mut self,
        skinny: SkinnyBucket<'_>,
        conv: &ShortConv,
        weights: &ConvIn,
        h: Address,
        prediction: Option<&Prediction>,
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
            prediction: Prediction::args(prediction, self.config.num_experts as u32),
            hidden,
            length: self.config.conv_l_cache as u32,
            bucket: rows,
            stages: ring.stages,
            eps: self.config.norm_eps,
            pad: 0,
            scale: weights.in_proj.scale_address(),
        };
        let blocks = (skinny.sizing).blocks(hidden / OUTPUTS, args.prediction.blocks);
        let kernel = &skinny.family.conv;
        self.launch_skinny(kernel, blocks, ring, &args, [weights.in_proj]);
    }

    /// y `[R, N]` in the operand type = w `[N, H]` times rmsnorm(h f32 `[R, H]`). May leave a `prediction`. With `best`, which is as
    /// [`Found`] says, y is logits f32 `[S, V]` of a decode step's sampled rows, as [`Lowering::lm_head`] says; else it is 0.
    pub fn skinny_project(
        &mut self,
        skinny: SkinnyBucket<'_>,
        (y, best): (Address, Address),
        h: Address,
        norm: Address,
        w: &Matrix,
        prediction: Option<&Prediction>,
    ) -> Found {
        let stored = best == 0 || self.bucket.kind == StepKind::Decode;
        debug_assert!(stored, "not all logits are stored");
        let rows = self.bucket.rows;
        let ring = self.skinny_normed(skinny, None);
        let args = abi::tg_skinny_norm_args {
            y,
            best,
            h,
            norm_weight: norm,
            w: w.address,
            state: self.state,
            step: self.step,
            prediction: Prediction::args(prediction, self.config.num_experts as u32),
            outputs: w.rows,
            hidden: self.hidden(),
            bucket: rows,
            stages: ring.stages,
            eps: self.config.norm_eps,
            scale: w.scale_address(),
            ..Default::default()
        };
        let tiles = w.rows.div_ceil(OUTPUTS);
        let parts = skinny.sizing.blocks(tiles, args.prediction.blocks);
        self.launch_skinny(&skinny.family.project, parts, ring, &args, [*w]);
        Found { parts }
    }

    /// h f32 `[R, H]` += w x + bias; with `router` also each tile's part of the scores of what h then is.
    /// Shapes as [`Residual`], [`RouterWeights`] and [`Routing`] say.
    pub fn skinny_out(
        &mut self,
        skinny: SkinnyBucket<'_>,
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
        let mut args = abi::tg_skinny_add_args {
            h,
            x: product.x,
            w: product.w.address,
            bias: product.bias,
            routing: router.map_or(0, |(routing, _)| routing.score_parts),
            router: router.map_or(0, |(_, weights)| weights.gate.address),
            norm_weight: router.map_or(0, |(_, weights)| weights.norm),
            step: self.step,
            outputs: hidden,
            inner,
            expert_count: experts,
            bucket: rows,
            scale: product.w.scale_address(),
            ..Default::default()
        };
        let SkinnyBucket { family, sizing } = skinny;
        if let Some(bytes) = sizing.holding(rows, inner, beside) {
            let (kernel, grid) = (&family.held_out, (hidden / OUTPUTS, 1, 1));
            self.call(kernel, grid, HELD_THREADS, bytes, arguments![&args]);
            return self.with_weights(weights);
        }
        let ring = sizing.adding(rows, inner, beside).expect("served");
        args.stages = ring.stages;
        let blocks = sizing.blocks(hidden / OUTPUTS, 0);
        self.launch_skinny(&family.out, blocks, ring, &args, weights);
    }

    /// y `[R, I]` in the operand type = silu(w1 z) * w3 z, z = rmsnorm(h f32 `[R, H]`).
    /// W1 and w3 are `[I, H]`.
    pub fn skinny_gate_up(
        &mut self,
        skinny: SkinnyBucket<'_>,
        y: Address,
        h: Address,
        norm: Address,
        (w1, w3): (Matrix, Matrix),
    ) {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let ring = self.skinny_normed(skinny, None);
        let args = abi::tg_skinny_norm_args {
            y,
            h,
            norm_weight: norm,
            w: w1.address,
            up: w3.address,
            step: self.step,
            outputs: w1.rows,
            hidden,
            bucket: rows,
            stages: ring.stages,
            eps: self.config.norm_eps,
            scale: w1.scale_address(),
            up_scale: w3.scale_address(),
            ..Default::default()
        };
        let blocks = skinny.sizing.blocks(w1.rows.div_ceil(GATE_OUTPUTS), 0);
        self.launch_skinny(&skinny.family.gate_up, blocks, ring, &args, [w1, w3]);
    }

    /// y `[R K, M]` in the operand type, by pair = silu(w1_e z) * w3_e z of each row's experts, z = rmsnorm(h f32
    /// `[R, H]`); chosen from the score parts that [`Lowering::skinny_out`] left, experts that the layer's first kernel predicted come first.
    /// Leaves `routing.experts` and `.weights`.
    /// Shapes as [`Routing`], [`RouterWeights`] and [`ExpertWeights`] say.
    pub fn skinny_expert_gate_up(
        &mut self,
        skinny: SkinnyBucket<'_>,
        y: Address,
        h: Address,
        (routing, router): (&Routing, &RouterWeights),
        weights: &ExpertWeights,
        prediction: Option<&Prediction>,
    ) {
        let ring = self.skinny_normed(skinny, Some(self.config.num_experts));
        let args = self.skinny_choosing((y, h), (routing, router), weights, prediction, ring);
        let blocks = self.chosen_blocks(skinny, weights);
        let (kernel, read) = (&skinny.family.expert_gate_up, [weights.gate, weights.up]);
        self.launch_skinny(kernel, blocks, ring, &args, read);
    }

    /// Adds the experts of a bucket of one row, gate and up to down, to h f32 `[1, H]`: the sum over its experts of weight * w2_e
    /// y. y `[K, M]` is handed between blocks, in buffers of `prediction`, which the layer's first kernel left in the same step.
    pub fn skinny_fused_experts(
        &mut self,
        skinny: SkinnyBucket<'_>,
        h: Address,
        (routing, router): (&Routing, &RouterWeights),
        weights: &ExpertWeights,
        prediction: &Prediction,
    ) {
        let (config, inner) = (self.config, weights.gate.rows);
        let per_row = config.num_experts_per_tok as u32;
        let ring = (skinny.sizing).fused(self.hidden(), inner, per_row, config.num_experts);
        let kernel = skinny.family.experts.as_ref();
        let (ring, kernel) = ring.zip(kernel).expect("served");
        let (fused_y, _) = prediction.fused_y.expect("a prediction for fused experts");
        let choosing = (routing, router);
        let args = abi::tg_skinny_experts_args {
            down: weights.down.address,
            down_stride: weights.down.stride,
            down_scale: weights.down.scale_address(),
            ..self.skinny_choosing((fused_y, h), choosing, weights, Some(prediction), ring)
        };
        let blocks = self.chosen_blocks(skinny, weights);
        let read = [weights.gate, weights.up, weights.down];
        self.launch_skinny(kernel, blocks, ring, &args, read);
    }

    /// Gate and up of the experts that the kernel chooses.
    fn skinny_choosing(
        &self,
        (y, h): (Address, Address),
        (routing, router): (&Routing, &RouterWeights),
        weights: &ExpertWeights,
        prediction: Option<&Prediction>,
        ring: Ring,
    ) -> abi::tg_skinny_experts_args {
        let config = self.config;
        abi::tg_skinny_experts_args {
            y,
            h,
            norm_weight: router.norm,
            gate: weights.gate.address,
            up: weights.up.address,
            stride: weights.gate.stride,
            experts: routing.experts,
            weights: routing.weights,
            routing: routing.score_parts,
            bias: router.bias,
            step: self.step,
            outputs: weights.gate.rows,
            hidden: self.hidden(),
            expert_count: config.num_experts as u32,
            k: config.num_experts_per_tok as u32,
            normalize: config.norm_topk_prob.into(),
            scaling: config.routed_scaling_factor,
            layer: Prediction::sign(prediction),
            bucket: self.bucket.rows,
            stages: ring.stages,
            eps: config.norm_eps,
            gate_scale: weights.gate.scale_address(),
            up_scale: weights.up.scale_address(),
            ..Default::default()
        }
    }

    /// For tiles of gate and up of as many experts as the rows may have.
    fn chosen_blocks(&self, skinny: SkinnyBucket<'_>, weights: &ExpertWeights) -> u32 {
        let (experts, per_row) = self.experts();
        let most = experts.min(self.bucket.rows * per_row);
        let each = weights.gate.rows.div_ceil(GATE_OUTPUTS);
        skinny.sizing.blocks_at_most(most * each)
    }

    /// Adds to h f32 `[R, H]` the sum over a row's experts of weight * w2_e y, ascending. The kernel before is that of
    /// [`Lowering::skinny_expert_gate_up`]; it signals which experts were chosen before it ends.
    pub fn skinny_down(
        &mut self,
        skinny: SkinnyBucket<'_>,
        h: Address,
        y: Address,
        routing: &Routing,
        weights: &ExpertWeights,
    ) {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let inner = weights.down.columns;
        let ring = skinny.sizing.adding(rows, inner, 0).expect("served");
        let args = abi::tg_skinny_add_args {
            h,
            x: y,
            w: weights.down.address,
            stride: weights.down.stride,
            routing: routing.score_parts,
            weights: routing.weights,
            step: self.step,
            outputs: hidden,
            inner,
            k: self.config.num_experts_per_tok as u32,
            bucket: rows,
            stages: ring.stages,
            scale: weights.down.scale_address(),
            ..Default::default()
        };
        let blocks = skinny.sizing.blocks(hidden / OUTPUTS, 0);
        self.launch_skinny(&skinny.family.down, blocks, ring, &args, [weights.down]);
    }
}
