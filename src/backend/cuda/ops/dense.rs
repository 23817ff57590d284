//! Dense products of decode steps, up to [`MOST_ROWS`] rows, where the GPU has the instructions of 9.0
//! (kernels/dense.cuh). Here is which steps they serve, and how a launch is cut into blocks.
//!
//! | kernel | products |
//! |---|---|
//! | `tg_dense_shared_*` | those of too few outputs to fill the GPU: clusters of blocks share a tile |
//! | `tg_dense_alone_*` | gate and up of a dense feed-forward, the LM head: a tile a block |
//! | `tg_dense_conv_*` | a conv layer's in-projection with its short convolution |

use super::super::launch::{Address, Argument, Kernel, Launch};
use super::super::module::Module;
use super::super::tensor_map::{Matrix, TensorMap};
use super::conv::ShortConv;
use super::kernels::{Types, suffix};
use super::limits::{Limits, has_warpgroups};
use super::linear::{Epilogue, Product};
use super::{Bucket, Enqueue};
use crate::error::{Error, Result};
use crate::model::DType;
use crate::plan::StepKind;
use std::sync::Arc;

/// Rows of a bucket, at most.
const MOST_ROWS: u32 = 256;
/// Columns of a stage.
const STAGE_COLUMNS: u32 = 64;
const MOST_STAGES: u32 = 16;
const FEWEST_STAGES: u32 = 2;
/// A block of an in-projection and one of the out-projection after it fit an SM together, each with an SM to itself but for
/// the other: then the second has its weights when its turn comes. Measured: profiles/README.md, "Dense products".
const SHARED_STAGES: u32 = 8;
const SHARED_BYTES: u32 = 108 * 1024;
const CONV_RING_BYTES: u32 = 104 * 1024;
/// Blocks of a cluster that share a tile, at most.
const MOST_SHARERS: u32 = 4;
const MOST_CONV_SHARERS: u32 = 2;
/// The atom that operands start on.
const ALIGN_BYTES: u32 = 1024;
/// A block's tile, as its kernel was compiled (`DENSE_TILE` of kernels/dense.cuh).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Tile {
    rows: u32,
    /// Warpgroups that multiply, and the weight rows of each.
    groups: u32,
    width: u32,
    threads: u32,
    stage_bytes: u32,
    /// Of the parts of f32 rows.
    split_bytes: u32,
    /// What is read behind the ring, and not used.
    past_bytes: u32,
    /// Finished sums, in the ring's place.
    out_bytes: u32,
    /// Of another block's sums of eight rows.
    eight_bytes: u32,
}

/// How a launch is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    /// Of the variants.
    index: usize,
    /// Blocks that share a tile.
    sharers: u32,
    row_tiles: u32,
    stages: u32,
    shared_bytes: u32,
}

/// One kernel for several numbers of rows, ascending.
#[derive(Debug)]
struct Variants(Vec<(Tile, Kernel)>);

/// The kernels for one pair of types.
#[derive(Debug)]
pub struct Dense {
    shared: Variants,
    alone: Variants,
    conv: Variants,
    types: Types,
    limits: Limits,
}

impl Dense {
    /// None where the GPU is no 9.0 or the types have no such kernels: f32 rows with other than bf16 weights.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn load(module: &Arc<Module>, types: Types) -> Result<Option<Self>> {
        if !has_warpgroups(module)? || !types.are_streamed() {
            return Ok(None);
        }
        let limits = Limits::of(module)?;
        let variants = |name: &str, rows: &[&str]| {
            let variant = |rows: &&str| {
                let name = format!("tg_dense_{name}_{}_r{rows}", suffix(types.operand));
                let kernel = module.kernel(&name)?;
                kernel.allow_shared(limits.block_bytes)?;
                Ok((Tile::of(module.constants(&format!("{name}_tile"))?), kernel))
            };
            let variants = rows.iter().map(variant).collect::<Result<_>>()?;
            Ok::<_, Error>(Variants(variants))
        };
        let (shared, alone, conv): (&[&str], &[&str], &[&str]) = match types.operand == DType::F32 {
            true => (&["16", "32"], &["16", "32", "64"], &["16", "32_many"]),
            false => (
                &["16", "32", "64"],
                &["16", "32", "64", "128", "256"],
                &["16", "32", "64", "64_many"],
            ),
        };
        Ok(Some(Self {
            shared: variants("shared", shared)?,
            alone: variants("alone", alone)?,
            conv: variants("conv", conv)?,
            types,
            limits,
        }))
    }
}

impl Tile {
    /// In the order of `DENSE_TILE`.
    fn of(constants: [u32; 9]) -> Self {
        Self {
            rows: constants[0],
            groups: constants[1],
            width: constants[2],
            threads: constants[3],
            stage_bytes: constants[4],
            split_bytes: constants[5],
            past_bytes: constants[6],
            out_bytes: constants[7],
            eight_bytes: constants[8],
        }
    }

    /// Dynamic shared memory beside the ring.
    fn beside_bytes(&self, sharers: u32) -> u32 {
        let eights = (self.rows / 8).div_ceil(sharers);
        ALIGN_BYTES + self.split_bytes + (sharers - 1) * eights * self.eight_bytes
    }

    /// Stages of a ring for which a block needs at most `bytes`, and the bytes that it needs.
    fn ring(&self, sharers: u32, bytes: u32, most: u32) -> (u32, u32) {
        let beside = self.beside_bytes(sharers);
        let room = bytes.saturating_sub(beside + self.past_bytes);
        let stages = (room / self.stage_bytes).clamp(FEWEST_STAGES, most);
        let ring = (stages * self.stage_bytes + self.past_bytes).max(self.out_bytes);
        (stages, beside + ring)
    }
}

/// The tile for a bucket of `rows` rows: the first that holds them all, else the last.
fn choose(tiles: &[Tile], rows: u32) -> usize {
    let fits = tiles.iter().position(|tile| tile.rows >= rows);
    fits.unwrap_or(tiles.len() - 1)
}

/// Blocks that share one of `tiles` tiles: at most `most`, no more than `room` in all, and a stage of K for each.
fn sharers(tiles: u32, inner: u32, most: u32, room: u32) -> u32 {
    let steps = inner.div_ceil(STAGE_COLUMNS);
    let mut sharers = most;
    while sharers > 1 && (tiles * sharers > room || steps < sharers) {
        sharers /= 2;
    }
    sharers
}

impl Limits {
    fn cut_shared(&self, tiles: &[Tile], rows: u32, outputs: u32, inner: u32) -> Cut {
        let index = choose(tiles, rows);
        let tile = tiles[index];
        let row_tiles = rows.div_ceil(tile.rows);
        let all = outputs.div_ceil(tile.width) * row_tiles;
        let sharers = sharers(all, inner, MOST_SHARERS, 2 * self.multiprocessors);
        let (stages, shared_bytes) = tile.ring(sharers, SHARED_BYTES, SHARED_STAGES);
        Cut {
            index,
            sharers,
            row_tiles,
            stages,
            shared_bytes,
        }
    }

    fn cut_alone(&self, tiles: &[Tile], rows: u32) -> Cut {
        let index = choose(tiles, rows);
        let (stages, shared_bytes) = tiles[index].ring(1, self.block_bytes, MOST_STAGES);
        Cut {
            index,
            sharers: 1,
            row_tiles: rows.div_ceil(tiles[index].rows),
            stages,
            shared_bytes,
        }
    }

    fn cut_conv(&self, tiles: &[Tile], rows: u32, hidden: u32) -> Cut {
        let index = choose(tiles, rows);
        let tile = tiles[index];
        let row_tiles = rows.div_ceil(tile.rows);
        let tiles = hidden / tile.width * row_tiles;
        let sharers = sharers(tiles, hidden, MOST_CONV_SHARERS, self.multiprocessors);
        // A block that has a tile to itself has more to ask for than any other.
        let bytes = match sharers {
            1 => self.block_bytes,
            _ => (CONV_RING_BYTES + tile.beside_bytes(sharers)).min(self.block_bytes),
        };
        let (stages, shared_bytes) = tile.ring(sharers, bytes, MOST_STAGES);
        Cut {
            index,
            sharers,
            row_tiles,
            stages,
            shared_bytes,
        }
    }
}

impl Variants {
    fn tiles(&self) -> Vec<Tile> {
        self.0.iter().map(|(tile, _)| *tile).collect()
    }

    fn of(&self, cut: &Cut) -> &(Tile, Kernel) {
        &self.0[cut.index]
    }
}

/// Whether these kernels do a bucket's products.
fn serves(bucket: Bucket) -> bool {
    bucket.kind == StepKind::Decode && bucket.rows <= MOST_ROWS
}

impl Enqueue<'_> {
    /// The kernels for dense products of this bucket, where there are any.
    pub fn dense(&self) -> Option<&Dense> {
        let dense = self.kernels.dense.as_ref()?;
        serves(self.bucket).then_some(dense)
    }

    /// Whether [`Enqueue::dense_conv`] does a conv layer up to its out-projection.
    pub fn dense_conv_serves(&self) -> Option<&Dense> {
        let dense = self.dense()?;
        let mut widths = dense.conv.0.iter().map(|(tile, _)| tile.width);
        let whole = widths.all(|width| self.hidden().is_multiple_of(width));
        whole.then_some(dense)
    }

    /// [`Enqueue::product`] of up to `rows` rows, of which there are `*count`.
    ///
    /// # Safety
    /// [`Enqueue`]'s; shapes as [`Product`] says, every array on 16 bytes.
    pub(super) unsafe fn dense_product(
        &self,
        dense: &Dense,
        product: &Product,
        rows: u32,
        count: Address,
    ) -> Result<()> {
        let (outputs, inner) = (product.outputs, product.inner);
        let limits = &dense.limits;
        let paired = product.epilogue == Epilogue::SiluMul;
        let persistent = product.epilogue == Epilogue::StoreF32
            && outputs.div_ceil(2 * dense.shared.0[0].0.width) >= limits.multiprocessors;
        let (variants, cut) = match paired || persistent {
            true => (&dense.alone, limits.cut_alone(&dense.alone.tiles(), rows)),
            false => {
                let tiles = dense.shared.tiles();
                let cut = limits.cut_shared(&tiles, rows, outputs, inner);
                (&dense.shared, cut)
            }
        };
        let (tile, kernel) = variants.of(&cut);
        let matrix = |at, dtype, rows| Matrix {
            at,
            dtype,
            rows,
            columns: inner,
        };
        let x = matrix(product.x, dense.types.operand, rows);
        let weights =
            |at| TensorMap::new(&matrix(at, dense.types.weights, outputs).boxes(tile.width));
        let w = weights(product.w)?;
        let w_pair = if paired { weights(product.w_pair)? } else { w };
        let arguments = [
            Argument::TensorMap(TensorMap::new(&x.boxes(tile.rows))?),
            Argument::TensorMap(w),
            Argument::TensorMap(w_pair),
            Argument::Address(product.y),
            Argument::Address(product.bias),
            Argument::Address(count),
            Argument::U32(outputs),
            Argument::U32(inner),
            Argument::U32(product.epilogue as u32),
            Argument::U32(cut.stages),
        ];
        let groups = if paired { 1 } else { tile.groups };
        let mut tiles = outputs.div_ceil(tile.width * groups);
        if persistent {
            tiles = tiles.min(limits.multiprocessors);
        }
        // SAFETY: the caller's promise; these are tg_dense_shared_*'s and tg_dense_alone_*'s arguments.
        unsafe { self.launch_dense(kernel, tile, &cut, tiles, &arguments) }
    }

    /// y = C * conv(B * X) of (B, C, X) = in_proj(x); the state moves on. `conv.bcx` is y `[R, H]`, `conv.x` its input, which
    /// stays as it is.
    ///
    /// # Safety
    /// [`Enqueue`]'s; shapes as [`ShortConv`] says, in_proj `[3H, H]`, bias f32 `[3H]` or 0.
    pub unsafe fn dense_conv(
        &self,
        dense: &Dense,
        conv: &ShortConv,
        in_proj: Address,
        bias: Address,
    ) -> Result<()> {
        let (rows, hidden) = (self.bucket.rows, self.hidden());
        let cut = dense.limits.cut_conv(&dense.conv.tiles(), rows, hidden);
        let (tile, kernel) = dense.conv.of(&cut);
        let matrix = |at, dtype, rows| Matrix {
            at,
            dtype,
            rows,
            columns: hidden,
        };
        let x = matrix(conv.x, dense.types.operand, rows);
        let w = matrix(in_proj, dense.types.weights, 3 * hidden);
        let arrays = [
            Argument::TensorMap(TensorMap::new(&x.boxes(tile.rows))?),
            Argument::TensorMap(TensorMap::new(&w.boxes(tile.width))?),
            Argument::Address(conv.bcx),
            Argument::Address(conv.state),
        ];
        let arguments = [
            &arrays[..],
            &self.fused_conv(conv, bias),
            &[Argument::U32(cut.stages)],
        ]
        .concat();
        // SAFETY: the caller's promise; these are tg_dense_conv_*'s arguments.
        unsafe { self.launch_dense(kernel, tile, &cut, hidden / tile.width, &arguments) }
    }

    unsafe fn launch_dense(
        &self,
        kernel: &Kernel,
        tile: &Tile,
        cut: &Cut,
        tiles: u32,
        arguments: &[Argument],
    ) -> Result<()> {
        let launch = Launch {
            grid: (tiles * cut.sharers, cut.row_tiles, 1),
            threads: tile.threads,
            shared_bytes: cut.shared_bytes,
            cluster: cut.sharers,
            early: self.early,
        };
        // SAFETY: the caller's promise.
        unsafe { kernel.launch(self.stream, launch, arguments) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits::H200;

    /// A tile of 16-bit rows, as kernels/dense.cuh has it.
    const fn tile(rows: u32, groups: u32, width: u32) -> Tile {
        Tile {
            rows,
            groups,
            width,
            threads: 128 * groups + 32,
            stage_bytes: 128 * (width * groups + rows),
            split_bytes: 0,
            past_bytes: 128 * (64 - width),
            out_bytes: 4 * rows * (width * groups + 4),
            eight_bytes: 2048 * groups,
        }
    }

    const SHARED: [Tile; 3] = [tile(16, 1, 64), tile(32, 1, 64), tile(64, 1, 64)];
    const ALONE: [Tile; 5] = [
        tile(16, 2, 64),
        tile(32, 2, 64),
        tile(64, 2, 64),
        tile(128, 2, 64),
        tile(256, 2, 64),
    ];
    const CONV: [Tile; 4] = [
        tile(16, 3, 32),
        tile(32, 3, 32),
        tile(64, 3, 32),
        tile(64, 3, 64),
    ];

    #[test]
    fn clusters_fill_the_gpu() {
        let cut = |rows, outputs| {
            let cut = LIMITS.cut_shared(&SHARED, rows, outputs, 2048);
            assert!(cut.shared_bytes <= SHARED_BYTES, "{rows} {outputs}");
            (SHARED[cut.index].rows, cut.sharers, cut.row_tiles)
        };
        assert_eq!(cut(16, 2048), (16, 4, 1));
        assert_eq!(cut(32, 3072), (32, 4, 1));
        assert_eq!(cut(128, 2048), (64, 4, 2));
        assert_eq!(cut(256, 2048), (64, 2, 4));
        assert_eq!(cut(256, 6144), (64, 1, 4));
    }

    /// What a block leaves of an SM the next kernel's has room in.
    #[test]
    fn a_conv_layers_blocks_fit_an_sm_together() {
        for rows in [16, 32, 64, 128] {
            let conv = LIMITS.cut_conv(&CONV, rows, 2048);
            let out = LIMITS.cut_shared(&SHARED, rows, 2048, 2048);
            let both = conv.shared_bytes + out.shared_bytes;
            assert!(both <= LIMITS.block_bytes, "{rows}: {both}");
        }
    }

    #[test]
    fn every_sharer_has_a_stage_of_k() {
        let sharers = |inner| LIMITS.cut_shared(&SHARED, 16, 64, inner).sharers;
        assert_eq!([32, 64, 96, 160, 224].map(sharers), [1, 1, 2, 2, 4]);
    }

    #[test]
    fn rings_leave_room_for_the_sums() {
        for (tiles, rows) in [(&ALONE[..], 256), (&ALONE[..], 16), (&ALONE[..], 9)] {
            let cut = LIMITS.cut_alone(tiles, rows);
            assert!(cut.shared_bytes <= LIMITS.block_bytes);
            assert!(cut.stages >= FEWEST_STAGES && cut.stages <= MOST_STAGES);
            assert_eq!((cut.sharers, cut.row_tiles), (1, 1));
        }
        for rows in [1, 16, 33, 64, 128, 256] {
            let cut = LIMITS.cut_conv(&CONV, rows, 2048);
            assert!(cut.shared_bytes <= LIMITS.block_bytes, "{rows}");
            let blocks = 2048 / CONV[cut.index].width * cut.row_tiles * cut.sharers;
            assert_eq!(blocks, 128, "{rows}");
        }
    }
}
