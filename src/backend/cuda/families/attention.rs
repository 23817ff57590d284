//! Queries, keys and values, and attention over pages.

mod decode;
mod prompt;

pub use decode::KeySplit;
pub(super) use decode::{DECODE_WARPS, decode_kernels};
pub use prompt::Prompt;

use super::Lowering;
use super::limits::Library;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::driver::launch::Kernel;
use crate::error::Result;
use crate::plan::Precision;
use crate::sys::abi;

/// Pairs of a query row and a head that a block of kernels/attention/tiles.cu has.
const TILE: u32 = abi::TG_TILE_PAIRS;

/// Query rows of a tile of so many pairs: as many as fit with all heads of a group.
fn tile_rows(pairs: u32, group: u32) -> u32 {
    (pairs / group).max(1)
}

/// Query tiles of a step, at most: each sequence may have one that is not full.
pub fn most_query_tiles(rows: u32, sequences: u32, heads: u32, kv_heads: u32) -> u32 {
    most_tiles(rows, sequences, tile_rows(TILE, heads / kv_heads))
}

/// Query tiles of a step, at most, where one has `tile_rows` rows.
fn most_tiles(rows: u32, sequences: u32, tile_rows: u32) -> u32 {
    (rows / tile_rows + sequences).min(rows)
}

/// Arrays of one attention layer.
#[derive(Debug, Clone, Copy)]
pub struct Attention {
    /// Out: `[R, heads * D]`, operand type.
    pub x: Address,
    /// `[R, (heads + 2 kv_heads) D]`, operand type: q, k, v.
    pub qkv: Address,
    /// `[pages, kv_heads, page_tokens, D]`, operand type, of [`Attention::pool`].
    pub k_pages: Address,
    /// Shaped as `k_pages`.
    pub v_pages: Address,
    /// f32 `[D]`
    pub q_norm: Address,
    /// f32 `[D]`
    pub k_norm: Address,
    /// f32 `[D / 2]`: 1 / theta^(2i / D).
    pub inverse_frequencies: Address,
    /// Scratch: [`most_query_tiles`] entries of [`abi::TG_QUERY_TILE_BYTES`].
    pub query_tiles: Address,
    /// Scratch: u32 `[2]`: how many, and the rows of one at most.
    pub query_tile_count: Address,
    /// Scratch: f32 `[P, heads, D + 2]`, P as [`KeySplit::most_pieces`] has it.
    pub partials: Address,
    /// u32 `[slots, heads]`, zeros before and after.
    pub done: Address,
    /// Tokens of a sequence, at most.
    pub max_context: u32,
    pub pool: PagePool,
}

/// The kernel of kernels/attention/tiles.cu, which serves chunks of prompts where no [`Prompt`] does, and its dynamic shared memory.
///
/// # Errors
/// The driver refuses.
pub(super) fn chunks(library: &Library, precision: Precision, d: usize) -> Result<(Kernel, u32)> {
    let operand = precision.compute.name();
    let name = format!("tg_attention_tiles_{operand}_d{d}");
    let ([shared_bytes], kernel) = library.with_constants::<[u32; 1]>(&name)?;
    kernel.allow_shared(shared_bytes)?;
    Ok((kernel, shared_bytes))
}

/// What keys and values are given out from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagePool {
    pub pages: u32,
    pub page_tokens: u32,
}

impl Lowering<'_> {
    /// q, k = rope(rmsnorm_head(q, k)), q in place, k and v into their pages.
    /// Shapes as [`Attention`] says.
    pub fn qk_norm_rope(&mut self, attention: &Attention) {
        let [heads, kv_heads] = self.heads();
        let args = abi::tg_qk_norm_rope_args {
            qkv: attention.qkv,
            k_pages: attention.k_pages,
            v_pages: attention.v_pages,
            q_weight: attention.q_norm,
            k_weight: attention.k_norm,
            inverse_frequencies: attention.inverse_frequencies,
            state: self.state,
            step: self.step,
            heads,
            kv_heads,
            eps: self.config.norm_eps,
            pad: 0,
        };
        let blocks = (heads + 2 * kv_heads).div_ceil(abi::TG_ROPE_HEADS);
        let (kernel, grid) = (&self.kernels.qk_norm_rope, (self.bucket.rows, blocks, 1));
        self.call_plain(kernel, grid, abi::TG_ROPE_THREADS, arguments![&args])
    }

    /// x = softmax(q k^T / sqrt(D), causal) v.
    /// Shapes as [`Attention`] says.
    pub fn attention(&mut self, attention: &Attention) {
        let [heads, kv_heads] = self.heads();
        let (group, page_tokens) = (heads / kv_heads, attention.pool.page_tokens);
        let kernels = self.kernels;
        let prompt = kernels.attention_prompt.as_ref();
        if let Some(prompt) = prompt.filter(|prompt| prompt.serves(group, page_tokens)) {
            return self.attention_prompt(prompt, attention);
        }
        let args = abi::tg_attention_chunks_args {
            out: attention.x,
            qkv: attention.qkv,
            k_pages: attention.k_pages,
            v_pages: attention.v_pages,
            tiles: attention.query_tiles,
            tile_count: attention.query_tile_count,
            state: self.state,
            heads,
            kv_heads,
            scale: self.attention_scale(),
            box_keys: 0,
        };
        self.list_query_tiles(attention, [tile_rows(TILE, group); 2], 0);
        let (rows, sequences) = (self.bucket.rows, self.bucket.sequences);
        let most = most_query_tiles(rows, sequences, heads, kv_heads);
        let grid = (most, kv_heads, group.div_ceil(TILE));
        let (kernel, bytes) = &kernels.attention_chunks;
        self.call(
            kernel,
            grid,
            abi::TG_TILE_THREADS,
            *bytes,
            arguments![&args],
        )
    }

    /// Each sequence's rows in runs of at most `rows`: of the first, or of the second where kernels/attention/tiles.cu says so.
    fn list_query_tiles(&mut self, attention: &Attention, rows: [u32; 2], large_tiles: u32) {
        let (tiles, count) = (attention.query_tiles, attention.query_tile_count);
        if self.query_tiles.replace(tiles) == Some(tiles) {
            return;
        }
        let (state, step, [few, many]) = (self.state, self.step, rows);
        let arguments = arguments![tiles, count, state, step, few, many, large_tiles];
        let kernel = &self.kernels.query_tiles;
        self.call_plain(kernel, (1, 1, 1), abi::TG_LIST_THREADS, arguments);
    }

    fn attention_scale(&self) -> f32 {
        1.0 / (self.config.head_dim as f32).sqrt()
    }

    /// Query heads and kv heads.
    pub(super) fn heads(&self) -> [u32; 2] {
        let config = self.config;
        [config.num_attention_heads, config.num_key_value_heads].map(|heads| heads as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tile_has_all_heads_of_its_rows() {
        let rows = [1, 3, 4, 64, 96].map(|group| tile_rows(TILE, group));
        assert_eq!(rows, [64, 21, 16, 1, 1]);
        assert_eq!(tile_rows(128, 4), 32);
    }

    /// Against every way to cut `rows` into sequences of equal length and a rest.
    #[test]
    fn query_tiles_never_exceed_the_bound() {
        for (rows, group) in [(1u32, 4u32), (17, 4), (512, 4), (513, 1), (100, 3)] {
            for length in 1..=rows {
                let sequences = rows.div_ceil(length);
                let tile_rows = tile_rows(TILE, group);
                let tiles = rows / length * length.div_ceil(tile_rows)
                    + (rows % length).div_ceil(tile_rows);
                let most = most_query_tiles(rows, sequences, group, 1);
                assert!(tiles <= most, "{rows} rows in sequences of {length}");
            }
        }
    }
}
