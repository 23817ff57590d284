//! A layer's operations where the skinny kernels do them: several of the plan's in one launch, named after the one
//! that reads the weights.

use super::Shared;
use super::{LayerState, operations::misplaced};
use crate::backend::cuda::ops::Enqueue;
use crate::backend::cuda::ops::conv::ShortConv;
use crate::backend::cuda::ops::router::RouterWeights;
use crate::backend::cuda::ops::skinny::{ConvIn, Guess, Residual, Skinny};
use crate::backend::cuda::weights::{FeedForwardAddresses, MixerAddresses};
use crate::error::Result;
use crate::plan::variants::Experts;
use crate::plan::{Op, OpKind};

/// Whether another operation's kernel does `kind` too: its product's, for the norms, the short convolution and, where the
/// `experts` are these kernels' too, the router. A router of its own norms its rows itself.
pub(super) fn folded(kind: OpKind, experts: bool) -> bool {
    match kind {
        OpKind::OperatorNorm | OpKind::ShortConv | OpKind::FfnNorm | OpKind::FinalNorm => true,
        OpKind::Router => experts,
        _ => false,
    }
}

/// Whether [`Shared::skinny_operation`] does a layer's operation, gate and up of fused experts with down. Attention itself is none of these.
pub(super) fn serves(kind: OpKind, experts: bool) -> bool {
    match kind {
        OpKind::QkNormRope | OpKind::Attention => false,
        OpKind::Router | OpKind::ExpertGateUp | OpKind::ExpertDown => experts,
        _ => true,
    }
}

impl Shared {
    /// An operation of a layer that these kernels serve, with what is folded into it.
    ///
    /// # Safety
    /// [`Enqueue`]'s.
    pub(super) unsafe fn skinny_operation(
        &self,
        queue: &Enqueue<'_>,
        skinny: &Skinny,
        op: &Op,
        layer: usize,
    ) -> Result<()> {
        let config = &*self.config;
        let (p, w) = (&self.places, &self.weights.layers[layer]);
        let (h, x, wide) = (self.at(p.h), self.at(p.x), self.at(p.wide));
        let hidden = config.hidden_size as u32;
        let q = (config.num_attention_heads * config.head_dim) as u32;
        let kv = (config.num_key_value_heads * config.head_dim) as u32;
        let routing = self.routing();
        let router = match w.feed_forward {
            FeedForwardAddresses::Moe { gate, bias, .. } => Some(RouterWeights {
                norm: w.ffn_norm,
                gate,
                bias,
            }),
            FeedForwardAddresses::Dense { .. } => None,
        };
        // Of the layer's first kernel.
        let outputs = match w.mixer {
            MixerAddresses::Conv { .. } => hidden,
            MixerAddresses::Attention { .. } => q + 2 * kv,
        };
        // Where the experts are these kernels' too.
        let chooses = queue.skinny_experts().and(router.as_ref());
        // What the blocks of fused experts hand to each other, and its bytes.
        let handed = (queue.variant.experts == Experts::Fused).then(|| {
            let values = config.num_experts_per_tok * config.moe_intermediate_size;
            let bytes = values * queue.kernels.types.operand.bytes();
            (self.at(p.handed), bytes as u32)
        });
        // The same for that kernel and for gate and up.
        let guess = chooses
            .and_then(|router| Guess::of(queue, skinny, layer, outputs, &routing, router, handed));
        let guess = guess.as_ref();
        let residual = |x, w, bias, inner| Residual { x, w, bias, inner };
        let out = |product: Residual| {
            let scores = chooses.map(|router| (&routing, router));
            // SAFETY: the caller's promise.
            unsafe { queue.skinny_out(skinny, h, &product, scores) }
        };
        // SAFETY: the caller's promise; shapes are those of the arena, the state and the weights.
        unsafe {
            match (op.kind, &w.mixer, self.state[layer], &w.feed_forward) {
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
                    let conv = ShortConv {
                        x,
                        bcx: wide,
                        state,
                        taps,
                        bias: taps_bias,
                    };
                    let weights = ConvIn {
                        norm: w.operator_norm,
                        in_proj,
                        bias: in_proj_bias,
                    };
                    queue.skinny_conv(skinny, &conv, &weights, h, guess)
                }
                (OpKind::QkvProj, &MixerAddresses::Attention { qkv_proj, .. }, ..) => queue
                    .skinny_project(skinny, wide, h, w.operator_norm, (qkv_proj, outputs), guess),
                (
                    OpKind::ConvOutProj,
                    &MixerAddresses::Conv {
                        out_proj,
                        out_proj_bias,
                        ..
                    },
                    ..,
                ) => out(residual(x, out_proj, out_proj_bias, hidden)),
                (OpKind::AttentionOutProj, &MixerAddresses::Attention { out_proj, .. }, ..) => {
                    out(residual(x, out_proj, 0, q))
                }
                (OpKind::DenseGateUp, .., &FeedForwardAddresses::Dense { w1, w3, .. }) => {
                    queue.skinny_gate_up(skinny, wide, h, w.ffn_norm, (w1, w3))
                }
                (OpKind::DenseDown, .., &FeedForwardAddresses::Dense { w2, .. }) => {
                    out(residual(wide, w2, 0, config.intermediate_size as u32))
                }
                // Down's kernel does them.
                (OpKind::ExpertGateUp, ..) if handed.is_some() => Ok(()),
                (OpKind::ExpertGateUp, .., FeedForwardAddresses::Moe { experts, .. }) => {
                    let router = router.as_ref().ok_or_else(|| misplaced(op))?;
                    queue.skinny_expert_gate_up(skinny, wide, h, (&routing, router), experts, guess)
                }
                (OpKind::ExpertDown, .., FeedForwardAddresses::Moe { experts, .. })
                    if handed.is_some() =>
                {
                    let router = router.as_ref().ok_or_else(|| misplaced(op))?;
                    let guess = guess.expect("served");
                    queue.skinny_fused_experts(skinny, h, (&routing, router), experts, guess)
                }
                (OpKind::ExpertDown, .., FeedForwardAddresses::Moe { experts, .. }) => {
                    queue.skinny_down(skinny, h, wide, &routing, experts)
                }
                _ => Err(misplaced(op)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel for each operation that reads a matrix, and none twice.
    #[test]
    fn what_is_folded_has_no_matrix_of_its_own() {
        for kind in OpKind::ALL {
            let experts_matrix = matches!(kind, OpKind::ExpertGateUp | OpKind::ExpertDown);
            let reads_a_matrix = experts_matrix
                || matches!(
                    kind,
                    OpKind::ConvInProj
                        | OpKind::ConvOutProj
                        | OpKind::QkvProj
                        | OpKind::AttentionOutProj
                        | OpKind::DenseGateUp
                        | OpKind::DenseDown
                        | OpKind::LmHead
                );
            for experts in [true, false] {
                assert!(!(folded(kind, experts) && reads_a_matrix), "{kind:?}");
                let theirs = reads_a_matrix && (experts || !experts_matrix);
                assert!(serves(kind, experts) || !theirs, "{kind:?}");
            }
            assert!(!(serves(kind, false) && experts_matrix), "{kind:?}");
        }
    }
}
