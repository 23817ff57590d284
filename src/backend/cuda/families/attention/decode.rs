//! Attention of decode steps, by the kernel that norms and rotates too (kernels/attention/decode.cu): blocks share chunks of a
//! row's keys.

use super::Attention;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::driver::launch::Kernel;
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::limits::Library;
use crate::error::Result;
use crate::sys::abi;

/// Warps that a block of kernels/attention/decode.cu may have.
pub(in crate::backend::cuda::families) const DECODE_WARPS: [u32; 4] = [1, 2, 4, 8];
/// Warps that an H200 runs at once, of 16-bit types with heads of 64; of others some half as many.
const DECODE_ROOM: u32 = 2048;
/// The share of an SM's memory that these kernels want as shared memory, at most: the blocks that it runs at once have some 6 KB
/// each of 2 warps, or 18 of 8. Keys and values stand in the rest on their way to registers.
const DECODE_SHARED_PERCENT: u32 = 50;
/// Blocks for further chunks where first chunks are more than run at once, whose blocks then take no more than one.
const DECODE_FURTHER_BLOCKS: u32 = 512;

/// Rows of a bucket from which on chunks are shorter again: more blocks are there to share them.
const MANY_ROWS: u32 = 33;
/// Keys of the smallest chunk.
const LEAST_KEYS: u32 = 256;
/// Chunks of a row, at most.
const MOST_CHUNKS: u32 = abi::TG_DECODE_SPLITS;
/// Chunks that a row may have in any bucket.
const LEAST_CHUNKS: u32 = 8;
/// Rows times chunks that a bucket may have, unless the row's own limits say otherwise.
const MOST_PIECES: u32 = 2048;

/// How the decode attention of a bucket divides the keys of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySplit {
    /// A row of no more keys before its own has one chunk. A multiple of 32.
    pub chunk_keys: u32,
    /// Chunks of a row, at most. They grow where the keys of a row are more than these hold.
    pub chunks: u32,
}

/// [`KeySplit::chunks`] of a bucket, at most; no more in a larger bucket.
fn most_chunks(rows: u32) -> u32 {
    (MOST_PIECES / rows.max(1)).clamp(LEAST_CHUNKS, MOST_CHUNKS)
}

impl KeySplit {
    /// The more rows there are, the longer their chunks: together they keep a GPU busy, and a chunk has costs of its own.
    pub fn new(rows: u32, max_context: u32) -> Self {
        let most_keys = if rows < MANY_ROWS { 4096 } else { 2048 };
        let chunk_keys = rows.saturating_mul(128).clamp(LEAST_KEYS, most_keys);
        let needed = max_context.saturating_sub(1).div_ceil(chunk_keys);
        Self {
            chunk_keys,
            chunks: needed.clamp(1, most_chunks(rows)),
        }
    }

    /// Rows times chunks of any step with up to `slots` decode rows, whatever its bucket; 0 where no row has two chunks.
    pub fn most_pieces(slots: u32, max_context: u32) -> u32 {
        if max_context <= LEAST_KEYS + 1 {
            return 0;
        }
        let few = slots.saturating_mul(MOST_CHUNKS).min(MOST_PIECES);
        few.max(slots.saturating_mul(LEAST_CHUNKS))
    }
}

/// Its kernels for an operand type by its suffix and heads of `head_dim`, in the order of [`DECODE_WARPS`].
pub(in crate::backend::cuda::families) fn decode_kernels(
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

/// Its blocks of so many warps, a first chunk of each row and group and those that take further chunks alone, and whether the first
/// ones take further chunks too.
fn decode_blocks(rows: u32, groups: u32, warps: u32, split: KeySplit) -> (u32, bool) {
    let firsts = rows * groups;
    let left = (DECODE_ROOM / warps).checked_sub(firsts);
    let more = firsts.saturating_mul(split.chunks - 1);
    let blocks = firsts + more.min(left.unwrap_or(DECODE_FURTHER_BLOCKS));
    (blocks, left.is_some())
}

/// Which of [`DECODE_WARPS`] its blocks have: the most with which all first chunks run at once.
fn decode_warps(rows: u32, groups: u32) -> usize {
    let fits = |warps: &u32| rows * groups * warps <= DECODE_ROOM;
    DECODE_WARPS.iter().rposition(fits).unwrap_or(0)
}

impl Lowering<'_> {
    /// [`Lowering::qk_norm_rope`] and [`Lowering::attention`] in one, for decode steps; `attention.qkv` stays as it is.
    /// Shapes as [`Attention`] says, each row the only one of its slot.
    pub fn attention_decode(&mut self, attention: &Attention) {
        let [heads, kv_heads] = self.heads();
        let rows = self.bucket.rows;
        let split = KeySplit::new(rows, attention.max_context);
        let kernels = self.kernels;
        let of_block = if kernels.precision.compute.is_half() {
            abi::TG_DECODE_HEADS
        } else {
            abi::TG_DECODE_HEADS_F32
        };
        let groups = kv_heads * (heads / kv_heads).div_ceil(of_block);
        let which = decode_warps(rows, groups);
        let (kernel, warps) = (&kernels.attention_decode[which], DECODE_WARPS[which]);
        let (blocks, firsts_go_on) = decode_blocks(rows, groups, warps, split);
        let args = abi::tg_attention_decode_args {
            out: attention.x,
            qkv: attention.qkv,
            k_pages: attention.k_pages,
            v_pages: attention.v_pages,
            q_weight: attention.q_norm,
            k_weight: attention.k_norm,
            inverse_frequencies: attention.inverse_frequencies,
            state: self.state,
            step: self.step,
            partials: attention.partials,
            done: attention.done,
            scale: self.attention_scale(),
            eps: self.config.norm_eps,
            firsts_go_on: firsts_go_on.into(),
            pad: 0,
        };
        let KeySplit { chunk_keys, chunks } = split;
        let arguments = arguments![&args, heads, kv_heads, rows, chunk_keys, chunks];
        self.call_plain(kernel, (blocks, 1, 1), 32 * warps, arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every bucket that a step of `rows` rows may have.
    #[test]
    fn no_bucket_has_more_pieces_than_there_is_room_for() {
        for slots in [1, 2, 7, 31, 32, 33, 63, 64, 65, 200, 255, 256, 257, 1024] {
            for max_context in [1, 2, 256, 257, 258, 2049, 4097, 4098, 20_000, 128_000] {
                let room = KeySplit::most_pieces(slots, max_context);
                for bucket in 1..=1100 {
                    let split = KeySplit::new(bucket, max_context);
                    let pieces = bucket.min(slots) * split.chunks;
                    assert!(
                        split.chunks == 1 || pieces <= room,
                        "{bucket} of {slots}, contexts of {max_context}: {pieces} pieces, room for {room}"
                    );
                    assert_eq!(split.chunk_keys % 32, 0);
                }
            }
        }
    }

    #[test]
    fn short_contexts_are_not_cut() {
        let chunks = [(1, 257), (1, 258), (32, 4097), (1, 128_000)]
            .map(|(rows, max_context)| KeySplit::new(rows, max_context).chunks);
        assert_eq!(chunks, [1, 2, 1, 32]);
        assert_eq!(KeySplit::most_pieces(256, 257), 0);
    }

    #[test]
    fn blocks_have_the_warps_that_all_rows_leave_room_for() {
        let warps = |rows| DECODE_WARPS[decode_warps(rows, 8)];
        let found = [1, 32, 33, 64, 65, 128, 256].map(warps);
        assert_eq!(found, [8, 8, 4, 4, 2, 2, 1]);
    }

    #[test]
    fn further_chunks_have_blocks_where_there_may_be_any() {
        let long = |rows| KeySplit::new(rows, 128_000);
        let alone = |rows, warps, split| match decode_blocks(rows, 8, warps, split) {
            (blocks, true) => blocks,
            other => panic!("{other:?}"),
        };
        assert_eq!(alone(1, 8, KeySplit::new(1, 257)), 8);
        assert_eq!(alone(1, 8, KeySplit::new(1, 258)), 16);
        let blocks = [(1, 8), (8, 8), (24, 8), (64, 4), (256, 1)]
            .map(|(rows, warps)| alone(rows, warps, long(rows)));
        assert_eq!(blocks, [256, 256, 256, 512, 2048]);
        assert_eq!(decode_blocks(512, 8, 1, long(512)), (4096 + 512, false));
    }
}
