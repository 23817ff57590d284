//! How launches of dense products are cut into blocks, clusters and stages.

use super::super::limits::Limits;
use crate::sys::abi;

/// Columns of a stage.
const STAGE_COLUMNS: u32 = abi::TG_GMMA_COLUMNS;
const MOST_STAGES: u32 = abi::TG_SWAP_AB_MOST_STAGES;
const FEWEST_STAGES: u32 = 2;
/// A block of an in-projection and one of the out-projection after it fit an SM together, each with an SM to itself but for
/// the other: then the second has its weights when its turn comes. Measured: profiles/log/dense.md, "The first versions".
const SHARED_STAGES: u32 = 8;
const SHARED_BYTES: u32 = 108 * 1024;
const CONV_PIPELINE_BYTES: u32 = 104 * 1024;
/// Blocks of a cluster that split K, at most.
const MOST_SPLIT_K: u32 = 4;
const MOST_CONV_SPLIT_K: u32 = 2;
/// Stages of a wide tile of many rows, so that the next kernel's blocks find room beside it; beyond so many k-blocks it takes all.
const MANY_STAGES: u32 = 6;
const LONG_RUN: u32 = 32;
/// A pipeline of batch rows first, of one row tile: two of its blocks do not fit an SM, one and the out-projection's do.
const CONV_ROWS_BYTES: u32 = 128 * 1024;
/// The atom that operands start on.
const ALIGN_BYTES: u32 = abi::TG_GMMA_ATOM_BYTES;

/// A block's tile, as its kernel was compiled (`SWAP_AB_TILE` of kernels/swap_ab/swap_ab.cuh, in its order).
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::AnyBitPattern)]
#[repr(C)]
pub struct Tile {
    pub rows: u32,
    /// Warpgroups that multiply, and the weight rows of each.
    pub groups: u32,
    pub width: u32,
    pub threads: u32,
    pub stage_bytes: u32,
    /// What f32 rows are bf16x3 in.
    pub bf16x3_bytes: u32,
    /// What is read behind the pipeline, and not used.
    pub past_bytes: u32,
    /// Finished sums, in the pipeline's place.
    pub out_bytes: u32,
    /// Another block's sums of eight rows.
    pub fragment_bytes: u32,
    /// Blocks of a cluster that load weights, or (the LM head's) rows, for each other. Else 1.
    pub multicast: u32,
}

/// How a launch is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The variant.
    pub index: usize,
    /// Blocks that split K.
    pub split_k: u32,
    pub row_tiles: u32,
    pub stages: u32,
    pub shared_bytes: u32,
}

impl Tile {
    /// Weight rows of a block.
    pub fn outputs(&self) -> u32 {
        self.groups * self.width
    }

    /// Dynamic shared memory beside the pipeline.
    fn beside_bytes(&self, split_k: u32) -> u32 {
        let fragments = (self.rows / 8).div_ceil(split_k);
        ALIGN_BYTES + self.bf16x3_bytes + (split_k - 1) * fragments * self.fragment_bytes
    }
}

impl Cut {
    /// Rows in tiles of variant `index`, of which so many blocks split K; pipelines of at most `most` stages, as many as `bytes` of a
    /// block have room for.
    fn new(
        tiles: &[Tile],
        index: usize,
        rows: u32,
        split_k: u32,
        (bytes, most): (u32, u32),
    ) -> Self {
        let tile = &tiles[index];
        let beside = tile.beside_bytes(split_k);
        let room = bytes.saturating_sub(beside + tile.past_bytes);
        // Finished sums take their place in any case.
        let room = room.max(tile.out_bytes.saturating_sub(tile.past_bytes));
        let stages = (room / tile.stage_bytes).clamp(FEWEST_STAGES, most);
        let pipeline = (stages * tile.stage_bytes + tile.past_bytes).max(tile.out_bytes);
        Self {
            index,
            split_k,
            row_tiles: rows.div_ceil(tile.rows),
            stages,
            shared_bytes: beside + pipeline,
        }
    }
}

/// The tile for a bucket of `rows` rows: the first that holds them all, else the last.
fn choose(tiles: &[Tile], rows: u32) -> usize {
    let fits = tiles.iter().position(|tile| tile.rows >= rows);
    fits.unwrap_or(tiles.len() - 1)
}

/// Blocks that split K of one of `tiles` tiles: at most `most`, no more than find `room` at once, and a k-block for each.
fn split_k(tiles: u32, inner: u32, most: u32, room: impl Fn(u32) -> u32) -> u32 {
    let steps = inner.div_ceil(STAGE_COLUMNS);
    let mut split_k = most;
    while split_k > 1 && (tiles * split_k > room(split_k) || steps < split_k) {
        split_k /= 2;
    }
    split_k
}

impl Limits {
    /// Blocks that run at once, `each` on an SM, in clusters of `split_k`. The SMs that share a path to the memory do not
    /// come in fours everywhere: of an H200's 132, clusters of four reach 120.
    fn room(&self, each: u32, split_k: u32) -> u32 {
        let left_out = match split_k {
            4.. => self.multiprocessors.div_ceil(11),
            _ => 0,
        };
        each * (self.multiprocessors - left_out)
    }

    pub fn cut_shared(&self, tiles: &[Tile], rows: u32, outputs: u32, inner: u32) -> Cut {
        let index = choose(tiles, rows);
        let tile = tiles[index];
        let all = outputs.div_ceil(tile.width) * rows.div_ceil(tile.rows);
        let split_k = split_k(all, inner, MOST_SPLIT_K, |split_k| self.room(2, split_k));
        Cut::new(tiles, index, rows, split_k, (SHARED_BYTES, SHARED_STAGES))
    }

    /// Cuts wide tiles, ascending, for more rows than one has: the first of which two blocks each have an SM to themselves. What
    /// their blocks read is three quarters of what narrow ones do (profiles/log/dense.md, "What blocks read, of many rows").
    pub fn cut_shared_many(
        &self,
        tiles: &[Tile],
        rows: u32,
        outputs: u32,
        inner: u32,
    ) -> Option<Cut> {
        let index = tiles.iter().position(|tile| {
            let all = outputs.div_ceil(tile.outputs()) * rows.div_ceil(tile.rows);
            let split_k = split_k(all, inner, 2, |split_k| self.room(1, split_k));
            rows > tile.rows && split_k == 2
        })?;
        let most = if inner.div_ceil(STAGE_COLUMNS) / 2 > LONG_RUN {
            MOST_STAGES
        } else {
            MANY_STAGES
        };
        Some(Cut::new(tiles, index, rows, 2, (self.block_bytes, most)))
    }

    pub fn cut_alone(&self, tiles: &[Tile], rows: u32) -> Cut {
        let pipeline = (self.block_bytes, MOST_STAGES);
        Cut::new(tiles, choose(tiles, rows), rows, 1, pipeline)
    }

    /// Cuts tiles with the batch rows first, ascending by the rows of a cluster. None for so few that half of a tile would be empty.
    pub fn cut_conv_rows(&self, tiles: &[Tile], rows: u32) -> Option<Cut> {
        let of_cluster = |tile: &Tile| tile.rows * tile.multicast;
        let index = tiles.iter().position(|tile| of_cluster(tile) >= rows)?;
        let tile = &tiles[index];
        if 2 * rows <= tile.rows {
            return None;
        }
        let bytes = match tile.multicast {
            1 => CONV_ROWS_BYTES,
            _ => self.block_bytes,
        };
        Some(Cut::new(tiles, index, rows, 1, (bytes, MOST_STAGES)))
    }

    pub fn cut_conv(&self, tiles: &[Tile], rows: u32, hidden: u32) -> Cut {
        let index = choose(tiles, rows);
        let tile = tiles[index];
        let all = hidden / tile.width * rows.div_ceil(tile.rows);
        let room = |split_k| self.room(1, split_k);
        let split_k = split_k(all, hidden, MOST_CONV_SPLIT_K, room);
        // A block that has a tile to itself has more to load than any other.
        let bytes = match split_k {
            1 => self.block_bytes,
            _ => (CONV_PIPELINE_BYTES + tile.beside_bytes(split_k)).min(self.block_bytes),
        };
        Cut::new(tiles, index, rows, split_k, (bytes, MOST_STAGES))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits::H200;

    /// A tile of 16-bit rows, as kernels/swap_ab/swap_ab.cuh has it.
    const fn tile(rows: u32, groups: u32, width: u32) -> Tile {
        Tile {
            rows,
            groups,
            width,
            threads: 128 * groups + 64,
            stage_bytes: 128 * (width * groups + rows),
            bf16x3_bytes: 0,
            past_bytes: 128 * (64 - width),
            out_bytes: 4 * rows * (width * groups + 4),
            fragment_bytes: 2048 * groups,
            multicast: 1,
        }
    }

    /// One whose K blocks may split: what a block has of the rows it sums comes before them.
    const fn shared(rows: u32, groups: u32, width: u32) -> Tile {
        let tile = tile(rows, groups, width);
        Tile {
            out_bytes: tile.out_bytes + rows / 8 * tile.fragment_bytes,
            ..tile
        }
    }

    const SHARED: [Tile; 3] = [shared(16, 1, 64), shared(32, 1, 64), shared(64, 1, 64)];
    const CONV: [Tile; 2] = [shared(16, 3, 32), shared(32, 3, 32)];

    /// A tile of 16-bit rows that come first, as kernels/swap_ab/conv.cuh has it.
    const fn rows_first(groups: u32, width: u32, multicast: u32) -> Tile {
        Tile {
            stage_bytes: 128 * (3 * width + 64 * groups),
            past_bytes: 0,
            out_bytes: 0,
            fragment_bytes: 0,
            multicast,
            ..tile(64 * groups, groups, width)
        }
    }
    const CONV_ROWS: [Tile; 3] = [
        rows_first(1, 16, 1),
        rows_first(1, 32, 2),
        rows_first(2, 32, 2),
    ];

    #[test]
    fn clusters_fill_the_gpu() {
        let cut = |rows, outputs| {
            let cut = LIMITS.cut_shared(&SHARED, rows, outputs, 2048);
            assert!(cut.shared_bytes <= SHARED_BYTES, "{rows} {outputs}");
            (SHARED[cut.index].rows, cut.split_k, cut.row_tiles)
        };
        for (rows, outputs, expected) in [
            (16, 2048, (16, 4, 1)),
            (32, 3072, (32, 4, 1)),
            (128, 2048, (64, 2, 2)),
            (256, 2048, (64, 2, 4)),
            (256, 6144, (64, 1, 4)),
        ] {
            assert_eq!(cut(rows, outputs), expected, "{rows} {outputs}");
        }
        // Each has a k-block.
        let split_k = |inner| LIMITS.cut_shared(&SHARED, 16, 64, inner).split_k;
        assert_eq!([32, 64, 96, 160, 224].map(split_k), [1, 1, 2, 2, 4]);
    }

    #[test]
    fn grouped_tiles_of_many_rows_have_an_sm_a_block() {
        let many = [shared(64, 2, 64), shared(64, 3, 64)];
        let cut = |rows, outputs, inner| {
            let cut = LIMITS.cut_shared_many(&many, rows, outputs, inner)?;
            assert!(cut.shared_bytes <= LIMITS.block_bytes && cut.split_k == 2);
            assert!(2 * cut.shared_bytes > LIMITS.block_bytes, "two on an SM");
            Some((many[cut.index].groups, cut.row_tiles, cut.stages))
        };
        assert_eq!(cut(64, 2048, 2048), None);
        assert_eq!(cut(128, 2048, 2048), Some((2, 2, 6)));
        assert_eq!(cut(256, 2048, 7168), Some((2, 4, 8)));
        assert_eq!(cut(256, 3072, 2048), Some((3, 4, 6)));
        assert_eq!(cut(256, 6144, 2048), None);
        assert_eq!(cut(256, 2048, 64), None);
        assert_eq!(LIMITS.cut_shared_many(&[], 256, 2048, 2048), None);
    }

    /// What a block leaves of an SM the next kernel's has room in.
    #[test]
    fn a_conv_layers_blocks_fit_an_sm_together() {
        for rows in [16, 32, 64] {
            let conv = LIMITS.cut_conv_rows(&CONV_ROWS, rows);
            let conv = conv.unwrap_or_else(|| LIMITS.cut_conv(&CONV, rows, 2048));
            let out = LIMITS.cut_shared(&SHARED, rows, 2048, 2048);
            let both = conv.shared_bytes + out.shared_bytes;
            assert!(both <= LIMITS.block_bytes, "{rows}: {both}");
        }
    }

    /// An in-projection's of weights in 8 bits: six warps of two groups.
    const fn conv_e4m3(rows: u32) -> Tile {
        let fragment_bytes = 2048 * 2;
        Tile {
            stage_bytes: 64 * 3 * 32 + 128 * rows,
            past_bytes: 0,
            out_bytes: 4 * rows * (3 * 32 + 4) + rows / 8 * fragment_bytes,
            fragment_bytes,
            ..tile(rows, 2, 32)
        }
    }

    #[test]
    fn an_in_projection_in_8_bits_has_a_block_an_sm() {
        let tiles = [16, 32, 64, 128].map(conv_e4m3);
        for (rows, expected) in [
            (16, (16, 2, 1)),
            (32, (32, 2, 1)),
            (33, (64, 2, 1)),
            (128, (128, 2, 1)),
            (256, (128, 1, 2)),
        ] {
            let cut = LIMITS.cut_conv(&tiles, rows, 2048);
            assert!(cut.shared_bytes <= LIMITS.block_bytes && cut.stages >= 5);
            let found = (tiles[cut.index].rows, cut.split_k, cut.row_tiles);
            assert_eq!(found, expected, "{rows}");
        }
    }

    #[test]
    fn rows_that_come_first_fill_their_tiles() {
        let cut = |rows| {
            let cut = LIMITS.cut_conv_rows(&CONV_ROWS, rows)?;
            let tile = CONV_ROWS[cut.index];
            assert!(cut.shared_bytes <= LIMITS.block_bytes && cut.row_tiles == tile.multicast);
            assert!(2 * cut.shared_bytes > LIMITS.block_bytes, "two on an SM");
            Some((tile.rows, 2048 / tile.width * cut.row_tiles, cut.stages))
        };
        assert_eq!(cut(32), None);
        assert_eq!([33, 64].map(cut), [Some((64, 128, 9)); 2]);
        assert_eq!([65, 128].map(cut), [Some((64, 128, 11)); 2]);
        assert_eq!([129, 256].map(cut), [Some((128, 128, 8)); 2]);
        assert_eq!(LIMITS.cut_conv_rows(&[], 256), None);
    }

    #[test]
    fn an_lm_heads_grouped_tiles_have_pipelines() {
        let head = [
            tile(16, 2, 64),
            tile(32, 4, 64),
            tile(64, 4, 64),
            tile(128, 4, 64),
            tile(256, 2, 64),
        ];
        let stages = |rows| {
            let cut = LIMITS.cut_alone(&head, rows);
            assert!(cut.shared_bytes <= LIMITS.block_bytes && cut.row_tiles == 1);
            cut.stages
        };
        assert_eq!([16, 32, 64, 128, 256].map(stages), [12, 6, 5, 4, 4]);
    }
}
