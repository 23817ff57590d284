//! Logits, sampling, and logits to the host (kernels/step/deliver.cu).

use super::Lowering;
use super::tiled::{Epilogue, Prepared, Product, Rows};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::arguments::arguments;
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::tuning::limits::SAMPLE_PARTS;
use crate::plan::{SCORE_TILE_ROWS, StepKind};
use crate::sys::abi;

/// Blocks of `tg_sample_best` that an H200 has room for at once, about: 4 an SM.
const BEST_BLOCKS: u32 = 512;
/// Blocks of `tg_sample` that take their place at once on any GPU we know of, about one an SM; and of a row, at most.
const SAMPLE_BLOCKS: u32 = 128;
const SAMPLE_SHARES: u32 = 8;

/// Pieces that a row is cut into: with a whole tile of rows they fill any bus.
const PIECES: u32 = 16;

/// Where logits go.
#[derive(Debug, Clone, Copy)]
pub struct LogitsRing {
    /// Pinned memory, as kernels/step/deliver.cu lays it out.
    pub ring: Address,
    /// `uint64_t`: tiles posted.
    pub counter: Address,
    /// Lines of a tile, at most.
    pub lines: u32,
}

/// Words of a slot's bitmap of seen tokens.
pub fn seen_words(vocab_size: usize) -> usize {
    vocab_size.div_ceil(32)
}

/// Which logits a call is about: a score step has them tile by tile, every other step all at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitsPart {
    /// f32 `[S, V]`: the sampled rows.
    Sampled,
    /// f32 `[SCORE_TILE_ROWS, V]`: rows from `tile * SCORE_TILE_ROWS` on.
    Tile(u32),
}

/// The parts of a bucket's logits, in order.
pub fn logits_parts(kind: StepKind, rows: u32) -> impl Iterator<Item = LogitsPart> {
    let tiles = match kind {
        StepKind::Score => rows.div_ceil(SCORE_TILE_ROWS as u32),
        StepKind::Decode | StepKind::Mixed => 0,
    };
    let whole = (tiles == 0).then_some(LogitsPart::Sampled);
    whole.into_iter().chain((0..tiles).map(LogitsPart::Tile))
}

impl LogitsPart {
    /// First row of a tile and its rows; both 0 where the part is not a tile.
    pub(super) fn rows(self) -> (u32, u32) {
        let rows = SCORE_TILE_ROWS as u32;
        match self {
            Self::Sampled => (0, 0),
            Self::Tile(tile) => (tile * rows, rows),
        }
    }
}

/// What `best` holds of each row, u64 `[S, parts]` of the [`best_words`](crate::backend::cuda::memory::arena::best_words) that there is room for:
/// the best logit of each part, and its id (kernels/common/argmax.cuh).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    pub parts: u32,
}

/// What is known of the tokens of each slot's sequence, where penalties ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Noted {
    /// u32 `[slots + prefixes, `[`seen_words`]`]`: a bit for each token of the sequence; without a repetition penalty, of its answer.
    pub seen: Address,
    /// u16 `[slots, `[`count_stride`](crate::backend::cuda::memory::arena::count_stride)`]`: how often each stands in the answer.
    pub counts: Address,
}

/// Blocks that look for a row's best: fewer where all rows' blocks would not fit the GPU at once.
fn best_blocks(rows: u32) -> u32 {
    (BEST_BLOCKS / rows).clamp(1, SAMPLE_PARTS as u32)
}

/// Blocks that share the ids of a greedy row whose best score is not its best logit: all rows' are no more than SMs.
fn sample_blocks(rows: u32) -> u32 {
    (SAMPLE_BLOCKS / rows).clamp(1, SAMPLE_SHARES)
}

impl Lowering<'_> {
    /// logits = lm_head `[V, H]` times x, which is `final_norm`'s: `[S, H]`, or `[R, H]` in a score step; `prepared` as
    /// [`Prepared::Scratch`] has it. The kernels that
    /// stream weights also leave where the best ones are, in `best`; they then store no logits of rows whose token that is
    /// (kernels/common/argmax.cuh). So they serve only where logits go nowhere else: not where they are `delivered`.
    /// `logits` has the part's shape, `best` as [`Found`] says.
    pub fn lm_head(
        &mut self,
        part: LogitsPart,
        delivered: bool,
        logits: Address,
        best: Address,
        (x, prepared): (Address, Address),
        lm_head: Matrix,
    ) -> Option<Found> {
        let (first, rows) = part.rows();
        let row_bytes = self.config.hidden_size * self.kernels.precision.compute.bytes();
        let product = Product {
            y: logits,
            x: x + u64::from(first) * row_bytes as u64,
            w: lm_head,
            w_pair: None,
            bias: 0,
            epilogue: Epilogue::StoreF32,
            prepared: Prepared::Scratch(prepared),
        };
        let rows = match part {
            LogitsPart::Sampled => Rows::Sampled,
            LogitsPart::Tile(_) => Rows::Tile { first, rows },
        };
        match self.swap_ab_of_head().filter(|_| !delivered) {
            Some(swap_ab) if swap_ab.has_head_for(&product) => {
                Some(self.swap_ab_head(swap_ab, &product, best))
            }
            _ => {
                self.product(&product, rows);
                None
            }
        }
    }

    /// Notes the step's tokens in what penalties look at, for slots that have them and shared prefixes.
    /// Once a step, before [`Lowering::sample`]; that of a decode step does it itself.
    pub fn mark_seen(&mut self, noted: Noted) {
        let Noted { seen, counts } = noted;
        let vocabulary = self.config.vocab_size as u32;
        let arguments = arguments![seen, counts, self.state, self.whole_step, vocabulary];
        let (kernel, grid) = (&self.kernels.mark_seen, (self.bucket.sequences, 1, 1));
        self.call_plain(kernel, grid, abi::TG_SEEN_THREADS, arguments)
    }

    /// Token and logprobs of each sampled row that the part holds, into the step's sampled table. `found`: what of these logits
    /// `best` holds already; else it is looked for.
    /// `logits` has the part's shape and is as before in the end, `best` as [`Found`] says. `meetings` has [`MEETING_BYTES`](crate::backend::cuda::tuning::limits::MEETING_BYTES) for each
    /// of `S` rows, all 0 before and after.
    pub fn sample(
        &mut self,
        part: LogitsPart,
        logits: Address,
        noted: Noted,
        best: Address,
        found: Option<Found>,
        meetings: Address,
    ) {
        let found = match found {
            Some(found) => found,
            None => self.find_best(part, logits, best),
        };
        let (first, rows) = part.rows();
        let marks = self.bucket.kind == StepKind::Decode;
        let args = abi::tg_sample_args {
            state: self.state,
            logits,
            seen: noted.seen,
            counts: noted.counts,
            best,
            meetings,
            step: self.step,
            vocabulary: self.config.vocab_size as u32,
            first,
            tile_rows: rows,
            parts: found.parts,
            marks: marks.into(),
            pad: 0,
        };
        let sequences = self.bucket.sequences;
        let grid = (sequences, sample_blocks(sequences), 1);
        let kernel = &self.kernels.sample;
        self.call_plain(kernel, grid, abi::TG_SAMPLE_THREADS, arguments![&args])
    }

    /// Reads the part's logits for the best of each row.
    fn find_best(&mut self, part: LogitsPart, logits: Address, best: Address) -> Found {
        let (first, rows) = part.rows();
        let args = abi::tg_sample_best_args {
            best,
            state: self.state,
            logits,
            step: self.step,
            vocabulary: self.config.vocab_size as u32,
            first,
            tile_rows: rows,
            pad: 0,
        };
        let parts = best_blocks(self.bucket.sequences);
        let grid = (parts, self.bucket.sequences, 1);
        let kernel = &self.kernels.sample_best;
        self.call_plain(kernel, grid, abi::TG_BEST_THREADS, arguments![&args]);
        Found { parts }
    }

    /// Sends the part's logits to the host, those rows that were asked for. `last`: no part of the step follows.
    /// `logits` is the part's, and while the work runs the host takes what the ring holds.
    pub fn deliver(&mut self, part: LogitsPart, last: bool, logits: Address, to: &LogitsRing) {
        let (first, tile_rows) = part.rows();
        let lines = match part {
            LogitsPart::Sampled => self.bucket.sequences,
            LogitsPart::Tile(_) => tile_rows.min(self.bucket.rows - first),
        };
        debug_assert!(lines <= to.lines);
        let (kernels, one) = (self.kernels, (1, 1, 1));
        let arguments = arguments![to.ring, to.counter];
        self.call_plain(&kernels.logits_wait, one, 1, arguments);
        let args = abi::tg_logits_copy_args {
            ring: to.ring,
            counter: to.counter,
            logits,
            state: self.state,
            step: self.step,
            vocabulary: self.config.vocab_size as u32,
            lines: to.lines,
            first,
            tile_rows,
        };
        let (grid, threads) = ((lines, PIECES, 1), abi::TG_LOGITS_COPY_THREADS);
        self.call_plain(&kernels.logits_copy, grid, threads, arguments![&args]);
        let arguments = arguments![to.ring, to.counter, lines, u32::from(last)];
        self.call_plain(&kernels.logits_post, one, 1, arguments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn score_steps_have_their_logits_in_tiles() {
        let parts = |kind, rows| logits_parts(kind, rows).collect::<Vec<_>>();
        assert_eq!(parts(StepKind::Decode, 8), [LogitsPart::Sampled]);
        assert_eq!(parts(StepKind::Mixed, 4096), [LogitsPart::Sampled]);
        let tiles = [LogitsPart::Tile(0), LogitsPart::Tile(1)];
        assert_eq!(parts(StepKind::Score, 1024), tiles);
        assert_eq!(LogitsPart::Tile(3).rows(), (1536, 512));
    }

    #[test]
    fn many_rows_have_fewer_parts() {
        let best = [1, 32, 33, 64, 128, 200, 256, 512, 4096].map(best_blocks);
        assert_eq!(best, [16, 16, 15, 8, 4, 2, 2, 1, 1]);
        let sample = [1, 16, 17, 32, 64, 65, 256, 4096].map(sample_blocks);
        assert_eq!(sample, [8, 8, 7, 4, 2, 1, 1, 1]);
    }
}
