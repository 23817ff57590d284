//! Products of many rows, dense and by expert, where the GPU has the instructions of 9.0 (kernels/persistent/persistent.cuh): a block
//! a multiprocessor stays and takes tiles in turn. `tile` says which tile serves a dense one.
//!
//! | kernel | products |
//! |---|---|
//! | `tg_persistent_*_w256`, `_w192`, `_w128` | dense ones, in tiles of so many weight rows; f32 rows have the narrow ones alone |
//! | `tg_persistent_*_w192_split_k`, `_w128_split_k` | dense ones of few tiles: two blocks split K (split_k.cuh) |
//! | `tg_persistent_conv_*` | of decode steps of 16-bit rows: a conv layer's in-projection with its short convolution |
//! | `tg_persistent_gate_up_*`, `_down_*` | the experts', by the tiles of the token sort |
//! | `tg_persistent_*e4m3*` | all but `_conv_*`, with weights in 8 bits (e4m3.cuh) |
//! | `tg_bf16x3_rows` | none: makes f32 rows bf16x3, as those of f32 multiply them |
//! | `tg_persistent_*e4m3_rows*`, `tg_e4m3_rows` | all of a step, of bf16 rows made 8 bits (e4m3_rows.cuh): `--activations fp8` |

mod conv;
mod tile;

use super::Lowering;
use super::experts::{ExpertRows, ExpertWeights, Routing, most_expert_tiles};
use super::grouped::expert_boxes;
use super::limits::{Library, Variants, types};
use super::tiled::{Prepared, Product};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::driver::tensor_map::{BOX_COLUMNS, Boxes};
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::tuning::variants::{Experts, Linear};
use crate::error::Result;
use crate::model::WeightFormat;
use crate::plan::{Activations, Precision, StepKind};
use crate::sys::abi;
use tile::{Shape, Tile};

/// Rows of a tile of the dense kernels for fewer rows, at most (swap_ab.rs).
const FEW_ROWS: u32 = 64;

/// Those for dense products: the first that takes all of K is the narrowest.
const DENSE: [&str; 5] = ["w128", "w192", "w256", "w128_split_k", "w192_split_k"];
/// f32 rows have these alone: their sums of a stage need registers of their own.
const DENSE_F32: [&str; 2] = ["w128", "w128_split_k"];

/// The kernels for one type.
#[derive(Debug)]
pub struct Persistent {
    dense: Variants<Tile>,
    /// For rows and weights of 16 bits.
    conv: Option<(Tile, Kernel)>,
    gate_up: (Tile, Kernel),
    down: (Tile, Kernel),
    /// Makes f32 rows bf16x3.
    bf16x3: Option<Kernel>,
    /// For rows in 8 bits.
    e4m3_rows: Option<E4m3Rows>,
    /// Rows, or their parts, are stored so.
    rows: WeightFormat,
    multiprocessors: u32,
}

/// Those whose rows are in 8 bits, as their weights are.
#[derive(Debug)]
struct E4m3Rows {
    dense: (Tile, Kernel),
    gate_up: (Tile, Kernel),
    down: (Tile, Kernel),
    /// Makes bf16 rows so.
    make: Kernel,
}

/// Rows as a kernel multiplies them.
struct Operand {
    at: Address,
    /// Elements of a row: in 8 bits two columns count as one, and the last packed block is filled.
    columns: u32,
}

/// The bytes of a row of so many columns in 8 bits, its scales included: [`Prepared`].
pub fn e4m3_row_bytes(columns: usize) -> usize {
    let scales = columns.div_ceil(abi::TG_E4M3_ROWS_SCALED as usize);
    columns.next_multiple_of(BOX_COLUMNS as usize) + scales * WeightFormat::F32.bytes()
}

impl Persistent {
    /// # Errors
    /// The driver refuses.
    pub fn load(library: &Library, precision: Precision) -> Result<Self> {
        let splits = !precision.compute.is_half();
        let in_8_bits = precision.weights == WeightFormat::E4M3;
        let operand = types(precision);
        let of = |name: String| -> Result<(Tile, Kernel)> {
            let name = format!("tg_persistent_{name}");
            let (tile, kernel) = library.with_constants::<Tile>(&name)?;
            kernel.allow_shared(tile.shared_bytes)?;
            Ok((tile, kernel))
        };
        let e4m3_rows = || -> Result<E4m3Rows> {
            Ok(E4m3Rows {
                dense: of("e4m3_rows_w256".to_owned())?,
                gate_up: of("gate_up_e4m3_rows".to_owned())?,
                down: of("down_e4m3_rows".to_owned())?,
                make: library.kernel("tg_e4m3_rows")?,
            })
        };
        let has_e4m3_rows = in_8_bits && precision.activations == Activations::FP8;
        let dense: &[&str] = if splits { &DENSE_F32 } else { &DENSE };
        let dense = dense.iter();
        let dense = dense.map(|name| format!("tg_persistent_{operand}_{name}"));
        let conv = (!splits && !in_8_bits).then(|| of(format!("conv_{operand}")));
        let bf16x3 = splits.then(|| library.kernel("tg_bf16x3_rows"));
        Ok(Self {
            dense: Variants::load(library, dense, |tile: &Tile| tile.shared_bytes)?,
            conv: conv.transpose()?,
            gate_up: of(format!("gate_up_{operand}"))?,
            down: of(format!("down_{operand}"))?,
            bf16x3: bf16x3.transpose()?,
            e4m3_rows: has_e4m3_rows.then(e4m3_rows).transpose()?,
            rows: if in_8_bits {
                WeightFormat::BF16
            } else {
                precision.weights
            },
            multiprocessors: library.gpu.class.multiprocessors,
        })
    }

    /// Whether down rounds what it makes of its rows: of those of 16 bits.
    pub(super) fn rounds(&self) -> bool {
        self.bf16x3.is_none()
    }

    /// The dense kernel for a product.
    fn dense(&self, shape: &Shape) -> (&Tile, &Kernel) {
        let soonest = tile::soonest(&self.dense.tiles, shape, self.multiprocessors);
        self.dense.of(soonest)
    }

    /// Whether wide tiles of so many outputs, of rows of 16 bits, fill the GPU.
    fn fills(&self, rows: u32, outputs: u32) -> bool {
        let fill = |width: u32| {
            rows.div_ceil(abi::TG_PERSISTENT_ROWS) * outputs.div_ceil(width) >= self.multiprocessors
        };
        let widest = self.dense.tiles.iter().map(|tile| tile.width).max();
        self.bf16x3.is_none() && widest.is_some_and(fill)
    }

    /// Rows, or all of their parts.
    fn rows(&self, at: Address, rows: u32, columns: u32) -> Boxes {
        let shape = [self.down.0.parts * rows, columns];
        Boxes::of_rows(at, self.rows, shape, abi::TG_PERSISTENT_ROWS)
    }
}

/// A product's weights as its kernel copies them, `width` rows at a time: rows one after the other, or 8 of one matrix and 8 of the other.
fn weight_boxes(product: &Product, width: u32) -> Boxes {
    let w = product.w;
    if w.format == WeightFormat::E4M3 {
        return block_boxes(&w, product.w_pair.as_ref(), width);
    }
    let (rows, row) = (u64::from(w.rows), w.row_bytes());
    let turn = abi::TG_PERSISTENT_TURN_ROWS;
    let turn_rows = u64::from(turn);
    let columns = (w.columns.into(), 0, BOX_COLUMNS);
    let alone = (1, row, 1);
    let Some(pair) = product.w_pair else {
        let dimensions = [columns, (rows, row, width), alone, alone, alone];
        return Boxes::new(w.address, w.format, dimensions);
    };
    let matrices = (2, w.address.abs_diff(pair.address), 2);
    let turns = (rows / turn_rows, turn_rows * row, width / (2 * turn));
    let dimensions = [columns, (turn_rows, row, turn), matrices, turns, alone];
    Boxes::new(w.address.min(pair.address), w.format, dimensions)
}

/// The same of weights in 8 bits: packed blocks of 8 rows of one matrix, or of either by turns.
fn block_boxes(w: &Matrix, pair: Option<&Matrix>, width: u32) -> Boxes {
    if pair.is_some() {
        return expert_boxes(w, pair, 1, width);
    }
    let rows = abi::TG_PACKED_ROWS;
    let block = rows * BOX_COLUMNS;
    let blocks = u64::from(w.columns.div_ceil(BOX_COLUMNS));
    let along = blocks * u64::from(block);
    let alone = (1, along, 1);
    let dimensions = [
        (u64::from(block / 2), 0, block / 2),
        (blocks, block.into(), 1),
        alone,
        (w.rows.div_ceil(rows).into(), along, width / rows),
        alone,
    ];
    Boxes::new(w.address, w.format, dimensions)
}

impl<'a> Lowering<'a> {
    /// The kernels for many rows, where this bucket's dense products are theirs.
    pub(super) fn persistent(&self) -> Option<&'a Persistent> {
        let kernels = self.products.persistent.as_ref();
        kernels.filter(|_| self.variant.linear == Linear::Persistent)
    }

    /// The kernels for many rows, where this bucket's experts are theirs.
    pub(super) fn persistent_experts(&self) -> Option<&'a Persistent> {
        let kernels = self.products.persistent.as_ref();
        kernels.filter(|_| self.variant.experts == Experts::Persistent)
    }

    /// The kernels for many rows, where the wide tiles of so many outputs fill the GPU, as the LM head's do.
    pub(super) fn persistent_fills(&self, rows: u32, outputs: u32) -> Option<&'a Persistent> {
        self.persistent()
            .filter(|persistent| rows > FEW_ROWS && persistent.fills(rows, outputs))
    }

    /// Whether products of up to `rows` rows of this bucket are of bf16 parts of f32 rows.
    pub fn multiplies_bf16x3(&self, rows: u32) -> bool {
        let swap_ab = self.swap_ab_for(rows).is_some();
        let persistent = self.persistent().filter(|_| !swap_ab);
        persistent.is_some_and(|persistent| persistent.bf16x3.is_some())
    }

    /// Whether products of this bucket with weights in 8 bits are of rows in 8 bits.
    pub fn multiplies_e4m3_rows(&self) -> bool {
        self.e4m3_rows().is_some()
    }

    /// The kernels for rows in 8 bits, where all products of this bucket with weights in 8 bits are theirs: of prompts so many that their dense
    /// products and their experts are for many rows.
    fn e4m3_rows(&self) -> Option<&'a E4m3Rows> {
        let kernels = self.persistent_experts().and(self.persistent())?;
        let rows = self.bucket.rows;
        let prompts = self.bucket.kind != StepKind::Decode && self.swap_ab_for(rows).is_none();
        kernels.e4m3_rows.as_ref().filter(|_| prompts)
    }

    /// Rows as they are multiplied: x, or what is made of it, if it is not there, of the rows from `first` on, at most `rows`.
    fn operand(
        &mut self,
        persistent: &Persistent,
        e4m3_rows: Option<&E4m3Rows>,
        (x, prepared): (Address, Prepared),
        (first, rows, count): (u32, u32, Address),
        columns: u32,
    ) -> Operand {
        let make = match (e4m3_rows, &persistent.bf16x3) {
            (Some(E4m3Rows { make, .. }), _) => Some((make, abi::TG_E4M3_ROWS_THREADS)),
            (None, Some(make)) => Some((make, abi::TG_BF16X3_THREADS)),
            (None, None) => None,
        };
        let at = match (make, prepared) {
            (Some((make, threads)), Prepared::Scratch(to)) => {
                let arguments = arguments![to, x, count, first, rows, columns];
                self.call_plain(make, (rows, 1, 1), threads, arguments);
                to
            }
            (None, _) | (_, Prepared::There) => x,
        };
        let in_pairs = columns.next_multiple_of(BOX_COLUMNS) / 2;
        Operand {
            at,
            columns: e4m3_rows.map_or(columns, |_| in_pairs),
        }
    }

    /// [`Lowering::product`] of at most `rows` rows from `first` on, of the `*count` that there are.
    /// Shapes as [`Product`] says, every array on 16 bytes; outputs with paired weights are a multiple of 8.
    pub(super) fn persistent_product(
        &mut self,
        persistent: &Persistent,
        product: &Product,
        first: u32,
        rows: u32,
        count: Address,
    ) {
        let weights = product.weights();
        let inner = product.w.columns;
        let shape = Shape::new(rows, weights.iter().map(|w| w.rows).sum(), inner);
        let e4m3_rows = self
            .e4m3_rows()
            .filter(|_| product.w.format == WeightFormat::E4M3);
        let of_x = (product.x, product.prepared);
        let x = self.operand(persistent, e4m3_rows, of_x, (first, rows, count), inner);
        let (tile, kernel) = match e4m3_rows {
            Some(E4m3Rows {
                dense: (tile, kernel),
                ..
            }) => (tile, kernel),
            None => persistent.dense(&shape),
        };
        let args = abi::tg_persistent_args {
            y: product.y,
            bias: product.bias,
            x: x.at,
            count,
            row_base: first,
            most_rows: rows,
            x_plane: rows,
            y_plane: rows,
            n_total: product.w.rows,
            k_total: x.columns,
            epilogue: product.epilogue as u32,
            up_first: product.pair_first().into(),
            prefetch: self.ahead.filter(|_| tile.split_k > 1).unwrap_or_default(),
            scale: product.w.scale_address(),
            scale_pair: product.w_pair.map_or(0, |w| w.scale_address()),
            ..Default::default()
        };
        self.prefetched |= args.prefetch.pieces > 0;
        let w = tile.boxes(weight_boxes(product, tile.width / tile.multicast));
        let arguments = arguments![persistent.rows(x.at, rows, x.columns), w, &args];
        let blocks = tile.blocks(&shape);
        self.launch_persistent(persistent, (tile, kernel), blocks, arguments);
        self.with_weights(weights);
    }

    /// y = silu(w1_e x) * w3_e x.
    /// `routing` is this step's, sorted into tiles of [`abi::TG_PERSISTENT_ROWS`].
    pub(super) fn persistent_expert_gate_up(
        &mut self,
        persistent: &Persistent,
        routing: &Routing,
        weights: &ExpertWeights,
        rows: &ExpertRows,
    ) {
        let of_x = (rows.x, Prepared::Scratch(rows.prepared));
        let (most, hidden) = (self.bucket.rows, self.hidden());
        let e4m3_rows = self.e4m3_rows();
        let x = self.operand(
            persistent,
            e4m3_rows,
            of_x,
            (0, most, self.row_count()),
            hidden,
        );
        let (tile, kernel) = e4m3_rows.map_or(&persistent.gate_up, |rows| &rows.gate_up);
        let inner = self.expert_inner();
        let ExpertWeights { gate, up, .. } = weights;
        let experts = self.experts().0;
        let width = tile.width / tile.multicast;
        let gate_up = tile.boxes(expert_boxes(gate, Some(up), experts, width));
        let args = abi::tg_persistent_args {
            y: rows.y,
            x: x.at,
            count: routing.tile_count,
            tiles: routing.tiles,
            gather: routing.rows,
            x_plane: most,
            y_plane: most * self.experts().1,
            n_total: inner,
            k_total: x.columns,
            up_first: (up.address < gate.address).into(),
            scale: gate.scale_address(),
            scale_pair: up.scale_address(),
            ..Default::default()
        };
        let arguments = arguments![gate_up, &args];
        let blocks = self.expert_tiles() * (2 * inner).div_ceil(tile.width);
        self.launch_persistent(persistent, (tile, kernel), blocks, arguments);
        self.with_weights([*gate, *up]);
    }

    /// partial = w2_e y.
    /// `routing` is this step's, sorted into tiles of [`abi::TG_PERSISTENT_ROWS`].
    pub(super) fn persistent_expert_down(
        &mut self,
        persistent: &Persistent,
        routing: &Routing,
        weights: &ExpertWeights,
        rows: &ExpertRows,
    ) {
        let (experts, top_k) = self.experts();
        let pairs = self.bucket.rows * top_k;
        let e4m3_rows = self.e4m3_rows();
        let of_y = (rows.y, Prepared::There);
        let y = self.operand(
            persistent,
            e4m3_rows,
            of_y,
            (0, pairs, self.row_count()),
            self.expert_inner(),
        );
        let (tile, kernel) = e4m3_rows.map_or(&persistent.down, |rows| &rows.down);
        let width = tile.width / tile.multicast;
        let down = tile.boxes(expert_boxes(&weights.down, None, experts, width));
        let args = abi::tg_persistent_args {
            y: rows.partial,
            x: y.at,
            count: routing.tile_count,
            tiles: routing.tiles,
            x_plane: pairs,
            n_total: self.hidden(),
            k_total: y.columns,
            scale: weights.down.scale_address(),
            ..Default::default()
        };
        let arguments = arguments![persistent.rows(y.at, pairs, y.columns), down, &args];
        let blocks = self.expert_tiles() * self.hidden().div_ceil(tile.width);
        self.launch_persistent(persistent, (tile, kernel), blocks, arguments);
        self.with_weights([weights.down]);
    }

    pub(super) fn expert_inner(&self) -> u32 {
        self.config.moe_intermediate_size as u32
    }

    /// Expert tiles of a step, at most.
    fn expert_tiles(&self) -> u32 {
        let (experts, top_k) = self.experts();
        most_expert_tiles(self.bucket.rows, experts, top_k, abi::TG_PERSISTENT_ROWS)
    }

    /// `blocks`: at most so many have work.
    fn launch_persistent(
        &mut self,
        persistent: &Persistent,
        (tile, kernel): (&Tile, &Kernel),
        blocks: u32,
        arguments: Vec<Argument>,
    ) {
        let cluster = tile.cluster();
        let most = persistent.multiprocessors / cluster * cluster;
        let blocks = most.min(blocks.next_multiple_of(cluster));
        let launch = Launch {
            shared_bytes: tile.shared_bytes,
            cluster,
            ..Launch::blocks(blocks, tile.threads)
        };
        self.push(kernel, launch, arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::families::tiled::Epilogue;

    #[test]
    fn gate_and_up_take_turns_of_eight_rows() {
        let matrix = |address| Matrix::of_rows(address, WeightFormat::BF16, 416, 64);
        let product = Product {
            y: 0,
            x: 0,
            w: matrix(1 << 20),
            w_pair: Some(matrix(1 << 16)),
            bias: 0,
            epilogue: Epilogue::SiluMul,
            prepared: Prepared::There,
        };
        let boxes = weight_boxes(&product, 256);
        assert_eq!(boxes.at, 1 << 16);
        assert_eq!(boxes.sizes, [64, 8, 2, 52, 1]);
        assert_eq!(boxes.strides[1..], [128, (1 << 20) - (1 << 16), 1024, 128]);
        assert_eq!(boxes.each, [64, 8, 2, 16, 1]);
    }
}
