//! A layer's operations where the skinny kernels do them: several in one launch, which reads one matrix.

use super::layer::{Conv, Projections, dense};
use super::{Layer, ModelAddresses, misplaced};
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::experts::ExpertWeights;
use crate::backend::cuda::families::router::RouterWeights;
use crate::backend::cuda::families::skinny::{ConvIn, Guess, Residual, Skinny};
use crate::backend::cuda::memory::weights::{FeedForwardAddresses, MixerAddresses};
use crate::backend::cuda::tuning::variants::Experts;
use crate::error::Result;
use crate::plan::Op;

/// A layer that these kernels serve.
struct Served<'m> {
    layer: Layer<'m>,
    skinny: &'m Skinny,
    /// Where the experts are these kernels' too.
    chooses: Option<RouterWeights>,
    /// The same for the layer's first kernel and for gate and up.
    guess: Option<Guess>,
}

impl<'m> Served<'m> {
    fn of(model: &'m ModelAddresses, to: &Lowering<'m>, op: &Op) -> Result<Self> {
        let layer = model.layer(op)?;
        let skinny = to.skinny().ok_or_else(|| misplaced(op))?;
        let chooses = to.skinny_experts().and_then(|_| layer.router());
        // Of the layer's first kernel.
        let outputs = match layer.weights.mixer {
            MixerAddresses::Conv { .. } => model.config.hidden_size as u32,
            MixerAddresses::Attention { .. } => model.attended().0,
        };
        // What the blocks of fused experts hand to each other, and its bytes.
        let handed = (to.variant.experts == Experts::Fused).then(|| {
            let config = &model.config;
            let values = config.num_experts_per_tok * config.moe_intermediate_size;
            let bytes = values * to.kernels.types.operand.bytes();
            (model.at(model.places.handed), bytes as u32)
        });
        let guess = chooses.as_ref().and_then(|router| {
            let routing = model.routing();
            Guess::of(to, skinny, layer.index, outputs, &routing, router, handed)
        });
        Ok(Self {
            layer,
            skinny,
            chooses,
            guess,
        })
    }

    /// A mixture's router and experts.
    fn mixture(&self, op: &Op) -> Result<(RouterWeights, &'m ExpertWeights)> {
        match (self.layer.router(), &self.layer.weights.feed_forward) {
            (Some(router), FeedForwardAddresses::Moe { experts, .. }) => Ok((router, experts)),
            _ => Err(misplaced(op)),
        }
    }

    fn out(&self, model: &ModelAddresses, to: &mut Lowering<'_>, product: &Residual) {
        let routing = model.routing();
        let scores = self.chooses.as_ref().map(|router| (&routing, router));
        to.skinny_out(self.skinny, model.h(), product, scores);
    }
}

pub(super) fn conv_in(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let served = Served::of(model, to, &ops[0])?;
    let conv = Conv::of(model, &ops[1])?;
    let weights = ConvIn {
        norm: served.layer.weights.operator_norm,
        in_proj: conv.in_proj,
        bias: conv.in_proj_bias,
    };
    let guess = served.guess.as_ref();
    to.skinny_conv(served.skinny, &conv.short, &weights, model.h(), guess);
    Ok(())
}

pub(super) fn qkv(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let served = Served::of(model, to, &ops[0])?;
    let w = Projections::of(model, &ops[1])?.qkv;
    to.skinny_project(
        served.skinny,
        model.wide(),
        model.h(),
        served.layer.weights.operator_norm,
        (w, model.attended().0),
        served.guess.as_ref(),
    );
    Ok(())
}

pub(super) fn conv_out(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let conv = Conv::of(model, &ops[0])?;
    let product = Residual {
        x: model.x(),
        w: conv.out_proj,
        bias: conv.out_proj_bias,
        inner: model.config.hidden_size as u32,
    };
    Served::of(model, to, &ops[0])?.out(model, to, &product);
    Ok(())
}

pub(super) fn attention_out(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    let product = Residual {
        x: model.x(),
        w: Projections::of(model, &ops[0])?.out,
        bias: 0,
        inner: model.attended().1,
    };
    Served::of(model, to, &ops[0])?.out(model, to, &product);
    Ok(())
}

pub(super) fn dense_gate_up(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    let served = Served::of(model, to, &ops[0])?;
    let [w1, w3, _] = dense(&served.layer, &ops[1])?;
    let norm = served.layer.weights.ffn_norm;
    to.skinny_gate_up(served.skinny, model.wide(), model.h(), norm, (w1, w3));
    Ok(())
}

pub(super) fn dense_down(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let served = Served::of(model, to, &ops[0])?;
    let [.., w2] = dense(&served.layer, &ops[0])?;
    let product = Residual {
        x: model.wide(),
        w: w2,
        bias: 0,
        inner: model.config.intermediate_size as u32,
    };
    served.out(model, to, &product);
    Ok(())
}

/// Gate and up, which end the router, then down.
pub(super) fn experts(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let served = Served::of(model, to, &ops[0])?;
    let (router, experts) = served.mixture(&ops[1])?;
    let (h, y, routing) = (model.h(), model.wide(), model.routing());
    to.doing(&ops[..3]);
    to.skinny_expert_gate_up(
        served.skinny,
        y,
        h,
        (&routing, &router),
        experts,
        served.guess.as_ref(),
    );
    to.doing(&ops[3..]);
    to.skinny_down(served.skinny, h, y, &routing, experts);
    Ok(())
}

/// All in one kernel.
pub(super) fn fused_experts(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    let served = Served::of(model, to, &ops[0])?;
    let (router, experts) = served.mixture(&ops[1])?;
    let routing = model.routing();
    let guess = served.guess.as_ref().ok_or_else(|| misplaced(&ops[1]))?;
    to.skinny_fused_experts(
        served.skinny,
        model.h(),
        (&routing, &router),
        experts,
        guess,
    );
    Ok(())
}
