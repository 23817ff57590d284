//! What sequences have from shared prefixes and leave to them (kernels/step/share.cu).

use super::Lowering;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::sys::abi;

/// Layers of one launch, at most.
const LAYERS: usize = abi::TG_SHARE_LAYERS as usize;
/// Sequences whose copies of a layer have a block each, at most: with [`LAYERS`] 512 blocks, which an H200 has room for at once.
const SEQUENCES: u32 = 16;

/// When the copies are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// Before the first layer: sequences start from prefixes.
    Starts,
    /// Behind the last layer: prefixes get what was computed for them.
    Ends,
}

/// What a layer carries from step to step.
#[derive(Debug, Clone, Copy)]
pub enum LayerState {
    /// `[slots + prefixes, L - 1, H]`, operand type.
    Conv(Address),
    /// `[pages, kv_heads, page_tokens, D]` each, operand type.
    Pages { k: Address, v: Address },
}

impl Lowering<'_> {
    /// Copies what the step's sequences have of prefixes, in `layers`, with pages of so many tokens.
    pub fn share_prefixes(&mut self, sharing: Sharing, layers: &[LayerState], page_tokens: u32) {
        let element = self.kernels.precision.compute.bytes() as u64;
        let [_, kv_heads] = self.heads();
        let page = u64::from(page_tokens) * u64::from(kv_heads) * self.config.head_dim as u64;
        let columns = self.config.conv_l_cache.saturating_sub(1) as u64;
        for layers in layers.chunks(LAYERS) {
            let mut args = abi::tg_share_args {
                state: self.state,
                step: self.whole_step,
                conv_bytes: columns * u64::from(self.hidden()) * element,
                page_bytes: page * element,
                ends: u32::from(sharing == Sharing::Ends),
                ..Default::default()
            };
            for (index, layer) in layers.iter().enumerate() {
                (args.kept[index], args.values[index]) = match *layer {
                    LayerState::Conv(state) => (state, 0),
                    LayerState::Pages { k, v } => (k, v),
                };
            }
            let grid = (layers.len() as u32, self.bucket.sequences.min(SEQUENCES), 1);
            let kernel = &self.kernels.share_prefixes;
            self.call_plain(kernel, grid, abi::TG_SHARE_THREADS, arguments![&args]);
        }
    }
}
