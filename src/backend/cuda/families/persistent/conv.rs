//! A conv layer's in-projection with its short convolution, of decode steps of many rows (kernels/persistent/conv.cuh).

use super::tile::{Shape, Tile};
use super::{PAIRED_ROWS, Persistent};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::launch::Argument;
use crate::backend::cuda::driver::tensor_map::{BOX_COLUMNS, Boxes};
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::conv::{ShortConv, TAPS};
use crate::model::DType;
use crate::plan::StepKind;

/// An in-projection's weights `[3H, H]` as `tg_persistent_conv_*` asks for them: 8 rows of B, 8 of C and 8
/// of X in turns, a mate's share of a tile.
fn in_channels(w: Address, dtype: DType, hidden: u32, tile: &Tile) -> Boxes {
    let (columns, of_part) = (u64::from(hidden), u64::from(PAIRED_ROWS));
    let row = columns * dtype.bytes() as u64;
    let groups = tile.channels() / PAIRED_ROWS;
    Boxes {
        at: w,
        dtype,
        sizes: vec![columns, of_part, 3, columns / of_part, 1],
        strides: vec![0, row, columns * row, of_part * row, row],
        each: vec![BOX_COLUMNS, PAIRED_ROWS, 3, groups / tile.mates, 1],
    }
}

impl<'a> Lowering<'a> {
    /// Whether [`Lowering::persistent_conv`] does a conv layer up to its out-projection: a row a sequence, tiles of whole channels, and
    /// as many taps as it has.
    pub fn persistent_convolves(&self) -> Option<&'a Persistent> {
        let decode = self.bucket.kind == StepKind::Decode;
        let taps = self.config.conv_l_cache as u32;
        self.persistent().filter(|persistent| {
            let conv = persistent.conv.as_ref();
            let whole = conv.is_some_and(|(tile, _)| self.hidden().is_multiple_of(tile.channels()));
            decode && taps == TAPS && whole
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
        in_proj: Address,
        bias: Address,
    ) {
        let (tile, kernel) = persistent.conv.as_ref().expect("rows of 16 bits");
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let arguments = vec![
            persistent.rows(conv.x, rows, hidden),
            Argument::Boxes(in_channels(in_proj, persistent.dtype, hidden, tile)),
            Argument::of(&self.conv_product(conv, bias)),
            Argument::U32(rows),
            Argument::U32(hidden),
        ];
        let shape = Shape {
            rows,
            weight_rows: 3 * hidden,
            inner: hidden,
        };
        let blocks = tile.blocks(&shape);
        self.launch_persistent(persistent, (tile, kernel), blocks, arguments);
    }
}
