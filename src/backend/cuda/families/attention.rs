//! Queries, keys and values, and attention over pages.

use super::Lowering;
use super::limits::Library;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::image;
use crate::backend::cuda::driver::launch::{Argument, Kernel};
use crate::backend::cuda::driver::tensor_map::{BOX_COLUMNS, Boxes, Matrix};
use crate::backend::cuda::families::key_split::KeySplit;
use crate::error::Result;
use crate::model::DType;
use crate::plan::StepKind;

/// Of a block of kernels/attention/rope.cu, and the heads that it has.
const ROPE_THREADS: u32 = 128;
const ROPE_HEADS: u32 = 16;
/// Query heads of a block of kernels/attention/rows.cu.
const ROW_HEADS: u32 = 4;
const ROW_THREADS: u32 = 128;
/// Warps that a block of kernels/attention/decode.cu may have.
pub(super) const DECODE_WARPS: [u32; 4] = [1, 2, 4, 8];
/// Those that an H200 runs at once, of 16-bit types with heads of 64; of others some half as many.
const DECODE_ROOM: u32 = 2048;
/// Of an SM's memory, what they want as shared memory at the most: as many as it runs at once have some 6 KB each of 2 warps,
/// or 18 of 8. Keys and values stand in the rest on their way to registers.
const DECODE_SHARED_PERCENT: u32 = 50;
/// Blocks of kernels/attention/decode.cu that keep a GPU busy, and further chunks' blocks where there are as many for first
/// chunks already: of 4 warps, or as many warps in smaller ones.
const DECODE_BLOCKS: u32 = 256;
const DECODE_LEAST_BLOCKS: u32 = 128;
/// Pairs of a query row and a head that a block of kernels/attention/tiles.cu has.
const TILE: u32 = 64;
const TILE_THREADS: u32 = 128;
/// Pairs of a tile of kernels/attention/prompt.cuh, the threads of a block, and the pairs that one of its warpgroups has.
const PROMPT_PAIRS: u32 = 128;
const PROMPT_THREADS: u32 = 384;
const PROMPT_GROUP_PAIRS: u32 = 64;
/// Keys of a box there are a multiple of so many, whose rows the matrix units take together.
const SWIZZLED_ROWS: u32 = 8;
/// Threads of the one block that lists query tiles.
const LIST_THREADS: u32 = 1024;
/// Bytes of an entry of that list: `QueryTile` of kernels/attention/attention.cuh.
pub const QUERY_TILE_BYTES: usize = 16;

/// Dynamic shared memory of attention/tiles.cu: queries, and two buffers each of keys and values, 64 vectors of
/// `head_dim` 16-bit elements each, padded by 8.
pub fn tile_shared_bytes(head_dim: u32) -> u32 {
    5 * TILE * (head_dim + 8) * 2
}

/// Query rows of a tile of so many pairs: as many as fit with all heads of a group.
fn tile_rows(pairs: u32, group: u32) -> u32 {
    (pairs / group).max(1)
}

/// Query tiles of a step, at most: one may be ragged in each sequence.
pub fn most_query_tiles(rows: u32, sequences: u32, heads: u32, kv_heads: u32) -> u32 {
    most_tiles(rows, sequences, tile_rows(TILE, heads / kv_heads))
}

/// ... in tiles of so many rows.
fn most_tiles(rows: u32, sequences: u32, tile_rows: u32) -> u32 {
    (rows / tile_rows + sequences).min(rows)
}

/// The kernel of kernels/attention/prompt.cuh for a type and heads of a size.
#[derive(Debug)]
pub struct Prompt {
    kernel: Kernel,
    /// At a time.
    keys: u32,
    shared_bytes: u32,
    multiprocessors: u32,
}

impl Prompt {
    /// None where the GPU is not of 9.0 or the type is f32.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn load(library: &Library, operand: DType, head_dim: usize) -> Result<Option<Self>> {
        if !library.gpu.has_warpgroups() || operand == DType::F32 {
            return Ok(None);
        }
        let name = format!("tg_attention_prompt_{}_d{head_dim}", operand.name());
        let kernel = library.kernel(&name)?;
        let [keys, shared_bytes] = image::constants(&format!("{name}_tile"))?;
        kernel.allow_shared(shared_bytes)?;
        Ok(Some(Self {
            kernel,
            keys,
            shared_bytes,
            multiprocessors: library.gpu.multiprocessors,
        }))
    }

    /// Keys of a box, which lies in one page.
    fn box_keys(&self, page_tokens: u32) -> u32 {
        greatest_common_divisor(page_tokens, self.keys)
    }

    /// Whether it does these: whole boxes of what the matrix units take together, and whole rows in a warpgroup.
    fn serves(&self, group: u32, page_tokens: u32) -> bool {
        PROMPT_GROUP_PAIRS.is_multiple_of(group)
            && self.box_keys(page_tokens).is_multiple_of(SWIZZLED_ROWS)
    }
}

fn greatest_common_divisor(a: u32, b: u32) -> u32 {
    match b {
        0 => a,
        _ => greatest_common_divisor(b, a % b),
    }
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
    /// Scratch: [`most_query_tiles`] entries of [`QUERY_TILE_BYTES`].
    pub query_tiles: Address,
    /// Scratch: `uint32_t`.
    pub query_tile_count: Address,
    /// Scratch: f32 `[P, heads, D + 2]`, P as [`KeySplit::most_pieces`] has it.
    pub partials: Address,
    /// u32 `[slots, heads]`, zeros before and after.
    pub done: Address,
    /// Tokens of a sequence, at most.
    pub max_context: u32,
    pub pool: PagePool,
}

/// What keys and values are given out from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PagePool {
    pub pages: u32,
    pub page_tokens: u32,
}

/// Query heads of a block of kernels/attention/decode.cu.
fn decode_heads(operand: DType) -> u32 {
    match operand {
        DType::F32 => 4,
        DType::BF16 | DType::F16 => 8,
    }
}

/// Its kernels for an operand type by its suffix and heads of `head_dim`, in the order of [`DECODE_WARPS`].
pub(super) fn decode_kernels(
    library: &Library,
    operand: &str,
    head_dim: usize,
) -> Result<[Kernel; DECODE_WARPS.len()]> {
    let kernel = |warps: u32| -> Result<Kernel> {
        let name = format!("tg_attention_decode_w{warps}_{operand}_d{head_dim}");
        let kernel = library.kernel(&name)?;
        kernel.prefer_shared(DECODE_SHARED_PERCENT)?;
        Ok(kernel)
    };
    let [w1, w2, w4, w8] = DECODE_WARPS.map(kernel);
    Ok([w1?, w2?, w4?, w8?])
}

/// Its blocks of so many warps: a first chunk of each row and group, and those that take further chunks.
fn decode_blocks(rows: u32, groups: u32, warps: u32, split: KeySplit) -> u32 {
    let firsts = rows * groups;
    let further = DECODE_BLOCKS
        .saturating_sub(firsts)
        .max(DECODE_LEAST_BLOCKS * (4 / warps).max(1));
    firsts + firsts.saturating_mul(split.chunks - 1).min(further)
}

/// Which of [`DECODE_WARPS`] its blocks have: the most with which all first chunks run at once.
fn decode_warps(rows: u32, groups: u32) -> usize {
    let fits = |warps: &u32| rows * groups * warps <= DECODE_ROOM;
    DECODE_WARPS.iter().rposition(fits).unwrap_or(0)
}

impl Lowering<'_> {
    /// q, k = rope(rmsnorm_head(q, k)), q in place, k and v into their pages.
    /// Shapes as [`Attention`] says.
    pub fn qk_norm_rope(&mut self, attention: &Attention) {
        let (heads, kv_heads) = self.heads();
        let arguments = [
            &self.norming(attention)[..],
            &[
                Argument::U32(heads),
                Argument::U32(kv_heads),
                Argument::F32(self.config.norm_eps),
            ],
        ]
        .concat();
        let grid = (
            self.bucket.rows,
            (heads + 2 * kv_heads).div_ceil(ROPE_HEADS),
            1,
        );
        let kernel = &self.kernels.qk_norm_rope;
        self.call(kernel, grid, ROPE_THREADS, 0, arguments)
    }

    /// [`Lowering::qk_norm_rope`] and [`Lowering::attention`] in one, for decode steps; `attention.qkv` stays as it is.
    /// Shapes as [`Attention`] says, each row the only one of its slot.
    pub fn attention_decode(&mut self, attention: &Attention) {
        let (heads, kv_heads) = self.heads();
        let rows = self.bucket.rows;
        let split = KeySplit::new(rows, attention.max_context);
        let arguments = [
            &[Argument::Address(attention.x)],
            &self.norming(attention)[..],
            &[
                Argument::Address(attention.partials),
                Argument::Address(attention.done),
                Argument::U32(heads),
                Argument::U32(kv_heads),
                Argument::U32(rows),
                Argument::U32(split.chunk_keys),
                Argument::U32(split.chunks),
                Argument::F32(1.0 / (self.config.head_dim as f32).sqrt()),
                Argument::F32(self.config.norm_eps),
            ],
        ]
        .concat();
        let kernels = self.kernels;
        let groups = kv_heads * (heads / kv_heads).div_ceil(decode_heads(kernels.types.operand));
        let which = decode_warps(rows, groups);
        let (kernel, warps) = (&kernels.attention_decode[which], DECODE_WARPS[which]);
        let grid = (decode_blocks(rows, groups, warps, split), 1, 1);
        self.call(kernel, grid, 32 * warps, 0, arguments)
    }

    /// What the kernels that norm and rotate q and k have in common.
    fn norming(&self, attention: &Attention) -> [Argument; 8] {
        [
            Argument::Address(attention.qkv),
            Argument::Address(attention.k_pages),
            Argument::Address(attention.v_pages),
            Argument::Address(attention.q_norm),
            Argument::Address(attention.k_norm),
            Argument::Address(attention.inverse_frequencies),
            Argument::Address(self.state),
            Argument::Address(self.step),
        ]
    }

    /// x = softmax(q k^T / sqrt(D), causal) v.
    /// Shapes as [`Attention`] says.
    pub fn attention(&mut self, attention: &Attention) {
        let (heads, kv_heads) = self.heads();
        let group = heads / kv_heads;
        let scale = 1.0 / (self.config.head_dim as f32).sqrt();
        let chunks = self.bucket.kind != StepKind::Decode;
        let prompt = self
            .kernels
            .attention_prompt
            .as_ref()
            .filter(|prompt| chunks && prompt.serves(group, attention.pool.page_tokens));
        if let Some(prompt) = prompt {
            return self.attention_prompt(prompt, attention);
        }
        let arrays = [
            Argument::Address(attention.x),
            Argument::Address(attention.qkv),
            Argument::Address(attention.k_pages),
            Argument::Address(attention.v_pages),
        ];
        let shape = [
            Argument::U32(heads),
            Argument::U32(kv_heads),
            Argument::F32(scale),
        ];
        let tiles = match &self.kernels.attention_tiles {
            Some(tiles) if chunks => tiles,
            _ => {
                let step = [Argument::Address(self.state), Argument::Address(self.step)];
                let grid = (self.bucket.rows, kv_heads, group.div_ceil(ROW_HEADS));
                let arguments = [&arrays[..], &step, &shape].concat();
                let kernel = &self.kernels.attention_rows;
                return self.call(kernel, grid, ROW_THREADS, 0, arguments);
            }
        };
        self.list_query_tiles(attention, tile_rows(TILE, group));
        let listed = [
            Argument::Address(attention.query_tiles),
            Argument::Address(attention.query_tile_count),
            Argument::Address(self.state),
        ];
        let arguments = [&arrays[..], &listed, &shape].concat();
        let most = most_query_tiles(self.bucket.rows, self.bucket.sequences, heads, kv_heads);
        let grid = (most, kv_heads, group.div_ceil(TILE));
        let shared_bytes = tile_shared_bytes(self.config.head_dim as u32);
        self.call(tiles, grid, TILE_THREADS, shared_bytes, arguments)
    }

    /// [`Lowering::attention`] by the kernel for many rows.
    fn attention_prompt(&mut self, prompt: &Prompt, attention: &Attention) {
        let (heads, kv_heads) = self.heads();
        let (group, head_dim) = (heads / kv_heads, self.config.head_dim as u32);
        let rows = tile_rows(PROMPT_PAIRS, group);
        self.list_query_tiles(attention, rows);
        let PagePool { pages, page_tokens } = attention.pool;
        let dtype = self.kernels.types.operand;
        let (all, head) = (
            heads + 2 * kv_heads,
            u64::from(head_dim) * dtype.bytes() as u64,
        );
        let row = u64::from(all) * head;
        let queries = Boxes {
            at: attention.qkv,
            dtype,
            sizes: [head_dim, all, self.bucket.rows, 1, 1]
                .map(u64::from)
                .to_vec(),
            strides: vec![0, head, row, row, row],
            each: vec![BOX_COLUMNS, group, rows, 1, 1],
        };
        let box_keys = prompt.box_keys(page_tokens);
        let vectors = |at| {
            let matrix = Matrix {
                at,
                dtype,
                rows: pages * kv_heads * page_tokens,
                columns: head_dim,
            };
            Argument::Boxes(matrix.boxes(box_keys))
        };
        let arguments = vec![
            Argument::Boxes(queries),
            vectors(attention.k_pages),
            vectors(attention.v_pages),
            Argument::Address(attention.x),
            Argument::Address(attention.query_tiles),
            Argument::Address(attention.query_tile_count),
            Argument::Address(self.state),
            Argument::U32(heads),
            Argument::U32(kv_heads),
            Argument::U32(box_keys),
            Argument::F32(1.0 / (head_dim as f32).sqrt()),
        ];
        let units = kv_heads * most_tiles(self.bucket.rows, self.bucket.sequences, rows);
        let grid = (prompt.multiprocessors.min(units), 1, 1);
        self.call(
            &prompt.kernel,
            grid,
            PROMPT_THREADS,
            prompt.shared_bytes,
            arguments,
        )
    }

    /// Each sequence's rows in runs of at most `tile_rows`.
    fn list_query_tiles(&mut self, attention: &Attention, tile_rows: u32) {
        let list = vec![
            Argument::Address(attention.query_tiles),
            Argument::Address(attention.query_tile_count),
            Argument::Address(self.state),
            Argument::Address(self.step),
            Argument::U32(tile_rows),
        ];
        self.call(&self.kernels.query_tiles, (1, 1, 1), LIST_THREADS, 0, list);
    }

    /// Query heads and kv heads.
    fn heads(&self) -> (u32, u32) {
        let config = self.config;
        (
            config.num_attention_heads as u32,
            config.num_key_value_heads as u32,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_have_the_warps_that_all_rows_leave_room_for() {
        let warps = |rows| DECODE_WARPS[decode_warps(rows, 8)];
        let found = [1, 32, 33, 64, 65, 128, 256].map(warps);
        assert_eq!(found, [8, 8, 4, 4, 2, 2, 1]);
    }

    #[test]
    fn further_chunks_have_blocks_where_there_may_be_any() {
        let long = |rows| KeySplit::new(rows, 128_000);
        assert_eq!(decode_blocks(1, 8, 8, KeySplit::new(1, 257)), 8);
        assert_eq!(decode_blocks(1, 8, 8, KeySplit::new(1, 258)), 16);
        assert_eq!(decode_blocks(1, 8, 8, long(1)), 256);
        assert_eq!(decode_blocks(8, 8, 8, long(8)), 256);
        assert_eq!(decode_blocks(64, 8, 4, long(64)), 512 + 128);
        assert_eq!(decode_blocks(128, 8, 2, long(128)), 1024 + 256);
        assert_eq!(decode_blocks(256, 8, 1, long(256)), 2048 + 512);
    }

    #[test]
    fn a_tile_has_all_heads_of_its_rows() {
        let rows = [1, 3, 4, 64, 96].map(|group| tile_rows(TILE, group));
        assert_eq!(rows, [64, 21, 16, 1, 1]);
        assert_eq!(tile_rows(PROMPT_PAIRS, 4), 32);
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
                assert!(
                    tiles <= most_query_tiles(rows, sequences, group, 1),
                    "{rows} rows in sequences of {length}"
                );
            }
        }
    }
}
