//! Matrix products with weights: the projections, the feed-forwards and, grouped by expert, the experts.

use super::Lowering;
use super::limits::Variants;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::driver::launch::Kernel;
use crate::backend::cuda::matrix::Matrix;
use crate::sys::abi;

/// What a block of a variant computes, as its kernel was compiled (`TILED_KERNEL` of kernels/tiled/tiled.cuh, in its order).
#[derive(Debug, Clone, Copy, PartialEq, Eq, bytemuck::AnyBitPattern)]
#[repr(C)]
pub struct Tile {
    /// Weight rows of a block; with paired weights half of them are of each.
    pub outputs: u32,
    pub rows: u32,
    pub threads: u32,
    pub shared_bytes: u32,
}

/// The variants for one pair of types, by rows of their tile, ascending.
pub type Tiled = Variants<Tile>;

/// What becomes of the sums. The values are kernels/tiled/tiled.cuh's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Epilogue {
    /// y = sum, in the operand type.
    Store = 0,
    /// y = sum, f32.
    StoreF32 = 1,
    /// y += sum, f32: the residual stream.
    Add = 2,
    /// y = silu(sum) * (sum with the paired weights), in the operand type or [`Prepared`].
    SiluMul = 3,
}

/// y `[rows, N]` from x `[rows, K]` and w `[N, K]`.
#[derive(Debug, Clone, Copy)]
pub struct Product {
    pub y: Address,
    pub x: Address,
    pub w: Matrix,
    /// The second matrix of [`Epilogue::SiluMul`], of w's shape.
    pub w_pair: Option<Matrix>,
    /// f32 `[N]`, or 0.
    pub bias: Address,
    pub epilogue: Epilogue,
    pub prepared: Prepared,
}

impl Product {
    /// What it multiplies with.
    pub(super) fn weights(&self) -> Vec<Matrix> {
        [self.w].into_iter().chain(self.w_pair).collect()
    }

    /// The second matrix lies before the first.
    pub(super) fn pair_first(&self) -> bool {
        self.w_pair.is_some_and(|w| w.address < self.w.address)
    }
}

/// Rows as some kernels multiply them: f32 rows as three bf16 parts each, `[3, rows, K]` ([`Lowering::multiplies_bf16x3`]), or bf16 rows in 8 bits,
/// `[rows, K]` in whole packed blocks and their scales behind them ([`Lowering::multiplies_e4m3_rows`]; kernels/persistent/e4m3_rows.cuh).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prepared {
    /// They are made of x, and go here.
    Scratch(Address),
    /// x is they: what [`Epilogue::SiluMul`] leaves.
    There,
}

/// Which rows a product has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// The rows of the step.
    Step,
    /// The sampled ones.
    Sampled,
    /// At most `rows` of the step's rows, from `first` on; x and y start at `first`.
    Tile { first: u32, rows: u32 },
}

/// Rows by expert, as the token sort lists them (see `experts`).
#[derive(Debug, Clone, Copy)]
pub struct ByExpert {
    pub tiles: Address,
    pub tile_count: Address,
    /// Row of x at each place, or 0 where x lies in that order already.
    pub gather: Address,
    /// Rows of a tile, at most.
    pub tile_rows: u32,
    /// Tiles of a step, at most.
    pub most_tiles: u32,
}

/// From this many rows on, large tiles read the weights seldom enough to be worth fewer blocks, if [`LARGE_BLOCKS`] are left.
const LARGE_ROWS: u32 = 512;
/// This many blocks still fill a GPU.
const LARGE_BLOCKS: u32 = 128;

impl Tiled {
    /// Rows of a tile when `rows` rows go to `experts` experts, `top_k` each: by how many one gets on average.
    pub fn expert_tile_rows(&self, rows: u32, experts: u32, top_k: u32) -> u32 {
        let average = (rows * top_k).div_ceil(experts.max(1));
        let mut rows = self.tiles.iter().map(|tile| tile.rows);
        let largest = self.tiles.last().map_or(0, |tile| tile.rows);
        rows.find(|&rows| rows >= average).unwrap_or(largest)
    }
}

/// Index of the variant for these: the smallest tile that holds all rows, else the largest that still makes enough blocks.
fn choose(tiles: &[Tile], rows: u32, outputs: u32) -> usize {
    let last = tiles.len() - 1;
    let fits = tiles.iter().position(|tile| tile.rows >= rows);
    let large = tiles[last];
    let blocks = outputs.div_ceil(large.outputs) * rows.div_ceil(large.rows);
    match fits {
        Some(fits) if fits < last => fits,
        _ if rows >= LARGE_ROWS && blocks >= LARGE_BLOCKS => last,
        _ => last.min(tiles.partition_point(|tile| tile.rows <= 64) - 1),
    }
}

/// Blocks along the outputs and along the rows.
fn grid(tile: Tile, outputs: u32, paired: bool, row_tiles: u32) -> (u32, u32, u32) {
    let of_block = tile.outputs / if paired { 2 } else { 1 };
    (outputs.div_ceil(of_block), row_tiles, 1)
}

impl Lowering<'_> {
    /// Shapes as [`Product`] says, every array on 16 bytes.
    pub fn product(&mut self, product: &Product, rows: Rows) {
        let (most, first, count) = match rows {
            Rows::Step => (self.bucket.rows, 0, self.row_count()),
            Rows::Sampled => (self.bucket.sequences, 0, self.sample_count()),
            Rows::Tile { first, rows } => (rows, first, self.row_count()),
        };
        if let Some(persistent) = self.persistent_fills(most, product.w.rows) {
            return self.persistent_product(persistent, product, first, most, count);
        }
        if let Some(swap_ab) = self.swap_ab_for(most) {
            return self.swap_ab_product(swap_ab, product, most, count);
        }
        if let Some(persistent) = self.persistent() {
            return self.persistent_product(persistent, product, first, most, count);
        }
        let tiled = &self.products.tiled;
        let variant = tiled.of(choose(&tiled.tiles, most, product.w.rows));
        let row_tiles = most.div_ceil(variant.0.rows);
        self.launch_tiled(variant, product, (first, row_tiles, count), None);
    }

    /// A product per expert: w is the first expert's; x and y are by place of the token sort.
    /// Shapes as [`Product`] and [`ByExpert`] say.
    pub(super) fn tiled_by_expert(&mut self, product: &Product, by_expert: &ByExpert) {
        let (tiled, rows) = (&self.products.tiled, by_expert.tile_rows);
        let index = tiled.tiles.iter().position(|tile| tile.rows == rows);
        let index = index.expect("the tiles were cut for a variant of these kernels");
        let variant = tiled.of(index);
        let rows = (0, by_expert.most_tiles, by_expert.tile_count);
        self.launch_tiled(variant, product, rows, Some(by_expert));
    }

    /// `rows`: the first one, tiles of rows at most, and `const uint32_t *`: how many rows there are, or tiles of experts.
    fn launch_tiled(
        &mut self,
        (tile, kernel): (&Tile, &Kernel),
        product: &Product,
        (first_row, row_tiles, count): (u32, u32, Address),
        by_expert: Option<&ByExpert>,
    ) {
        let paired = product.epilogue == Epilogue::SiluMul;
        debug_assert_eq!(paired, product.w_pair.is_some());
        let args = abi::tg_tiled_args {
            y: product.y,
            x: product.x,
            w: product.w.address,
            w_pair: product.w_pair.map_or(0, |w| w.address),
            bias: product.bias,
            count,
            tiles: by_expert.map_or(0, |g| g.tiles),
            gather: by_expert.map_or(0, |g| g.gather),
            expert_stride: by_expert.map_or(0, |_| product.w.stride),
            row_base: first_row,
            n_total: product.w.rows,
            k_total: product.w.columns,
            epilogue: product.epilogue as u32,
            w_scale: product.w.scale_address(),
            pair_scale: product.w_pair.map_or(0, |w| w.scale_address()),
        };
        let grid = grid(*tile, product.w.rows, paired, row_tiles);
        let (bytes, arguments) = (tile.shared_bytes, arguments![&args]);
        self.call(kernel, grid, tile.threads, bytes, arguments);
        self.with_weights(product.weights());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TILES: [Tile; 4] = [tile(16, 8), tile(32, 32), tile(64, 64), tile(128, 128)];

    const fn tile(outputs: u32, rows: u32) -> Tile {
        Tile {
            outputs,
            rows,
            threads: 128,
            shared_bytes: 0,
        }
    }

    #[test]
    fn the_smallest_tile_that_holds_all_rows_wins_and_large_ones_wait_for_enough_blocks() {
        let chosen = |rows, outputs| TILES[choose(&TILES, rows, outputs)].rows;
        let few = [1, 8, 9, 32, 33, 64].map(|rows| chosen(rows, 2048));
        assert_eq!(few, [8, 8, 32, 32, 64, 64]);
        assert_eq!(chosen(256, 65536), 64, "too few rows");
        assert_eq!(chosen(512, 2048), 64, "too few blocks");
        assert_eq!(chosen(4096, 2048), 128);
        assert_eq!(chosen(512, 6144), 128);
    }

    #[test]
    fn two_variants_serve_every_size() {
        let two = [TILES[0], TILES[2]];
        let chosen = |rows| two[choose(&two, rows, 2048)].rows;
        assert_eq!([1, 8, 9, 64, 512, 4096].map(chosen), [8, 8, 64, 64, 64, 64]);
    }

    #[test]
    fn paired_weights_halve_the_outputs_of_a_block() {
        assert_eq!(grid(TILES[3], 1792, false, 4), (14, 4, 1));
        assert_eq!(grid(TILES[3], 1792, true, 4), (28, 4, 1));
        assert_eq!(grid(TILES[0], 17, false, 1), (2, 1, 1));
    }
}
