//! A layer's operations, but for what the skinny kernels do.

use super::{Layer, ModelAddresses, misplaced};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::attention::Attention;
use crate::backend::cuda::families::conv::ShortConv;
use crate::backend::cuda::families::experts::{ExpertRows, ExpertWeights, NextNorm};
use crate::backend::cuda::families::tiled::{Epilogue, Parts, Product, Rows};
use crate::backend::cuda::lower::LayerState;
use crate::backend::cuda::memory::weights::{FeedForwardAddresses, MixerAddresses};
use crate::error::Result;
use crate::plan::Op;

/// y of x, without a bias.
fn product(
    model: &ModelAddresses,
    y: Address,
    x: Address,
    w: Address,
    (outputs, inner): (u32, u32),
    add: bool,
) -> Product {
    Product {
        parts: Parts::Scratch(model.parts()),
        y,
        x,
        w,
        w_pair: 0,
        bias: 0,
        outputs,
        inner,
        epilogue: match add {
            true => Epilogue::Add,
            false => Epilogue::Store,
        },
    }
}

/// What a conv layer's operations take.
pub(super) struct Conv {
    pub in_proj: Address,
    pub in_proj_bias: Address,
    pub out_proj: Address,
    pub out_proj_bias: Address,
    pub short: ShortConv,
}

impl Conv {
    pub(super) fn of(model: &ModelAddresses, op: &Op) -> Result<Self> {
        let layer = model.layer(op)?;
        match (&layer.weights.mixer, layer.state) {
            (
                &MixerAddresses::Conv {
                    in_proj,
                    in_proj_bias,
                    taps,
                    taps_bias,
                    out_proj,
                    out_proj_bias,
                },
                LayerState::Conv(state),
            ) => Ok(Self {
                in_proj,
                in_proj_bias,
                out_proj,
                out_proj_bias,
                short: ShortConv {
                    x: model.x(),
                    bcx: model.wide(),
                    state,
                    taps,
                    bias: taps_bias,
                },
            }),
            _ => Err(misplaced(op)),
        }
    }

    /// h += out_proj(x) + bias
    fn out(&self, model: &ModelAddresses, x: Address) -> Product {
        let hidden = model.config.hidden_size as u32;
        Product {
            bias: self.out_proj_bias,
            ..product(model, model.h(), x, self.out_proj, (hidden, hidden), true)
        }
    }
}

/// Of an attention layer.
pub(super) struct Projections {
    pub qkv: Address,
    pub out: Address,
}

impl Projections {
    pub(super) fn of(model: &ModelAddresses, op: &Op) -> Result<Self> {
        match model.layer(op)?.weights.mixer {
            MixerAddresses::Attention {
                qkv_proj, out_proj, ..
            } => Ok(Self {
                qkv: qkv_proj,
                out: out_proj,
            }),
            MixerAddresses::Conv { .. } => Err(misplaced(op)),
        }
    }
}

/// w1, w3 and w2 of a dense layer.
pub(super) fn dense(layer: &Layer<'_>, op: &Op) -> Result<[Address; 3]> {
    match layer.weights.feed_forward {
        FeedForwardAddresses::Dense { w1, w3, w2 } => Ok([w1, w3, w2]),
        FeedForwardAddresses::Moe { .. } => Err(misplaced(op)),
    }
}

/// Of a layer that has any.
fn experts<'a>(layer: &Layer<'a>) -> Option<&'a ExpertWeights> {
    match &layer.weights.feed_forward {
        FeedForwardAddresses::Moe { experts, .. } => Some(experts),
        FeedForwardAddresses::Dense { .. } => None,
    }
}

pub(super) fn embed(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let embedding = model
        .weights
        .embed_tokens
        .ok_or_else(|| misplaced(&ops[0]))?;
    to.embed(model.h(), embedding);
    Ok(())
}

pub(super) fn operator_norm(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    let weight = model.layer(&ops[0])?.weights.operator_norm;
    to.norm(model.x(), model.h(), weight);
    Ok(())
}

pub(super) fn ffn_norm(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let weight = model.layer(&ops[0])?.weights.ffn_norm;
    to.norm(model.x(), model.h(), weight);
    Ok(())
}

pub(super) fn conv_in(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let conv = Conv::of(model, &ops[0])?;
    let hidden = model.config.hidden_size as u32;
    let in_proj = Product {
        bias: conv.in_proj_bias,
        ..product(
            model,
            model.wide(),
            model.x(),
            conv.in_proj,
            (3 * hidden, hidden),
            false,
        )
    };
    to.product(&in_proj, Rows::Step);
    Ok(())
}

pub(super) fn short_conv(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    to.short_conv(&Conv::of(model, &ops[0])?.short);
    Ok(())
}

pub(super) fn conv_out(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let out = Conv::of(model, &ops[0])?.out(model, model.x());
    to.product_before(&out, experts(&model.layer(&ops[0])?));
    Ok(())
}

/// In-projection and convolution in one kernel, then the out-projection: of what the first leaves in the place of wide rows,
/// because some of its blocks still read x when others are done.
pub(super) fn conv_layer(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let conv = Conv::of(model, &ops[0])?;
    let (w, bias) = (conv.in_proj, conv.in_proj_bias);
    let layer = model.layer(&ops[0])?;
    let experts = experts(&layer);
    to.doing(&ops[..2]);
    if let Some(swap_ab) = to.swap_ab_convolves() {
        to.swap_ab_conv(swap_ab, &conv.short, w, bias, experts);
    } else if let Some(persistent) = to.persistent_convolves() {
        to.persistent_conv(persistent, &conv.short, w, bias);
    } else {
        return Err(misplaced(&ops[0]));
    }
    to.doing(&ops[2..]);
    to.product_before(&conv.out(model, model.wide()), experts);
    Ok(())
}

pub(super) fn qkv(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let w = Projections::of(model, &ops[0])?.qkv;
    let (outputs, _) = model.attended();
    let hidden = model.config.hidden_size as u32;
    let product = product(model, model.wide(), model.x(), w, (outputs, hidden), false);
    to.product(&product, Rows::Step);
    Ok(())
}

fn attention_of(model: &ModelAddresses, op: &Op) -> Result<Attention> {
    let layer = model.layer(op)?;
    let places = &model.places;
    match (&layer.weights.mixer, layer.state) {
        (&MixerAddresses::Attention { q_norm, k_norm, .. }, LayerState::Pages { k, v }) => {
            Ok(Attention {
                x: model.x(),
                qkv: model.wide(),
                k_pages: k,
                v_pages: v,
                q_norm,
                k_norm,
                inverse_frequencies: model.weights.inverse_frequencies,
                query_tiles: model.at(places.query_tiles),
                query_tile_count: model.at(places.query_tile_count),
                partials: model.at(places.attention_partials),
                done: model.at(places.attention_done),
                max_context: model.max_context,
                pool: model.pool,
            })
        }
        _ => Err(misplaced(op)),
    }
}

pub(super) fn attention_decode(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    to.attention_decode(&attention_of(model, &ops[0])?);
    Ok(())
}

pub(super) fn qk_norm_rope(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    to.qk_norm_rope(&attention_of(model, &ops[0])?);
    Ok(())
}

pub(super) fn attention(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    to.attention(&attention_of(model, &ops[0])?);
    Ok(())
}

pub(super) fn attention_out(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    let w = Projections::of(model, &ops[0])?.out;
    let (_, q) = model.attended();
    let hidden = model.config.hidden_size as u32;
    let product = product(model, model.h(), model.x(), w, (hidden, q), true);
    to.product_before(&product, experts(&model.layer(&ops[0])?));
    Ok(())
}

pub(super) fn dense_gate_up(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    let [w1, w3, _] = dense(&model.layer(&ops[0])?, &ops[0])?;
    to.dense_gate_up(model.wide(), model.x(), model.parts(), (w1, w3));
    Ok(())
}

pub(super) fn dense_down(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let [.., w2] = dense(&model.layer(&ops[0])?, &ops[0])?;
    let (hidden, inner) = (model.config.hidden_size, model.config.intermediate_size);
    let product = Product {
        parts: Parts::There,
        ..product(
            model,
            model.h(),
            model.wide(),
            w2,
            (hidden as u32, inner as u32),
            true,
        )
    };
    to.product(&product, Rows::Step);
    Ok(())
}

/// Norm, router and experts; with a fifth operation also the norm of the next layer.
pub(super) fn mixture(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let layer = model.layer(&ops[0])?;
    let (x, h, routing) = (model.x(), model.h(), model.routing());
    let (Some(router), FeedForwardAddresses::Moe { experts, .. }) =
        (layer.router(), &layer.weights.feed_forward)
    else {
        return Err(misplaced(&ops[1]));
    };
    let next = match ops.get(4) {
        Some(norm) => Some(NextNorm {
            x,
            weight: model.layer(norm)?.weights.operator_norm,
        }),
        None => None,
    };
    let rows = ExpertRows {
        x,
        parts: model.parts(),
        y: model.wide(),
        partial: model.at(model.places.partial),
    };
    let pairs = to.pairs();
    to.doing(&ops[..2]);
    to.router(&routing, x, h, &router, pairs);
    to.expert_products(&routing, experts, &rows, pairs, &ops[2..4]);
    to.doing(&ops[3..]);
    to.combine_experts(&routing, h, &rows, pairs, next);
    Ok(())
}
