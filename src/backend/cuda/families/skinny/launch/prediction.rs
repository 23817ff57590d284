//! Blocks that predict which experts a step will choose.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::experts::Routing;
use crate::backend::cuda::families::router::RouterWeights;
use crate::backend::cuda::families::skinny::Skinny;
use crate::backend::cuda::families::skinny::sizing::OUTPUTS;
use crate::sys::abi;

/// That a layer's first kernel predicts which experts its rows will go to, and that gate and up of these are begun first.
#[derive(Debug, Clone, Copy)]
pub struct Prediction {
    layer: usize,
    routing: Routing,
    router: RouterWeights,
    blocks: u32,
    /// What its blocks leave unsaid for the fused experts, and its bytes.
    pub(super) handed: Option<(Address, u32)>,
}

/// A layer that nobody predicts for, SKINNY_NO_LAYER of kernels/skinny/guess.cuh.
const NO_LAYER: u32 = u32::MAX;

impl Prediction {
    /// In a layer whose first kernel has `outputs` of them, or of conv layers as many channels; `None` where there is no room
    /// for the blocks that predict.
    pub fn of(
        queue: &Lowering<'_>,
        skinny: &Skinny,
        layer: usize,
        outputs: u32,
        routing: &Routing,
        router: &RouterWeights,
        handed: Option<(Address, u32)>,
    ) -> Option<Self> {
        let blocks = queue
            .skinny_sizing(skinny)
            .prediction_blocks(outputs.div_ceil(OUTPUTS), queue.config.num_experts);
        (blocks > 0).then_some(Self {
            layer,
            routing: *routing,
            router: *router,
            blocks,
            handed,
        })
    }

    /// The kernels' arguments; without a prediction it has no blocks.
    pub(super) fn args(prediction: Option<&Self>, experts: u32) -> abi::tg_skinny_guess_args {
        let (handed, bytes) = prediction
            .and_then(|prediction| prediction.handed)
            .unwrap_or((0, 0));
        let at = |of: fn(&Self) -> Address| prediction.map_or(0, of);
        abi::tg_skinny_guess_args {
            router: at(|prediction| match prediction.router.predictor {
                0 => prediction.router.gate.address,
                copy => copy,
            }),
            norm_weight: at(|prediction| prediction.router.norm),
            bias: at(|prediction| prediction.router.bias),
            parts: at(|prediction| prediction.routing.score_parts),
            handed,
            handed_pieces: bytes / 16,
            expert_count: experts,
            blocks: prediction.map_or(0, |prediction| prediction.blocks),
            layer: Self::sign(prediction),
        }
    }

    pub(super) fn sign(prediction: Option<&Self>) -> u32 {
        prediction.map_or(NO_LAYER, |prediction| prediction.layer as u32)
    }
}
