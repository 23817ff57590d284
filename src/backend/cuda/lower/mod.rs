//! Lowering: from a stage's operations to the calls that do them on a GPU. Which operations go together, and to which family of
//! kernels, is decided in `rules` and nowhere else. Which of its kernels a family takes for a shape, and how it sizes the launch,
//! is the family's own (`families`). The list that comes out is a value, made of addresses alone: it is launched, captured,
//! printed and timed, and needs no GPU to be made.

mod head;
mod layer;
pub mod listing;
mod needed;
mod rules;
mod skinny;

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::KernelCall;
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::attention::PagePool;
use crate::backend::cuda::families::experts::{ExpertWeights, Routing};
use crate::backend::cuda::families::head::LogitsRing;
use crate::backend::cuda::families::router::RouterWeights;
use crate::backend::cuda::families::share::{LayerState, Sharing};
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::memory::arena::Arena;
use crate::backend::cuda::memory::state::{StateAt, StateLayout};
use crate::backend::cuda::memory::weights::WeightAddresses;
use crate::error::{Error, Result};
use crate::model::ModelConfig;
use crate::plan::{NeededRows, Op, OpKind, StepKind};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Where a model's arrays lie.
#[derive(Debug, Clone)]
pub struct ModelAddresses {
    pub config: Arc<ModelConfig>,
    pub weights: WeightAddresses,
    pub places: Arena,
    /// Where the arena begins.
    pub arena: Address,
    /// The residual stream, where that is not in the arena's place for it.
    pub moved_h: Option<Address>,
    /// Queries, where these are not with the keys and values.
    pub moved_q: Option<Address>,
    /// By layer: conv state, or keys and values; none for a layer that is not here.
    pub state: Vec<Option<LayerState>>,
    /// Whether sequences may share prefixes.
    pub shares: bool,
    /// Takes the logits that requests ask for.
    pub logits: Option<LogitsRing>,
    /// Tokens of a sequence, at most.
    pub max_context: u32,
    pub pool: PagePool,
}

impl LayerState {
    /// The arrays of all layers, laid out from `start` on.
    pub fn all(layout: &StateLayout, start: Address) -> Vec<Option<Self>> {
        let at = |offset: usize| start + offset as u64;
        let state = |place: StateAt| match place {
            StateAt::Conv(place) => Self::Conv(at(place)),
            StateAt::Pages { k, v } => Self::Pages { k: at(k), v: at(v) },
        };
        layout.layers.iter().map(|place| place.map(state)).collect()
    }
}

/// The calls that do `ops`, one after the other: in a mixed step those behind the last attention for the rows alone that are needed.
/// Steps with prompts get from shared prefixes what these have before all others, and leave them theirs behind all others.
///
/// # Errors
/// [`Error::Runtime`]: the plan holds an operation that the model does not have there.
pub fn lower(
    model: &ModelAddresses,
    ops: &[Op],
    mut lowering: Lowering<'_>,
) -> Result<Vec<KernelCall>> {
    let needed = NeededRows::of_step(&model.config, lowering.bucket.kind);
    let whole = needed.map_or(ops.len(), |needed| needed.whole(ops));
    let (whole, last) = ops.split_at(whole);
    share(model, ops, Sharing::Starts, &mut lowering);
    lower_rows(model, whole, &mut lowering)?;
    if let (Some(needed), [_, ..]) = (needed, last) {
        needed::lower(model, needed, last, &mut lowering)?;
    }
    share(model, ops, Sharing::Ends, &mut lowering);
    Ok(lowering.into_calls())
}

/// The copies from or to shared prefixes that a stage's layers ask for, as a part of its first or its last operation.
fn share(model: &ModelAddresses, ops: &[Op], sharing: Sharing, to: &mut Lowering<'_>) {
    let part_of = match sharing {
        Sharing::Starts => ops.first(),
        Sharing::Ends => ops.last(),
    };
    let (Some(part_of), true) = (part_of, model.shares) else {
        return;
    };
    if to.bucket.kind == StepKind::Decode {
        return;
    }
    let layers: BTreeSet<usize> = ops.iter().filter_map(|op| op.layer).collect();
    let layers = layers.into_iter().filter_map(|layer| model.state[layer]);
    to.doing(std::slice::from_ref(part_of));
    to.share_prefixes(sharing, &layers.collect::<Vec<_>>(), model.pool.page_tokens);
}

/// The calls that do `ops` for all rows of the step that `lowering` has.
fn lower_rows(model: &ModelAddresses, ops: &[Op], lowering: &mut Lowering<'_>) -> Result<()> {
    let mut rest = ops;
    while let Some(first) = rest.first() {
        let rule = rules::first_of(rest, lowering).ok_or_else(|| misplaced(first))?;
        let (done, behind) = rest.split_at(rule.ops.len());
        lowering.doing(done);
        (rule.lower)(model, lowering, done)?;
        rest = behind;
    }
    Ok(())
}

/// An operation that the plan has and the model does not have there.
fn misplaced(op: &Op) -> Error {
    Error::Runtime(format!(
        "the plan holds {op:?}, which this model does not have there: make the plan from the model's own configuration"
    ))
}

impl ModelAddresses {
    fn at(&self, offset: usize) -> Address {
        self.arena + offset as u64
    }

    /// The residual stream, f32 `[R, H]`.
    fn h(&self) -> Address {
        self.moved_h.unwrap_or_else(|| self.at(self.places.h))
    }

    /// q, k and v, of which q may lie elsewhere.
    fn qkv(&self) -> Address {
        self.moved_q.unwrap_or_else(|| self.wide())
    }

    /// The operand of the next product, `[R, H]`.
    fn x(&self) -> Address {
        self.at(self.places.x)
    }

    /// Scratch for rows as [`Prepared`](crate::backend::cuda::families::tiled::Prepared).
    fn prepared(&self) -> Address {
        self.at(self.places.prepared)
    }

    /// What products of more outputs than H leave.
    fn wide(&self) -> Address {
        self.at(self.places.wide)
    }

    /// What an operation reads.
    ///
    /// # Errors
    /// The model has no such operation here.
    fn weights(&self, op: &Op) -> Result<&[Matrix]> {
        match self.weights.read.of(op.layer, op.kind) {
            [] => Err(misplaced(op)),
            weights => Ok(weights),
        }
    }

    /// An operation's matrix, q, k and v as one, and its bias, or 0.
    fn matrix(&self, op: &Op) -> Result<(Matrix, Address)> {
        match (op.kind, self.weights(op)?) {
            (OpKind::QkvProj, [q, k, v]) => Ok((q.above(k).above(v), 0)),
            (_, [w]) => Ok((*w, 0)),
            (_, [w, bias]) => Ok((*w, bias.address)),
            _ => Err(misplaced(op)),
        }
    }

    /// A norm's weight.
    fn vector(&self, op: &Op) -> Result<Address> {
        Ok(self.weights(op)?[0].address)
    }

    /// w1 and w3 of a dense layer.
    fn pair(&self, op: &Op) -> Result<(Matrix, Matrix)> {
        match self.weights(op)? {
            [w1, w3] => Ok((*w1, *w3)),
            _ => Err(misplaced(op)),
        }
    }

    /// What the layer of an operation carries from step to step.
    fn state(&self, op: &Op) -> Result<LayerState> {
        let state = op.layer.and_then(|layer| *self.state.get(layer)?);
        state.ok_or_else(|| misplaced(op))
    }

    /// The experts of the operation's layer, if it has any.
    fn experts(&self, op: &Op) -> Option<ExpertWeights> {
        let of = |kind| self.weights.read.of(op.layer, kind);
        match (of(OpKind::ExpertGateUp), of(OpKind::ExpertDown)) {
            (&[gate, up], &[down]) => Some(ExpertWeights { gate, up, down }),
            _ => None,
        }
    }

    /// What chooses the experts of the operation's layer, if it has any.
    fn router(&self, op: &Op) -> Option<RouterWeights> {
        let of = |kind| self.weights.read.of(op.layer, kind);
        let gate = *of(OpKind::Router).first()?;
        Some(RouterWeights {
            norm: of(OpKind::FfnNorm).first()?.address,
            gate,
            bias: of(OpKind::Router).get(1).map_or(0, |bias| bias.address),
            predictor: op.layer.map_or(0, |layer| self.weights.predictors[layer]),
        })
    }

    /// A mixture's router and experts.
    fn mixture(&self, op: &Op) -> Result<(RouterWeights, ExpertWeights)> {
        let mixture = self.router(op).zip(self.experts(op));
        mixture.ok_or_else(|| misplaced(op))
    }

    fn routing(&self) -> Routing {
        let p = &self.places;
        Routing {
            experts: self.at(p.experts),
            weights: self.at(p.expert_weights),
            score_parts: self.at(p.expert_score_parts),
            rows: self.at(p.expert_rows),
            place: self.at(p.expert_place),
            tiles: self.at(p.expert_tiles),
            tile_count: self.at(p.expert_tile_count),
        }
    }
}
