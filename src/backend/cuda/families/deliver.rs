//! Logits to the host (kernels/step/deliver.cu).

use super::Lowering;
use super::head::LogitsPart;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::launch::Argument;
use crate::sys::abi;

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

impl Lowering<'_> {
    /// Hands the part's logits over, those rows that were asked for. `last`: of the step's parts.
    /// `logits` is the part's, and while the work runs the host takes what the ring holds.
    pub fn deliver(&mut self, part: LogitsPart, last: bool, logits: Address, to: &LogitsRing) {
        let (first, tile_rows) = part.rows();
        let lines = match part {
            LogitsPart::Sampled => self.bucket.sequences,
            LogitsPart::Tile(_) => tile_rows.min(self.bucket.rows - first),
        };
        debug_assert!(lines <= to.lines);
        let (ring, counter) = (Argument::Address(to.ring), Argument::Address(to.counter));
        let one = (1, 1, 1);
        self.call(
            &self.kernels.logits_wait,
            one,
            1,
            0,
            vec![ring.clone(), counter.clone()],
        );
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
        let arguments = vec![Argument::of(&args)];
        let grid = (lines, PIECES, 1);
        self.call(
            &self.kernels.logits_copy,
            grid,
            abi::TG_LOGITS_COPY_THREADS,
            0,
            arguments,
        );
        let arguments = vec![
            ring,
            counter,
            Argument::U32(lines),
            Argument::U32(u32::from(last)),
        ];
        self.call(&self.kernels.logits_post, one, 1, 0, arguments)
    }
}
