//! Attention of decode steps, by the kernel that norms and rotates too.

use super::Attention;
use crate::backend::cuda::driver::launch::{Argument, Kernel};
use crate::backend::cuda::families::Lowering;
use crate::backend::cuda::families::key_split::KeySplit;
use crate::backend::cuda::families::limits::Library;
use crate::error::Result;
use crate::sys::abi;

/// Warps that a block of kernels/attention/decode.cu may have.
pub(in crate::backend::cuda::families) const DECODE_WARPS: [u32; 4] = [1, 2, 4, 8];
/// Those that an H200 runs at once, of 16-bit types with heads of 64; of others some half as many.
const DECODE_ROOM: u32 = 2048;
/// The share of an SM's memory that these kernels want as shared memory, at most: the blocks that it runs at once have some 6 KB
/// each of 2 warps, or 18 of 8. Keys and values stand in the rest on their way to registers.
const DECODE_SHARED_PERCENT: u32 = 50;
/// Blocks for further chunks where first chunks are more than run at once, whose blocks then take no more than one.
const DECODE_FURTHER_BLOCKS: u32 = 512;

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
        let (heads, kv_heads) = self.heads();
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
            scale: 1.0 / (self.config.head_dim as f32).sqrt(),
            eps: self.config.norm_eps,
            firsts_go_on: firsts_go_on.into(),
            pad: 0,
        };
        let arguments = vec![
            Argument::of(&args),
            Argument::U32(heads),
            Argument::U32(kv_heads),
            Argument::U32(rows),
            Argument::U32(split.chunk_keys),
            Argument::U32(split.chunks),
        ];
        self.call(kernel, (blocks, 1, 1), 32 * warps, 0, arguments)
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
        let alone = |rows, warps, split| match decode_blocks(rows, 8, warps, split) {
            (blocks, true) => blocks,
            other => panic!("{other:?}"),
        };
        assert_eq!(alone(1, 8, KeySplit::new(1, 257)), 8);
        assert_eq!(alone(1, 8, KeySplit::new(1, 258)), 16);
        assert_eq!(alone(1, 8, long(1)), 256);
        assert_eq!(alone(8, 8, long(8)), 256);
        assert_eq!(alone(24, 8, long(24)), 256);
        assert_eq!(alone(64, 4, long(64)), 512);
        assert_eq!(alone(256, 1, long(256)), 2048);
        assert_eq!(decode_blocks(512, 8, 1, long(512)), (4096 + 512, false));
    }
}
