//! What kernels take at most, where more than one place has to know: what serves a bucket, and how much memory it is given.

use crate::model::DType;

/// How many expert tiles there are, and what kernels/grouped/units.cuh counts: `EXPERT_COUNTS` words of kernels/common/experts.cuh.
pub const EXPERT_COUNTS_BYTES: usize = 1088;
/// In how many parts a row of logits is searched for its best, at most: by a kernel that reads them, and by the blocks of an LM
/// head that streams weights, of up to [`HEAD_ROWS`] rows.
pub const SAMPLE_PARTS: usize = 16;
pub const HEAD_PARTS: usize = 256;
/// Where the blocks of `tg_sample` that share a row meet: `Meeting` of kernels/sample/scores.cuh.
pub const MEETING_BYTES: usize = 16;

/// Rows of a bucket that the swap-AB kernels take, at most.
pub const SWAP_AB_ROWS: u32 = 256;
/// ... and that their LM head takes, of 16 bits, where the other products have other kernels: it reads the weights once for 256 rows,
/// and need not leave logits that are read again for the best of each row.
pub const HEAD_ROWS: u32 = 512;
/// Rows of a bucket that the grouped kernels take, at most: of 16 bits. Of f32 rows, whose tiles are low, so many experts' weights would
/// come from the second-level cache again and again.
const GROUPED_ROWS: u32 = 1024;
const GROUPED_SPLIT_MOST_ROWS: u32 = 256;

/// Rows of this type of a bucket that the grouped kernels take, at most (kernels/grouped/grouped.cu).
pub fn grouped_rows(operand: DType) -> u32 {
    match operand {
        DType::F32 => GROUPED_SPLIT_MOST_ROWS,
        DType::BF16 | DType::F16 => GROUPED_ROWS,
    }
}

/// Rows of a decode bucket and outputs of a block, at most, in the skinny kernels (kernels/skinny/skinny.cuh).
pub const SKINNY_ROWS: usize = 8;
pub const SKINNY_OUTPUTS: usize = 16;
/// Rows, at most, whose experts one of them does whole (kernels/skinny/fused.cuh).
pub const FUSED_ROWS: usize = 1;

/// Experts of a word of bits that the kernels have, and the words of their instances (kernels/common/bits.cuh).
pub const WORD_EXPERTS: usize = 32;
pub const EXPERT_WORDS: [u32; 3] = [1, 2, 4];

/// Words of bits for so many experts; the most there are where those are more.
pub fn expert_words(experts: usize) -> u32 {
    let holds = |words: &u32| experts <= *words as usize * WORD_EXPERTS;
    let [.., most] = EXPERT_WORDS;
    EXPERT_WORDS.into_iter().find(holds).unwrap_or(most)
}

/// Experts that the skinny kernels of so many words lay out their scores for.
pub fn skinny_experts(words: u32) -> usize {
    words as usize * WORD_EXPERTS
}

/// Words of bits that there is room for before these scores (`skinny_room` of kernels/skinny/choice.cuh): with more than one the
/// most there are, so that those that guess need one instance for all of them.
pub fn skinny_room(words: u32) -> usize {
    let [.., most] = EXPERT_WORDS;
    if words == 1 { 1 } else { most as usize }
}

/// Experts that a block guesses about (`skinny_guess_experts` there).
pub fn skinny_guess_experts(words: u32) -> usize {
    if words == 1 { 8 } else { 16 }
}

/// Of them the blocks that guess tell so many.
const GUESS_BEST: usize = 2;

/// Words of 64 bits before the scores: the experts that rows have chosen, then those that are guessed.
pub fn skinny_told(words: u32) -> usize {
    let room = skinny_room(words);
    let guessed = GUESS_BEST * room * WORD_EXPERTS / skinny_guess_experts(words);
    room * SKINNY_ROWS + guessed
}
