//! What kernels take at most, where more than one place has to know: what serves a bucket, and how much memory it is given.

/// How many expert tiles there are, and what kernels/grouped/units.cuh counts: `EXPERT_COUNTS` words of kernels/common/experts.cuh.
pub const EXPERT_COUNTS_BYTES: usize = 1088;
/// In how many parts a row of logits is searched for its best, at most: by a kernel that reads them, and by the blocks of an LM
/// head that streams weights, of up to [`MOST_ROWS`] rows.
pub const SAMPLE_PARTS: usize = 16;
pub const HEAD_PARTS: usize = 256;

/// Rows of a bucket that the swap-AB and the grouped kernels take, at most.
pub const MOST_ROWS: u32 = 256;

/// Rows of a decode bucket, experts and outputs of a block, at most, in the skinny kernels (kernels/skinny/skinny.cuh).
pub const SKINNY_ROWS: usize = 8;
pub const SKINNY_EXPERTS: usize = 32;
pub const SKINNY_OUTPUTS: usize = 16;
/// Words in which they tell each other which experts a step will likely choose (kernels/skinny/guess.cuh).
pub const SKINNY_GUESS_WORDS: usize = 8;
/// Rows, at most, whose experts one of them does whole (kernels/skinny/fused.cuh).
pub const FUSED_ROWS: usize = 1;
