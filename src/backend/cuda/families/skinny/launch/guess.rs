//! Blocks that guess which experts a step will choose.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::experts::Routing;
use crate::backend::cuda::families::router::RouterWeights;
use crate::backend::cuda::families::skinny::Skinny;
use crate::backend::cuda::families::skinny::sizing::OUTPUTS;
use crate::sys::abi;

/// That a layer's first kernel guesses which experts its rows will go to, and that gate and up of these are begun first.
#[derive(Debug, Clone, Copy)]
pub struct Guess {
    layer: usize,
    routing: Routing,
    router: RouterWeights,
    blocks: u32,
    /// What its blocks leave unsaid for the fused experts, and its bytes.
    pub(super) handed: Option<(Address, u32)>,
}

/// A layer that nobody guesses for, SKINNY_NO_LAYER of kernels/skinny/prediction.cuh.
const NO_LAYER: u32 = u32::MAX;

impl Guess {
    /// In a layer whose first kernel has `outputs` of them, or of conv layers as many channels; `None` where there is no room
    /// for the blocks that guess.
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
            .guess_blocks(outputs.div_ceil(OUTPUTS), queue.config.num_experts);
        (blocks > 0).then_some(Self {
            layer,
            routing: *routing,
            router: *router,
            blocks,
            handed,
        })
    }

    /// As kernels have it; no guess is one without blocks.
    pub(super) fn args(guess: Option<&Self>, experts: u32) -> abi::tg_skinny_prediction_args {
        let (handed, bytes) = guess.and_then(|guess| guess.handed).unwrap_or((0, 0));
        let at = |of: fn(&Self) -> Address| guess.map_or(0, of);
        abi::tg_skinny_prediction_args {
            router: at(|guess| match guess.router.guess {
                0 => guess.router.gate.address,
                copy => copy,
            }),
            norm_weight: at(|guess| guess.router.norm),
            bias: at(|guess| guess.router.bias),
            parts: at(|guess| guess.routing.score_parts),
            handed,
            handed_pieces: bytes / 16,
            expert_count: experts,
            blocks: guess.map_or(0, |guess| guess.blocks),
            layer: Self::sign(guess),
        }
    }

    pub(super) fn sign(guess: Option<&Self>) -> u32 {
        guess.map_or(NO_LAYER, |guess| guess.layer as u32)
    }
}
