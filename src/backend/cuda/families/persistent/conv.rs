//! A conv layer's in-projection with its short convolution, of decode steps of many rows (kernels/persistent/conv.cuh).

use super::Persistent;
use super::tile::{Shape, Tile};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::driver::tensor_map::{BOX_COLUMNS, Boxes};
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::conv::ShortConv;
use crate::backend::cuda::matrix::Matrix;
use crate::sys::abi;

/// An in-projection's weights `[3H, H]` as `tg_persistent_conv_*` copies them: 8 rows of B, 8 of C and 8 of X in turns.
fn in_channels(w: &Matrix, tile: &Tile) -> Boxes {
    let turn = abi::TG_PERSISTENT_TURN_ROWS;
    let turn_rows = u64::from(turn);
    let (channels, row) = (u64::from(w.rows / 3), w.row_bytes());
    let turns = tile.channels() / turn / tile.multicast;
    let dimensions = [
        (w.columns.into(), 0, BOX_COLUMNS),
        (turn_rows, row, turn),
        (3, channels * row, 3),
        (channels / turn_rows, turn_rows * row, turns),
        (1, row, 1),
    ];
    Boxes::new(w.address, w.format, dimensions)
}

impl<'a> Lowering<'a> {
    /// Whether [`Lowering::persistent_conv`] does a conv layer up to its out-projection.
    pub fn persistent_convolves(&self) -> Option<&'a Persistent> {
        self.persistent().filter(|persistent| {
            let conv = persistent.conv.as_ref();
            let whole = conv.is_some_and(|(tile, _)| self.hidden().is_multiple_of(tile.channels()));
            self.may_convolve() && whole
        })
    }

    /// y = C * conv(B * X) of (B, C, X) = in_proj(x); the state moves on. `conv.bcx` is y `[R, H]`, `conv.x` its input, which
    /// stays as it is.
    /// Shapes as [`ShortConv`] says, in_proj `[3H, H]`, bias f32 `[3H]` or 0.
    ///
    /// # Panics
    /// `persistent` is not of [`Lowering::persistent_convolves`].
    pub fn persistent_conv(
        &mut self,
        persistent: &Persistent,
        conv: &ShortConv,
        in_proj: &Matrix,
        bias: Address,
    ) {
        let (tile, kernel) = persistent.conv.as_ref().expect("rows of 16 bits");
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let x = persistent.rows(conv.x, rows, hidden);
        let w = in_channels(in_proj, tile);
        let arguments = arguments![x, w, &self.conv_product(conv, bias), rows, hidden];
        let blocks = tile.blocks(&Shape::new(rows, in_proj.rows, hidden));
        self.launch_persistent(persistent, (tile, kernel), blocks, arguments);
        self.with_weights([*in_proj]);
    }
}
