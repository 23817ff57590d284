//! A layer's operations where the skinny kernels do them: several in one launch, which reads one matrix.

use super::layer::short_conv_of;
use super::{ModelAddresses, misplaced};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::router::RouterWeights;
use crate::backend::cuda::families::skinny::{ConvIn, Prediction, Residual, SkinnyBucket};
use crate::backend::cuda::tuning::variants::Experts;
use crate::error::Result;
use crate::model::LayerType;
use crate::plan::Op;

/// A layer that these kernels serve.
struct Served<'m> {
    skinny: SkinnyBucket<'m>,
    /// Where the experts are these kernels' too.
    chooses: Option<RouterWeights>,
    /// The prediction that the layer's first kernel makes, for its gate and up.
    prediction: Option<Prediction>,
}

impl<'m> Served<'m> {
    fn of(model: &ModelAddresses, to: &Lowering<'m>, op: &Op) -> Result<Self> {
        let config = &model.config;
        let skinny = to.skinny().ok_or_else(|| misplaced(op))?;
        let layer = op.layer.ok_or_else(|| misplaced(op))?;
        let chooses = to.skinny_experts().and_then(|_| model.router(op));
        // Outputs of the layer's first kernel.
        let outputs = match config.layer_types[layer] {
            LayerType::Conv => config.hidden_size,
            LayerType::FullAttention => {
                (config.num_attention_heads + 2 * config.num_key_value_heads) * config.head_dim
            }
        };
        // What the blocks of fused experts hand to each other, and its bytes.
        let handed = (to.variant.experts == Experts::Fused).then(|| {
            let values = config.num_experts_per_tok * config.moe_intermediate_size;
            let bytes = values * to.kernels.precision.compute.bytes();
            (model.at(model.places.handed), bytes as u32)
        });
        let prediction = chooses.as_ref().and_then(|router| {
            let routing = model.routing();
            Prediction::of(to, skinny, layer, outputs as u32, &routing, router, handed)
        });
        Ok(Self {
            skinny,
            chooses,
            prediction,
        })
    }
}

/// Adds what an operation's matrix makes of x to the residual stream.
fn add(model: &ModelAddresses, to: &mut Lowering<'_>, op: &Op, x: Address) -> Result<()> {
    let served = Served::of(model, to, op)?;
    let (w, bias) = model.matrix(op)?;
    let routing = model.routing();
    let scores = served.chooses.as_ref().map(|router| (&routing, router));
    to.skinny_out(served.skinny, model.h(), &Residual { x, w, bias }, scores);
    Ok(())
}

pub(super) fn conv_in(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let served = Served::of(model, to, &ops[0])?;
    let (in_proj, bias) = model.matrix(&ops[1])?;
    let weights = ConvIn {
        norm: model.vector(&ops[0])?,
        in_proj,
        bias,
    };
    let conv = short_conv_of(model, &ops[2])?;
    let prediction = served.prediction.as_ref();
    to.skinny_conv(served.skinny, &conv, &weights, model.h(), prediction);
    Ok(())
}

pub(super) fn qkv(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let served = Served::of(model, to, &ops[0])?;
    let (w, _) = model.matrix(&ops[1])?;
    let norm = model.vector(&ops[0])?;
    let prediction = served.prediction.as_ref();
    to.skinny_project(
        served.skinny,
        (model.wide(), 0),
        model.h(),
        norm,
        &w,
        prediction,
    );
    Ok(())
}

/// A mixer's out-projection, of what lies in x.
pub(super) fn project_out(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    add(model, to, &ops[0], model.x())
}

pub(super) fn dense_gate_up(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    let served = Served::of(model, to, &ops[0])?;
    let (norm, pair) = (model.vector(&ops[0])?, model.pair(&ops[1])?);
    to.skinny_gate_up(served.skinny, model.wide(), model.h(), norm, pair);
    Ok(())
}

pub(super) fn dense_down(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    add(model, to, &ops[0], model.wide())
}

/// Gate and up, which end the router, then down.
pub(super) fn experts(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let Served {
        skinny, prediction, ..
    } = Served::of(model, to, &ops[0])?;
    let (router, experts) = model.mixture(&ops[1])?;
    let (h, y, routing) = (model.h(), model.wide(), model.routing());
    to.doing(&ops[..3]);
    let choosing = (&routing, &router);
    to.skinny_expert_gate_up(skinny, y, h, choosing, &experts, prediction.as_ref());
    to.doing(&ops[3..]);
    to.skinny_down(skinny, h, y, &routing, &experts);
    Ok(())
}

/// All in one kernel.
pub(super) fn fused_experts(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    let Served {
        skinny, prediction, ..
    } = Served::of(model, to, &ops[0])?;
    let (router, experts) = model.mixture(&ops[1])?;
    let routing = model.routing();
    let prediction = prediction.ok_or_else(|| misplaced(&ops[1]))?;
    let choosing = (&routing, &router);
    to.skinny_fused_experts(skinny, model.h(), choosing, &experts, &prediction);
    Ok(())
}
