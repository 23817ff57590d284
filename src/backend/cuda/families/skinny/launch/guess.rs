//! Blocks that guess which experts a step will choose.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::launch::Argument;
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::experts::Routing;
use crate::backend::cuda::families::router::RouterWeights;
use crate::backend::cuda::families::skinny::Skinny;
use crate::backend::cuda::families::skinny::sizing::OUTPUTS;

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

/// A layer that nobody guesses for, SKINNY_NO_LAYER of kernels/skinny/guess.cuh.
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

    /// SKINNY_GUESSER of kernels/skinny/guess.cuh, and the blocks that it takes.
    pub(super) fn arguments(guess: Option<&Self>, experts: u32) -> ([Argument; 9], u32) {
        let at = |of: fn(&Self) -> Address| Argument::Address(guess.map_or(0, of));
        let blocks = guess.map_or(0, |guess| guess.blocks);
        let handed = guess.and_then(|guess| guess.handed).unwrap_or((0, 0));
        let arguments = [
            at(|guess| match guess.router.guess {
                0 => guess.router.gate,
                copy => copy,
            }),
            at(|guess| guess.router.norm),
            at(|guess| guess.router.bias),
            at(|guess| guess.routing.score_parts),
            Argument::U32(experts),
            Argument::U32(blocks),
            Argument::U32(Self::sign(guess)),
            Argument::Address(handed.0),
            Argument::U32(handed.1 / 16),
        ];
        (arguments, blocks)
    }

    pub(super) fn sign(guess: Option<&Self>) -> u32 {
        guess.map_or(NO_LAYER, |guess| guess.layer as u32)
    }
}
