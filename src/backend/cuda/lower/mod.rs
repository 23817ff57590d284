//! Lowering: from a stage's operations to the calls that do them on a GPU. Which operations go together, and to which family of
//! kernels, is decided in `rules` and nowhere else. Which of its kernels a family takes for a shape, and how it sizes the launch,
//! is the family's own (`families`). The list that comes out is a value, made of addresses alone: it is launched, captured,
//! printed and timed, and needs no GPU to be made.

mod head;
mod layer;
pub mod listing;
mod rules;
mod skinny;

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::KernelCall;
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::attention::PagePool;
use crate::backend::cuda::families::deliver::LogitsRing;
use crate::backend::cuda::families::experts::Routing;
use crate::backend::cuda::families::router::RouterWeights;
use crate::backend::cuda::memory::arena::Arena;
use crate::backend::cuda::memory::state::{StateAt, StateLayout};
use crate::backend::cuda::memory::weights::{
    FeedForwardAddresses, LayerAddresses, WeightAddresses,
};
use crate::error::{Error, Result};
use crate::model::ModelConfig;
use crate::plan::Op;
use std::sync::Arc;

/// Where a model's arrays lie.
#[derive(Debug, Clone)]
pub struct ModelAddresses {
    pub config: Arc<ModelConfig>,
    pub weights: WeightAddresses,
    pub places: Arena,
    /// Where the arena begins.
    pub arena: Address,
    /// The residual stream, where that is not in the arena.
    pub moved_h: Option<Address>,
    /// By layer: conv state, or keys and values; none for a layer that is not here.
    pub state: Vec<Option<LayerState>>,
    /// Takes the logits that requests ask for.
    pub logits: Option<LogitsRing>,
    /// Tokens of a sequence, at most.
    pub max_context: u32,
    pub pool: PagePool,
}

/// What a layer carries from step to step.
#[derive(Debug, Clone, Copy)]
pub enum LayerState {
    /// `[slots, L - 1, H]`, operand type.
    Conv(Address),
    /// `[pages, kv_heads, page_tokens, D]` each, operand type.
    Pages { k: Address, v: Address },
}

impl LayerState {
    /// Of all layers, laid out from `start` on.
    pub fn all(layout: &StateLayout, start: Address) -> Vec<Option<Self>> {
        let at = |offset: usize| start + offset as u64;
        let state = |place: StateAt| match place {
            StateAt::Conv(place) => Self::Conv(at(place)),
            StateAt::Pages { k, v } => Self::Pages { k: at(k), v: at(v) },
        };
        layout.layers.iter().map(|place| place.map(state)).collect()
    }
}

/// The calls that do `ops`, one after the other.
///
/// # Errors
/// [`Error::Runtime`]: the plan holds an operation that the model does not have there.
pub fn lower(
    model: &ModelAddresses,
    ops: &[Op],
    mut lowering: Lowering<'_>,
) -> Result<Vec<KernelCall>> {
    let mut rest = ops;
    while let Some(first) = rest.first() {
        let rule = rules::first_of(rest, &lowering).ok_or_else(|| misplaced(first))?;
        let (done, behind) = rest.split_at(rule.ops.len());
        lowering.doing(done);
        (rule.lower)(model, &mut lowering, done)?;
        rest = behind;
    }
    Ok(lowering.into_calls())
}

/// An operation that the plan has and the model does not have there.
fn misplaced(op: &Op) -> Error {
    Error::Runtime(format!(
        "the plan holds {op:?}, which this model does not have there: make the plan from the model's own configuration"
    ))
}

/// One layer's weights and state.
#[derive(Clone, Copy)]
struct Layer<'m> {
    index: usize,
    weights: &'m LayerAddresses,
    state: LayerState,
}

impl ModelAddresses {
    fn at(&self, offset: usize) -> Address {
        self.arena + offset as u64
    }

    /// The residual stream, f32 `[R, H]`.
    fn h(&self) -> Address {
        self.moved_h.unwrap_or_else(|| self.at(self.places.h))
    }

    /// The operand of the next product, `[R, H]`.
    fn x(&self) -> Address {
        self.at(self.places.x)
    }

    /// Scratch for the parts of f32 rows.
    fn parts(&self) -> Address {
        self.at(self.places.parts)
    }

    /// What products of more outputs than H leave.
    fn wide(&self) -> Address {
        self.at(self.places.wide)
    }

    /// The layer of an operation.
    ///
    /// # Errors
    /// It has none, or one that the model does not have.
    fn layer(&self, op: &Op) -> Result<Layer<'_>> {
        let index = op.layer.ok_or_else(|| misplaced(op))?;
        let weights = self.weights.layers.get(index).and_then(Option::as_ref);
        let state = self.state.get(index).copied().flatten();
        let (weights, state) = weights.zip(state).ok_or_else(|| misplaced(op))?;
        Ok(Layer {
            index,
            weights,
            state,
        })
    }

    fn routing(&self) -> Routing {
        let p = &self.places;
        Routing {
            experts: self.at(p.experts),
            weights: self.at(p.expert_weights),
            scores: self.at(p.expert_scores),
            score_parts: self.at(p.expert_score_parts),
            rows: self.at(p.expert_rows),
            place: self.at(p.expert_place),
            tiles: self.at(p.expert_tiles),
            tile_count: self.at(p.expert_tile_count),
        }
    }

    /// Outputs of a layer's q, k and v together, and those of q.
    fn attended(&self) -> (u32, u32) {
        let config = &self.config;
        let of = |heads: usize| (heads * config.head_dim) as u32;
        let q = of(config.num_attention_heads);
        (q + 2 * of(config.num_key_value_heads), q)
    }
}

impl Layer<'_> {
    /// Of a mixture.
    fn router(&self) -> Option<RouterWeights> {
        match self.weights.feed_forward {
            FeedForwardAddresses::Moe {
                gate, bias, guess, ..
            } => Some(RouterWeights {
                norm: self.weights.ffn_norm,
                gate,
                bias,
                guess,
            }),
            FeedForwardAddresses::Dense { .. } => None,
        }
    }
}
