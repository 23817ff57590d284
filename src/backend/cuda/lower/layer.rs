//! A layer's operations, but for what the skinny kernels do.

use super::{ModelAddresses, misplaced};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::attention::Attention;
use crate::backend::cuda::families::conv::ShortConv;
use crate::backend::cuda::families::experts::{ExpertRows, NextNorm};
use crate::backend::cuda::families::share::LayerState;
use crate::backend::cuda::families::tiled::{Epilogue, Prepared, Product, Rows};
use crate::error::Result;
use crate::plan::{Op, OpKind};

/// y of x by an operation's matrix.
fn product(
    model: &ModelAddresses,
    op: &Op,
    y: Address,
    x: Address,
    epilogue: Epilogue,
) -> Result<Product> {
    let (w, bias) = model.matrix(op)?;
    Ok(Product {
        y,
        x,
        w,
        w_pair: None,
        bias,
        epilogue,
        prepared: Prepared::Scratch(model.prepared()),
    })
}

/// What a conv layer's convolution takes.
pub(super) fn short_conv_of(model: &ModelAddresses, op: &Op) -> Result<ShortConv> {
    let (taps, bias) = model.matrix(op)?;
    match model.state(op)? {
        LayerState::Conv(state) => Ok(ShortConv {
            x: model.x(),
            bcx: model.wide(),
            state,
            taps: taps.address,
            bias,
        }),
        LayerState::Pages { .. } => Err(misplaced(op)),
    }
}

pub(super) fn embed(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    to.embed(model.h(), model.matrix(&ops[0])?.0);
    Ok(())
}

/// A layer's norms.
pub(super) fn norm(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    to.norm(model.x(), model.h(), model.vector(&ops[0])?);
    Ok(())
}

/// In-projections, and q, k and v.
pub(super) fn project(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let store = Epilogue::Store;
    let product = product(model, &ops[0], model.wide(), model.x(), store)?;
    to.product(&product, Rows::Step);
    Ok(())
}

/// A mixer's out-projection, of what lies in x.
pub(super) fn project_out(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let out = product(model, &ops[0], model.h(), model.x(), Epilogue::Add)?;
    to.product_before(&out, model.experts(&ops[0]).as_ref());
    Ok(())
}

pub(super) fn short_conv(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    to.short_conv(&short_conv_of(model, &ops[0])?);
    Ok(())
}

/// In-projection and convolution in one kernel, then the out-projection: of what the first leaves in the place of wide rows,
/// because some of its blocks still read x when others are done.
pub(super) fn conv_layer(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let (w, bias) = model.matrix(&ops[0])?;
    let short = short_conv_of(model, &ops[1])?;
    let experts = model.experts(&ops[0]);
    to.doing(&ops[..2]);
    if let Some(swap_ab) = to.swap_ab_convolves() {
        to.swap_ab_conv(swap_ab, &short, &w, bias, experts.as_ref());
    } else if let Some(persistent) = to.persistent_convolves() {
        to.persistent_conv(persistent, &short, &w, bias);
    } else {
        return Err(misplaced(&ops[0]));
    }
    to.doing(&ops[2..]);
    let out = product(model, &ops[2], model.h(), model.wide(), Epilogue::Add)?;
    to.product_before(&out, experts.as_ref());
    Ok(())
}

/// What the attention of an operation's layer takes.
fn attention_of(model: &ModelAddresses, op: &Op) -> Result<Attention> {
    let places = &model.places;
    let norms = model.weights.read.of(op.layer, OpKind::QkNormRope);
    match (norms, model.state(op)?) {
        ([q_norm, k_norm], LayerState::Pages { k, v }) => Ok(Attention {
            x: model.x(),
            qkv: model.qkv(),
            k_pages: k,
            v_pages: v,
            q_norm: q_norm.address,
            k_norm: k_norm.address,
            inverse_frequencies: model.weights.inverse_frequencies,
            query_tiles: model.at(places.query_tiles),
            query_tile_count: model.at(places.query_tile_count),
            partials: model.at(places.attention_partials),
            done: model.at(places.attention_done),
            max_context: model.max_context,
            pool: model.pool,
        }),
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

/// Norms and rotations of chunks; keys and values go to their pages.
pub(super) fn qk_norm_rope(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    to.qk_norm_rope(&attention_of(model, &ops[0])?);
    Ok(())
}

/// Attention of chunks.
pub(super) fn attention(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    to.attention(&attention_of(model, &ops[0])?);
    Ok(())
}

pub(super) fn dense_gate_up(
    model: &ModelAddresses,
    to: &mut Lowering<'_>,
    ops: &[Op],
) -> Result<()> {
    let (gate, up) = model.pair(&ops[0])?;
    let product = Product {
        y: model.wide(),
        x: model.x(),
        w: gate,
        w_pair: Some(up),
        bias: 0,
        epilogue: Epilogue::SiluMul,
        prepared: Prepared::Scratch(model.prepared()),
    };
    to.product(&product, Rows::Step);
    Ok(())
}

pub(super) fn dense_down(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let product = Product {
        prepared: Prepared::There,
        ..product(model, &ops[0], model.h(), model.wide(), Epilogue::Add)?
    };
    to.product(&product, Rows::Step);
    Ok(())
}

/// Norm, router and experts; with a fifth operation also the norm of the next layer.
pub(super) fn mixture(model: &ModelAddresses, to: &mut Lowering<'_>, ops: &[Op]) -> Result<()> {
    let (x, h, routing) = (model.x(), model.h(), model.routing());
    let (router, experts) = model.mixture(&ops[1])?;
    let next = match ops.get(4) {
        Some(norm) => Some(NextNorm {
            x,
            weight: model.vector(norm)?,
        }),
        None => None,
    };
    let rows = ExpertRows {
        x,
        prepared: model.prepared(),
        y: model.wide(),
        partial: model.at(model.places.partial),
    };
    to.doing(&ops[..2]);
    to.router(&routing, x, h, &router);
    to.expert_products(&routing, &experts, &rows, &ops[2..4]);
    to.doing(&ops[3..]);
    to.combine_experts(&routing, h, &rows, next);
    Ok(())
}
