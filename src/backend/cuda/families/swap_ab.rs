//! Dense products of decode steps, up to [`SWAP_AB_ROWS`] rows (the LM head of 16 bits: [`HEAD_ROWS`]), where the GPU has the instructions of 9.0
//! (kernels/swap_ab/swap_ab.cuh); `cut` says how a launch is cut into blocks.
//!
//! | kernel | products |
//! |---|---|
//! | `tg_swap_ab_shared_*` | those of too few outputs to fill the GPU: the blocks of a cluster split K |
//! | `tg_swap_ab_shared_many_*` | the same for more than 64 rows of 16 bits: two blocks split K of a wide tile, where all find room |
//! | `tg_swap_ab_alone_*` | gate and up of a dense feed-forward: a tile a block |
//! | `tg_swap_ab_head_*` | the LM head, where its tiles fill the GPU: blocks that stay (kernels/swap_ab/head.cuh) |
//! | `tg_swap_ab_head_multicast_*` | the same from 65 rows of 16 bits on: two blocks multicast the rows |
//! | `tg_swap_ab_conv_*` | a conv layer's in-projection with its short convolution |
//! | `tg_swap_ab_conv_rows_*` | the same from 33 rows of 16 bits on: batch rows first; from 65 on two blocks multicast the weights |
//!
//! Weights in 8 bits have neither the last, where `tg_swap_ab_conv_*` goes on, nor the LM head, which stays in 16.

mod cut;

use super::Lowering;
use super::conv::ShortConv;
use super::experts::ExpertWeights;
use super::head::Found;
use super::limits::{Library, Limits, Variants, types};
use super::tiled::Product;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::driver::tensor_map::{BOX_COLUMNS, Boxes};
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::tuning::limits::{HEAD_PARTS, HEAD_ROWS, SWAP_AB_ROWS};
use crate::backend::cuda::tuning::variants::Linear;
use crate::error::Result;
use crate::model::WeightFormat;
use crate::plan::{Precision, StepKind};
use crate::sys::abi;
use cut::{Cut, Tile};

/// The kernels for one pair of types, each for several numbers of rows, ascending.
#[derive(Debug)]
pub struct SwapAb {
    shared: Variants<Tile>,
    shared_many: Variants<Tile>,
    alone: Variants<Tile>,
    head: Variants<Tile>,
    conv: Variants<Tile>,
    conv_rows: Variants<Tile>,
    /// Batch rows are stored so.
    rows: WeightFormat,
    limits: Limits,
}

impl SwapAb {
    /// # Errors
    /// The driver refuses.
    pub fn load(library: &Library, precision: Precision) -> Result<Self> {
        let limits = library.gpu.limits();
        let (types, is_half) = (types(precision), precision.compute.is_half());
        let in_8_bits = precision.weights == WeightFormat::E4M3;
        let of = |name: &str, f32: &[&str], halves: &[&str]| {
            let rows = if is_half { halves } else { f32 };
            let name = |rows| format!("tg_swap_ab_{name}_{types}_r{rows}");
            rows.iter().map(name).collect::<Vec<_>>()
        };
        let load = |names| Variants::load(library, names, |_| limits.block_bytes);
        let few = &["16", "32", "64"];
        let head = if in_8_bits {
            Vec::new()
        } else {
            let many = of("head_multicast", &[], &["128", "256"]);
            [of("head", few, few), many].concat()
        };
        let alone = &["16", "32", "64", "128", "256"];
        let (conv, conv_rows): ([&[&str]; 2], &[&str]) = if in_8_bits {
            ([&["16", "32"], &["16", "32", "64", "128"]], &[])
        } else {
            ([&["16", "32_many"], &["16", "32"]], &["64", "128", "256"])
        };
        let alone_f32 = &few[..if in_8_bits { 2 } else { 3 }];
        Ok(Self {
            shared: load(of("shared", &["16", "32"], few))?,
            shared_many: load(of("shared_many", &[], &["64_w128", "64_w192"]))?,
            alone: load(of("alone", alone_f32, alone))?,
            head: load(head)?,
            conv: load(of("conv", conv[0], conv[1]))?,
            conv_rows: load(of("conv_rows", &[], conv_rows))?,
            rows: precision.compute.into(),
            limits,
        })
    }

    fn batch_rows(&self, at: Address, rows: u32, columns: u32, box_rows: u32) -> Boxes {
        Boxes::of_rows(at, self.rows, [rows, columns], box_rows)
    }

    /// Whether the LM head's own kernels do this product: tiles of it fill the GPU.
    pub(super) fn has_head_for(&self, product: &Product) -> bool {
        let fills =
            |tile: &Tile| product.w.rows.div_ceil(tile.outputs()) >= self.limits.multiprocessors;
        self.head.tiles.first().is_some_and(fills)
    }
}

/// An in-projection's weights as `tg_swap_ab_conv_rows_*` copies them (kernels/swap_ab/conv.cuh): so that a thread's are neighbours.
fn in_channels(w: &Matrix, tile: &Tile) -> Boxes {
    let channels = u64::from(tile.width);
    let row = w.row_bytes();
    let runs = u64::from(w.rows) / channels;
    let dimensions = [
        (w.columns.into(), 0, BOX_COLUMNS),
        (2, row, 2),
        (4, row * (channels / 4), 4),
        (channels / 8, row * 2, tile.width / 8 / tile.multicast),
        (runs, row * channels, 1),
    ];
    Boxes::new(w.address, w.format, dimensions)
}

impl<'a> Lowering<'a> {
    /// The kernels for dense products, where this bucket's are theirs.
    pub fn swap_ab(&self) -> Option<&'a SwapAb> {
        let kernels = self.products.swap_ab.as_ref();
        kernels.filter(|_| self.variant.linear == Linear::SwapAb)
    }

    /// Those kernels, where the LM head may be theirs: of steps whose logits nobody reads where the best is enough. In a step with
    /// prompts most rows are not sampled, and where the wide tiles fill the GPU these skip those that are not there.
    pub(super) fn swap_ab_of_head(&self) -> Option<&'a SwapAb> {
        let is_many = self.bucket.rows <= HEAD_ROWS && self.kernels.precision.compute.is_half();
        match (self.bucket.kind, self.variant.linear) {
            (StepKind::Score, _) => None,
            (StepKind::Decode, Linear::Persistent) if is_many => self.products.swap_ab.as_ref(),
            (StepKind::Decode, _) => self.swap_ab(),
            (StepKind::Mixed, _) => {
                let (rows, outputs) = (self.bucket.sequences, self.config.vocab_size as u32);
                let fills = self.persistent_fills(rows, outputs).is_some();
                self.swap_ab_for(rows).filter(|_| !fills)
            }
        }
    }

    /// Those kernels, where they do a product of up to `rows` rows: of many rows' buckets too, those of sampled rows alone.
    pub(super) fn swap_ab_for(&self, rows: u32) -> Option<&'a SwapAb> {
        match self.variant.linear {
            Linear::Persistent if rows <= SWAP_AB_ROWS => self.products.swap_ab.as_ref(),
            _ => self.swap_ab(),
        }
    }

    /// Whether [`Lowering::swap_ab_conv`] does a conv layer up to its out-projection.
    pub fn swap_ab_convolves(&self) -> Option<&'a SwapAb> {
        let swap_ab = self.swap_ab().filter(|_| self.may_convolve())?;
        let tiles = swap_ab.conv.tiles.iter().chain(&swap_ab.conv_rows.tiles);
        let mut widths = tiles.map(|tile| tile.width);
        let whole = widths.all(|width| self.hidden().is_multiple_of(width));
        // With batch rows first a last box of half of its columns has never been run.
        let boxes = swap_ab.conv_rows.tiles.is_empty() || self.hidden().is_multiple_of(BOX_COLUMNS);
        (whole && boxes).then_some(swap_ab)
    }

    /// [`Lowering::lm_head`] of the sampled rows; where the best logits are, in `best`.
    /// Shapes as [`Product`] and [`Found`] say, every array on 16 bytes.
    pub(super) fn swap_ab_head(
        &mut self,
        swap_ab: &SwapAb,
        product: &Product,
        best: Address,
    ) -> Found {
        let (outputs, inner) = (product.w.rows, product.w.columns);
        let rows = self.bucket.sequences;
        let cut = swap_ab.limits.cut_alone(&swap_ab.head.tiles, rows);
        let (tile, kernel) = swap_ab.head.of(cut.index);
        let args = abi::tg_swap_ab_head_args {
            y: product.y,
            best,
            state: self.state,
            step: self.step,
            n_total: outputs,
            k_total: inner,
            stages: cut.stages,
            ..Default::default()
        };
        let x = swap_ab.batch_rows(product.x, rows, inner, tile.rows / tile.multicast);
        let arguments = arguments![x, Boxes::of(&product.w, tile.outputs()), &args];
        // A block an SM, in whole clusters, and a part of each row's logits for each block.
        let most = swap_ab.limits.multiprocessors.min(HEAD_PARTS as u32) / tile.multicast;
        let clusters = outputs.div_ceil(tile.outputs() * tile.multicast).min(most);
        self.launch_swap_ab((tile, kernel), &cut, (clusters, cut.row_tiles), arguments);
        self.with_weights([product.w]);
        let parts = clusters * tile.multicast;
        Found { parts }
    }

    /// [`Lowering::product`] of up to `rows` rows, of which there are `*count`.
    /// Shapes as [`Product`] says, every array on 16 bytes.
    pub(super) fn swap_ab_product(
        &mut self,
        swap_ab: &SwapAb,
        product: &Product,
        rows: u32,
        count: Address,
    ) {
        let (outputs, inner) = (product.w.rows, product.w.columns);
        let limits = &swap_ab.limits;
        let (variants, cut) = if product.w_pair.is_some() {
            (&swap_ab.alone, limits.cut_alone(&swap_ab.alone.tiles, rows))
        } else {
            let (shared, many) = (&swap_ab.shared, &swap_ab.shared_many);
            let of_many = limits.cut_shared_many(&many.tiles, rows, outputs, inner);
            let cut = || limits.cut_shared(&shared.tiles, rows, outputs, inner);
            of_many.map_or_else(|| (shared, cut()), |cut| (many, cut))
        };
        let (tile, kernel) = variants.of(cut.index);
        let args = abi::tg_swap_ab_args {
            y: product.y,
            bias: product.bias,
            count,
            n_total: outputs,
            w_scale: product.w.scale_address(),
            pair_scale: product.w_pair.map_or(0, |pair| pair.scale_address()),
            ..Default::default()
        };
        let x = swap_ab.batch_rows(product.x, rows, inner, tile.rows);
        let w = Boxes::of(&product.w, tile.width);
        let pair = Boxes::of(&product.w_pair.unwrap_or(product.w), tile.width);
        let (epilogue, stages) = (product.epilogue as u32, cut.stages);
        let arguments = arguments![x, w, pair, &args, inner, epilogue, stages];
        let groups = product.w_pair.map_or(tile.groups, |_| 1);
        let tiles = outputs.div_ceil(tile.width * groups);
        self.launch_swap_ab((tile, kernel), &cut, (tiles, cut.row_tiles), arguments);
        self.with_weights(product.weights());
    }

    /// y = C * conv(B * X) of (B, C, X) = in_proj(x); the state moves on. `conv.bcx` is y `[R, H]`, `conv.x` its input, which
    /// stays as it is.
    /// Shapes as [`ShortConv`] says, in_proj `[3H, H]`, bias f32 `[3H]` or 0; the layer's `experts`, if it has some.
    pub fn swap_ab_conv(
        &mut self,
        swap_ab: &SwapAb,
        conv: &ShortConv,
        in_proj: &Matrix,
        bias: Address,
        experts: Option<&ExpertWeights>,
    ) {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let limits = &swap_ab.limits;
        let (conv_rows, convs) = (&swap_ab.conv_rows, &swap_ab.conv);
        let of_rows = limits.cut_conv_rows(&conv_rows.tiles, rows);
        let rows_first = of_rows.is_some();
        let (variants, cut) = match of_rows {
            Some(cut) => (conv_rows, cut),
            None => (convs, limits.cut_conv(&convs.tiles, rows, hidden)),
        };
        let (tile, kernel) = variants.of(cut.index);
        let prefetch = experts.map_or_else(Default::default, |experts| self.prefetch(experts));
        let w = if rows_first {
            in_channels(in_proj, tile)
        } else {
            Boxes::of(in_proj, tile.width)
        };
        let x = swap_ab.batch_rows(conv.x, rows, hidden, tile.rows);
        let args = abi::tg_conv_product_args {
            w_scale: in_proj.scale_address(),
            ..self.conv_product(conv, bias)
        };
        let arguments = arguments![x, w, &args, &prefetch, hidden, cut.stages];
        self.prefetched = prefetch.pieces > 0;
        let clusters = (hidden / tile.width, cut.row_tiles / tile.multicast);
        self.launch_swap_ab((tile, kernel), &cut, clusters, arguments);
        self.with_weights([*in_proj]);
    }

    /// So many clusters along weights and along batch rows.
    fn launch_swap_ab(
        &mut self,
        (tile, kernel): (&Tile, &Kernel),
        cut: &Cut,
        (clusters, row_tiles): (u32, u32),
        arguments: Vec<Argument>,
    ) {
        let cluster = cut.split_k * tile.multicast;
        let launch = Launch {
            grid: (clusters * cluster, row_tiles, 1),
            shared_bytes: cut.shared_bytes,
            cluster,
            ..Launch::blocks(1, tile.threads)
        };
        self.push(kernel, launch, arguments);
    }
}
