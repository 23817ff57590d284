//! A plan's operations as launches: which kernels each one is, and where their operands lie.

use super::{LayerState, Shared, skinny};
use crate::backend::cuda::launch::Address;
use crate::backend::cuda::ops::Enqueue;
use crate::backend::cuda::ops::attention::Attention;
use crate::backend::cuda::ops::conv::ShortConv;
use crate::backend::cuda::ops::experts::{ExpertRows, NextNorm, Routing};
use crate::backend::cuda::ops::head::logits_parts;
use crate::backend::cuda::ops::router::RouterWeights;
use crate::backend::cuda::ops::tiled::{Epilogue, Product, Rows};
use crate::backend::cuda::weights::{FeedForwardAddresses, MixerAddresses};
use crate::error::{Error, Result};
use crate::plan::{Op, OpKind, StepKind};

/// An operation that the plan has and the model does not have there.
pub(super) fn misplaced(op: &Op) -> Error {
    Error::Runtime(format!(
        "the plan holds {op:?}, which this model does not have there: make the plan from the model's own configuration"
    ))
}

impl Shared {
    pub(super) fn at(&self, offset: usize) -> Address {
        self.arena.at(offset)
    }

    /// Operations before the first and after the last layer.
    ///
    /// # Safety
    /// [`Enqueue`]'s.
    pub(super) unsafe fn outer_operation(&self, queue: &Enqueue<'_>, op: &Op) -> Result<()> {
        let (p, w) = (&self.places, &self.weights);
        let (h, x) = (self.at(p.h), self.at(p.x));
        // SAFETY: the caller's promise; shapes are those of the arena and the weights.
        unsafe {
            match op.kind {
                OpKind::Embed => queue.embed(h, w.embed_tokens),
                OpKind::FinalNorm => queue.final_norm(x, h, w.embedding_norm),
                // Logits of a score step are dead once the next tile is there, so a tile goes from its product to the
                // host and to sampling in one go: here, before `Sample`.
                OpKind::LmHead => self.logits(queue, h, x),
                OpKind::Sample => Ok(()),
                _ => Err(misplaced(op)),
            }
        }
    }

    /// From the normed rows `x` (for few rows from `h`, which is normed on the way) to logits, to the host and to tokens,
    /// part by part.
    ///
    /// # Safety
    /// [`Enqueue`]'s.
    unsafe fn logits(&self, queue: &Enqueue<'_>, h: Address, x: Address) -> Result<()> {
        let (logits, seen) = (self.at(self.places.logits), self.at(self.places.seen));
        let best = self.at(self.places.sample_best);
        let (norm, lm_head) = (self.weights.embedding_norm, self.weights.lm_head);
        let mut parts = logits_parts(queue.bucket.kind, queue.bucket.rows).peekable();
        // SAFETY: the caller's promise; the arena has room for the logits of any part.
        unsafe {
            // A row of a decode step is marked as it is sampled.
            if queue.bucket.kind != StepKind::Decode {
                queue.mark_seen(seen)?;
            }
            while let Some(part) = parts.next() {
                let found = match queue.skinny() {
                    Some(skinny) => {
                        Some(queue.skinny_lm_head(skinny, logits, best, h, norm, lm_head)?)
                    }
                    None => queue.lm_head(part, logits, best, x, lm_head)?,
                };
                if let Some(delivery) = &self.delivery {
                    queue.deliver(part, parts.peek().is_none(), logits, &delivery.ring())?;
                }
                queue.sample(part, logits, seen, best, found)?;
            }
        }
        Ok(())
    }

    /// An operation of a layer; `after` is the next of its stage.
    ///
    /// # Safety
    /// [`Enqueue`]'s.
    pub(super) unsafe fn layer_operation(
        &self,
        queue: &Enqueue<'_>,
        op: &Op,
        layer: usize,
        after: Option<&Op>,
    ) -> Result<()> {
        let skinny_experts = queue.skinny_experts().is_some();
        if let Some(skinny) = queue
            .skinny()
            .filter(|_| skinny::serves(op.kind, skinny_experts))
        {
            // SAFETY: the caller's promise.
            return unsafe { self.skinny_operation(queue, skinny, op, layer) };
        }
        let config = &*self.config;
        let (p, w) = (&self.places, &self.weights.layers[layer]);
        let (h, x, wide) = (self.at(p.h), self.at(p.x), self.at(p.wide));
        let hidden = config.hidden_size as u32;
        let q = (config.num_attention_heads * config.head_dim) as u32;
        let kv = (config.num_key_value_heads * config.head_dim) as u32;
        let product = |y, x, w, bias, (outputs, inner), epilogue| Product {
            y,
            x,
            w,
            w_pair: 0,
            bias,
            outputs,
            inner,
            epilogue,
        };
        // SAFETY: the caller's promise; shapes are those of the arena, the state and the weights.
        unsafe {
            match (op.kind, &w.mixer, self.state[layer], &w.feed_forward) {
                (OpKind::OperatorNorm, ..) => queue.norm(x, h, w.operator_norm),
                (OpKind::FfnNorm, ..) => queue.norm(x, h, w.ffn_norm),
                (
                    OpKind::ConvInProj,
                    &MixerAddresses::Conv {
                        in_proj,
                        in_proj_bias,
                        taps,
                        taps_bias,
                        ..
                    },
                    LayerState::Conv(state),
                    _,
                ) => {
                    if let Some(swap_ab) = queue.swap_ab_conv_serves() {
                        let experts = match &w.feed_forward {
                            FeedForwardAddresses::Moe { experts, .. } => Some(experts),
                            FeedForwardAddresses::Dense { .. } => None,
                        };
                        let conv = ShortConv {
                            x,
                            bcx: wide,
                            state,
                            taps,
                            bias: taps_bias,
                        };
                        return queue.swap_ab_conv(swap_ab, &conv, in_proj, in_proj_bias, experts);
                    }
                    let shape = (3 * hidden, hidden);
                    let product = product(wide, x, in_proj, in_proj_bias, shape, Epilogue::Store);
                    queue.product(&product, Rows::Step)
                }
                (
                    OpKind::ShortConv,
                    &MixerAddresses::Conv {
                        taps, taps_bias, ..
                    },
                    LayerState::Conv(state),
                    _,
                ) => queue.short_conv(&ShortConv {
                    x,
                    bcx: wide,
                    state,
                    taps,
                    bias: taps_bias,
                }),
                (
                    OpKind::ConvOutProj,
                    &MixerAddresses::Conv {
                        out_proj,
                        out_proj_bias,
                        ..
                    },
                    ..,
                ) => {
                    let shape = (hidden, hidden);
                    // Blocks of the fused kernel still read x as others are done.
                    let convolved = queue.swap_ab_conv_serves().map_or(x, |_| wide);
                    let product =
                        product(h, convolved, out_proj, out_proj_bias, shape, Epilogue::Add);
                    queue.product(&product, Rows::Step)
                }
                (OpKind::QkvProj, &MixerAddresses::Attention { qkv_proj, .. }, ..) => {
                    let shape = (q + 2 * kv, hidden);
                    let product = product(wide, x, qkv_proj, 0, shape, Epilogue::Store);
                    queue.product(&product, Rows::Step)
                }
                (
                    OpKind::QkNormRope | OpKind::Attention,
                    &MixerAddresses::Attention { q_norm, k_norm, .. },
                    LayerState::Pages { k, v },
                    _,
                ) => {
                    let attention = Attention {
                        x,
                        qkv: wide,
                        k_pages: k,
                        v_pages: v,
                        q_norm,
                        k_norm,
                        inverse_frequencies: self.weights.inverse_frequencies,
                        query_tiles: self.at(p.query_tiles),
                        query_tile_count: self.at(p.query_tile_count),
                        partials: self.at(p.attention_partials),
                        done: self.at(p.attention_done),
                        max_context: self.max_context,
                    };
                    match op.kind {
                        _ if queue.bucket.kind == StepKind::Decode => {
                            queue.attention_decode(&attention)
                        }
                        OpKind::QkNormRope => queue.qk_norm_rope(&attention),
                        _ => queue.attention(&attention),
                    }
                }
                (OpKind::AttentionOutProj, &MixerAddresses::Attention { out_proj, .. }, ..) => {
                    let product = product(h, x, out_proj, 0, (hidden, q), Epilogue::Add);
                    queue.product(&product, Rows::Step)
                }
                (OpKind::DenseGateUp, .., &FeedForwardAddresses::Dense { w1, w3, .. }) => {
                    queue.dense_gate_up(wide, x, w1, w3)
                }
                (OpKind::DenseDown, .., &FeedForwardAddresses::Dense { w2, .. }) => {
                    let shape = (hidden, config.intermediate_size as u32);
                    queue.product(&product(h, wide, w2, 0, shape, Epilogue::Add), Rows::Step)
                }
                (OpKind::Router, .., &FeedForwardAddresses::Moe { gate, bias, .. }) => {
                    let weights = RouterWeights {
                        norm: w.ffn_norm,
                        gate,
                        bias,
                    };
                    queue.router(&self.routing(), x, h, &weights)
                }
                (
                    OpKind::ExpertGateUp | OpKind::ExpertDown,
                    ..,
                    FeedForwardAddresses::Moe { experts, .. },
                ) => {
                    let rows = ExpertRows {
                        x,
                        y: wide,
                        partial: self.at(p.partial),
                        prefetched: matches!(w.mixer, MixerAddresses::Conv { .. })
                            && queue.swap_ab_conv_serves().is_some(),
                    };
                    match op.kind {
                        OpKind::ExpertGateUp => {
                            queue.expert_gate_up(&self.routing(), experts, &rows)
                        }
                        _ => {
                            // Products for few rows norm their rows themselves.
                            let after = after.filter(|_| queue.skinny().is_none());
                            let next = self.next_norm(after, x);
                            queue.expert_down(&self.routing(), experts, h, &rows, next)
                        }
                    }
                }
                _ => Err(misplaced(op)),
            }
        }
    }

    /// The norm that `after` is, if it is one of a layer.
    fn next_norm(&self, after: Option<&Op>, x: Address) -> Option<NextNorm> {
        let norm = after.filter(|after| after.kind == OpKind::OperatorNorm)?;
        Some(NextNorm {
            x,
            weight: self.weights.layers[norm.layer?].operator_norm,
        })
    }

    pub(super) fn routing(&self) -> Routing {
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
}
