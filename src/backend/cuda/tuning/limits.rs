//! What kernels take at most, where more than one place has to know: what serves a bucket, and how much memory it is given. Sizes
//! that kernels are compiled with are told by their families' `args.h`.

use crate::model::DType;
use crate::sys::abi;

/// How many expert tiles there are, and what kernels/grouped/scheduler.cuh counts.
pub const EXPERT_COUNTS_BYTES: usize = 4 * abi::TG_EXPERT_COUNTS as usize;
/// In how many parts a row of logits is searched for its best, at most: by a kernel that reads them, and by the blocks of an LM
/// head that streams weights, of up to [`HEAD_ROWS`] rows.
pub const SAMPLE_PARTS: usize = 16;
pub const HEAD_PARTS: usize = 256;
/// Where the blocks of `tg_sample` that share a row meet.
pub const MEETING_BYTES: usize = abi::TG_MEETING_BYTES as usize;

/// Rows of a bucket that the swap-AB kernels take, at most.
pub const SWAP_AB_ROWS: u32 = 256;
/// Rows of a bucket whose LM head, of 16 bits, the swap-AB kernels take, at most. It reads the weights once for 256 rows, and
/// need not leave logits that are read again for the best of each row.
pub const HEAD_ROWS: u32 = 512;

/// Rows of this type of a bucket that the grouped kernels take, at most. Of f32 rows, whose tiles are low, more would have so many
/// experts' weights come from the second-level cache again and again.
pub fn grouped_rows(operand: DType) -> u32 {
    let each = if operand.is_half() {
        abi::TG_GROUPED_MOST_EACH
    } else {
        1
    };
    each * abi::TG_GROUPED_SORTERS
}

/// Rows of a decode bucket, at most, and outputs of a block in the skinny kernels.
pub const SKINNY_ROWS: usize = abi::TG_SKINNY_ROWS as usize;
pub const SKINNY_OUTPUTS: usize = abi::TG_SKINNY_OUTPUTS as usize;
/// Rows, at most, whose experts one of them does whole (kernels/skinny/fused.cuh).
pub const FUSED_ROWS: usize = 1;

/// Experts of a word of bits.
pub const WORD_EXPERTS: usize = u32::BITS as usize;
/// Experts among which the skinny kernels choose, at most.
pub const SKINNY_EXPERTS: usize = abi::TG_MOST_BIT_WORDS as usize * WORD_EXPERTS;

/// Words of bits of the instance for so many experts; the most there are where those are more.
pub fn expert_words(experts: usize) -> u32 {
    if experts <= WORD_EXPERTS {
        1
    } else {
        abi::TG_MOST_BIT_WORDS
    }
}

/// Experts that the skinny kernels of so many words lay out their scores for.
pub fn skinny_experts(words: u32) -> usize {
    words as usize * WORD_EXPERTS
}

/// Experts of `experts` that a block predicts for: so many for each word of bits.
pub fn skinny_predicted_experts(experts: usize) -> usize {
    SKINNY_PREDICTED_EXPERTS * expert_words(experts) as usize
}

const SKINNY_PREDICTED_EXPERTS: usize = abi::TG_SKINNY_PREDICTION_EXPERTS as usize;
/// Words of 64 bits that hold what was predicted.
pub const SKINNY_PREDICTION_WORDS: usize =
    abi::TG_SKINNY_PREDICTION_BEST as usize * WORD_EXPERTS / SKINNY_PREDICTED_EXPERTS;

/// Words of 64 bits before the scores: the experts that are predicted, then those that rows have chosen.
pub fn skinny_told(words: u32) -> usize {
    SKINNY_PREDICTION_WORDS + words as usize * SKINNY_ROWS
}
