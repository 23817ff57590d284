//! The short convolution of a conv layer and its state.

use super::Lowering;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::plan::StepKind;
use crate::sys::abi;

/// A block has so many threads, and a thread four channels.
const THREADS: u32 = abi::TG_CONV_THREADS;

/// Arrays of one conv layer.
#[derive(Debug, Clone, Copy)]
pub struct ShortConv {
    /// Out: `[R, H]`, operand type.
    pub x: Address,
    /// `[R, 3H]`, operand type: B, C, X.
    pub bcx: Address,
    /// `[slots, L - 1, H]` and what is behind them, operand type, oldest column first.
    pub state: Address,
    /// f32 `[H, L]`
    pub taps: Address,
    /// f32 `[H]`, or 0.
    pub bias: Address,
}

/// Blocks along rows and channels.
fn grid(rows: u32, hidden: u32) -> (u32, u32, u32) {
    (rows, hidden.div_ceil(4 * THREADS), 1)
}

impl Lowering<'_> {
    /// Whether a kernel of persistent/ or swap_ab/ that does the in-projection too may convolve: a row is a sequence, and the
    /// layer has as many taps as they.
    pub(super) fn may_convolve(&self) -> bool {
        let taps = self.config.conv_l_cache as u32;
        self.bucket.kind == StepKind::Decode && taps == abi::TG_CONV_TAPS
    }

    /// What a kernel of persistent/ or swap_ab/ takes that does the in-projection too: y in the place of `conv.bcx`, `[R, H]`;
    /// bias f32 `[3H]` or 0.
    pub(super) fn conv_product(
        &self,
        conv: &ShortConv,
        bias: Address,
    ) -> abi::tg_conv_product_args {
        abi::tg_conv_product_args {
            y: conv.bcx,
            columns: conv.state,
            bias,
            taps: conv.taps,
            taps_bias: conv.bias,
            state: self.state,
            step: self.step,
            ..Default::default()
        }
    }

    /// x = C * conv(B * X); the state moves on by the step's rows. Shapes as [`ShortConv`] says.
    pub fn short_conv(&mut self, conv: &ShortConv) {
        let (hidden, taps) = (self.hidden(), self.config.conv_l_cache as u32);
        let (kernels, rows) = (self.kernels, self.bucket.rows);
        let (kernel, rows) = if self.bucket.kind == StepKind::Decode {
            (&kernels.conv_decode, rows)
        } else if taps == abi::TG_CONV_TAPS {
            (&kernels.conv_rows, rows.div_ceil(abi::TG_CONV_ROWS))
        } else {
            (&kernels.conv, rows)
        };
        let args = abi::tg_conv_args {
            x: conv.x,
            columns: conv.state,
            bcx: conv.bcx,
            taps: conv.taps,
            bias: conv.bias,
            state: self.state,
            step: self.step,
            hidden,
            length: taps,
        };
        self.call_plain(kernel, grid(rows, hidden), THREADS, arguments![&args]);
    }
}

#[cfg(test)]
mod tests {
    use super::grid;

    #[test]
    fn blocks_cover_every_channel() {
        let blocks = [32, 544, 2048].map(|hidden| grid(7, hidden));
        assert_eq!(blocks, [(7, 1, 1), (7, 2, 1), (7, 4, 1)]);
    }
}
