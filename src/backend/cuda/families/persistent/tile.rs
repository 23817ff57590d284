//! Which tile a dense product of many rows is cut into: the one whose blocks end soonest, by what its stages take at least.
//!
//! A stage is 64 of K. Of a tile of 128 rows, of 1 part or (f32) 3, and `w` weight rows it takes the longest of these, in cycles:
//!
//! | bound | cycles |
//! |---|---|
//! | tensor cores, 4,096 FLOP a cycle | 4 w parts |
//! | shared memory, 128 bytes a cycle: both warpgroups read their rows and all weight rows, and copies write them | 256 + 3 w, if parts is 1 |
//! | ... of weights in 8 bits: batch rows are read for every 64 weight rows, weights once, and 96 more by a guess | 224 + 3 w, if parts is 1 |
//! | second-level cache, what each of 132 SMs gets of it: the rows, and a block's share of the weight rows | bytes / 40 |
//!
//! The cache gives 70 KB a us to each of 132 SMs that copy boxes of their own (profiles/log/dense.md, "What blocks read, of many
//! rows"). The choice follows from the bucket alone, as bits must, and never from the rows that are in it.

use crate::backend::cuda::driver::tensor_map::Boxes;
use crate::model::WeightFormat;
use crate::sys::abi;

/// Columns of a stage, and the bytes of a row of them.
const STAGE_COLUMNS: u32 = abi::TG_GMMA_COLUMNS;
const STAGE_ROW_BYTES: u32 = abi::TG_GMMA_ROW_BYTES;
/// Batch rows of a tile, and of a warpgroup.
const ROWS: u32 = abi::TG_PERSISTENT_ROWS;
const GROUP_ROWS: u32 = abi::TG_GMMA_ROWS;
/// FLOP, bytes of shared memory and bytes of the second-level cache for each SM in a cycle.
const FLOP: u32 = 4096;
const SHARED: u32 = 128;
const CACHE: u32 = 40;
/// Cycles of a stage of weights in 8 bits beside those that shared memory is read and written in. Not measured.
const E4M3_WAIT: u32 = 96;
/// Bytes in a cycle that two blocks send each other.
const SENT: u32 = 32;

/// A tile as its kernel was compiled, in the order of `PERSISTENT_TILE` (kernels/persistent/persistent.cuh).
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::AnyBitPattern)]
#[repr(C)]
pub struct Tile {
    /// Weight rows.
    pub width: u32,
    /// Blocks of a cluster that take row tiles side by side and multicast these.
    pub multicast: u32,
    /// Blocks of a cluster that split K of one tile.
    pub split_k: u32,
    /// Parts of a row, as it is multiplied.
    pub parts: u32,
    pub shared_bytes: u32,
    pub threads: u32,
    /// Bytes of a weight row in a stage.
    pub row_bytes: u32,
}

/// A dense product: up to so many rows, weight rows (of both matrices, if there are two), and columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub rows: u32,
    pub weight_rows: u32,
    pub inner: u32,
}

impl Shape {
    pub fn new(rows: u32, weight_rows: u32, inner: u32) -> Self {
        Self {
            rows,
            weight_rows,
            inner,
        }
    }
}

impl Tile {
    /// Channels: rows of B, of C and of X each, where the weight rows are a conv layer's in-projection's.
    pub fn channels(&self) -> u32 {
        self.width / 3
    }

    /// A product's weights as this tile's kernel copies them: in 8 bits by single packed blocks, or beside rows in 8 bits, whose stages are of 128
    /// columns, by two.
    pub fn boxes(&self, boxes: Boxes) -> Boxes {
        if boxes.format == WeightFormat::E4M3 && self.row_bytes == STAGE_ROW_BYTES {
            boxes.of_block_rows()
        } else {
            boxes
        }
    }

    /// Blocks of a cluster.
    pub fn cluster(&self) -> u32 {
        self.multicast * self.split_k
    }

    /// Blocks that a product has work for: of those that multicast the last may have no rows.
    pub fn blocks(&self, shape: &Shape) -> u32 {
        self.clusters(shape) * self.cluster()
    }

    /// Clusters that a product has work for.
    fn clusters(&self, shape: &Shape) -> u32 {
        let row_tiles = shape.rows.div_ceil(ROWS);
        row_tiles.div_ceil(self.multicast) * shape.weight_rows.div_ceil(self.width)
    }

    /// What a stage of one tile takes.
    fn stage_cycles(&self) -> u32 {
        let (x, w) = (ROWS * self.parts, self.width);
        let products = 2 * x * w * STAGE_COLUMNS / FLOP;
        let (copied_x, copied_w) = (x * STAGE_ROW_BYTES, w * self.row_bytes);
        let reads = if self.row_bytes == STAGE_ROW_BYTES {
            self.parts * (ROWS + abi::TG_PERSISTENT_GROUPS * w) * STAGE_ROW_BYTES
        } else {
            w / abi::TG_GMMA_ROWS * copied_x + copied_w + E4M3_WAIT * SHARED
        };
        let shared = (reads + copied_x + copied_w) / SHARED;
        let cache = (copied_x + copied_w / self.multicast) / CACHE;
        products.max(shared).max(cache)
    }

    /// Cycles until the last block ends. None where K would be split and a block had more than a tile, or no k-block.
    fn cycles(&self, shape: &Shape, multiprocessors: u32) -> Option<u64> {
        let rounds = self
            .clusters(shape)
            .div_ceil(multiprocessors / self.cluster());
        let stages = shape.inner.div_ceil(STAGE_COLUMNS);
        if self.split_k > 1 && (rounds > 1 || stages < self.split_k) {
            return None;
        }
        let of_block = stages.div_ceil(self.split_k);
        let sent = (self.split_k - 1) * GROUP_ROWS * self.width * 4 / SENT;
        let tile = of_block * self.stage_cycles() + sent;
        Some(u64::from(rounds) * u64::from(tile))
    }
}

/// The tile that ends soonest, of equal ones the first. One at least takes all of K, which always serves.
pub fn soonest(tiles: &[Tile], shape: &Shape, multiprocessors: u32) -> usize {
    let ends = |tile: &Tile| tile.cycles(shape, multiprocessors);
    let all = tiles.iter().enumerate();
    let serving = all.filter_map(|(index, tile)| Some((ends(tile)?, index)));
    serving.min().map_or(0, |(_, index)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MULTIPROCESSORS: u32 = 132;

    const fn tile(width: u32, multicast: u32, split_k: u32, parts: u32) -> Tile {
        Tile {
            width,
            multicast,
            split_k,
            parts,
            shared_bytes: 0,
            threads: 0,
            row_bytes: STAGE_ROW_BYTES,
        }
    }

    const fn in_8_bits(tile: Tile) -> Tile {
        Tile {
            row_bytes: STAGE_ROW_BYTES / 2,
            ..tile
        }
    }

    /// Those of 16-bit rows, and of f32 rows.
    const TILES: [Tile; 5] = [
        tile(128, 2, 1, 1),
        tile(192, 2, 1, 1),
        tile(256, 2, 1, 1),
        tile(128, 1, 2, 1),
        tile(192, 1, 2, 1),
    ];
    const F32: [Tile; 2] = [tile(128, 1, 1, 3), tile(128, 1, 2, 3)];

    /// Weight rows of the tile, and blocks that split K.
    fn chosen(rows: u32, weight_rows: u32, inner: u32) -> (u32, u32) {
        let shape = Shape::new(rows, weight_rows, inner);
        let tile = TILES[soonest(&TILES, &shape, MULTIPROCESSORS)];
        (tile.width, tile.split_k)
    }

    #[test]
    fn a_stage_takes_what_bounds_it() {
        let cycles = TILES.map(|tile| tile.stage_cycles());
        assert_eq!(cycles, [640, 832, 1024, 819, 1024]);
        assert_eq!(F32.map(|tile| tile.stage_cycles()), [1664, 1664]);
        let cycles = TILES.map(|tile| in_8_bits(tile).stage_cycles());
        assert_eq!(cycles, [608, 800, 1024, 614, 800]);
    }

    #[test]
    fn blocks_that_multicast_have_row_tiles_side_by_side() {
        let clusters = |rows| TILES[2].clusters(&Shape::new(rows, 6144, 2048));
        assert_eq!(
            [128, 129, 256, 257, 512].map(clusters),
            [24, 24, 24, 48, 48]
        );
        assert_eq!(TILES[3].clusters(&Shape::new(300, 301, 64)), 9);
    }

    /// LFM2-8B-A1B's in-projection, q, k and v, out-projection, dense gate and up, and dense down.
    #[test]
    fn the_tile_that_ends_soonest_serves() {
        let of = |weight_rows, inner| {
            [512, 1024, 2048, 8192].map(|rows| chosen(rows, weight_rows, inner))
        };
        assert_eq!(of(6144, 2048), [(192, 1), (192, 1), (256, 1), (256, 1)]);
        assert_eq!(of(3072, 2048), [(192, 2), (192, 1), (192, 1), (256, 1)]);
        assert_eq!(of(2048, 2048), [(128, 2), (128, 1), (256, 1), (256, 1)]);
        assert_eq!(of(14336, 2048), [(256, 1), (256, 1), (256, 1), (256, 1)]);
        assert_eq!(of(2048, 7168), [(128, 2), (128, 1), (256, 1), (256, 1)]);
    }

    #[test]
    fn prompts_by_weights_in_8_bits_have_the_widest_tiles() {
        let tiles = TILES.map(in_8_bits);
        for weight_rows in [2048, 3072, 6144, 14336] {
            let shape = Shape::new(8192, weight_rows, 2048);
            let tile = tiles[soonest(&tiles, &shape, MULTIPROCESSORS)];
            assert_eq!(tile.width, 256, "{weight_rows}");
        }
    }

    #[test]
    fn blocks_split_k_where_all_have_room_and_a_stage() {
        let sharers = |rows, weight_rows, inner| chosen(rows, weight_rows, inner).1;
        assert_eq!(
            [64, 96, 2048].map(|inner| sharers(512, 2048, inner)),
            [1, 1, 2]
        );
        let f32 = |rows| F32[soonest(&F32, &Shape::new(rows, 2048, 2048), MULTIPROCESSORS)].split_k;
        assert_eq!([512, 1024].map(f32), [2, 1]);
    }
}
