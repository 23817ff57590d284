//! Logits to the host (kernels/step/deliver.cu).

use super::super::launch::{Address, Argument};
use super::Enqueue;
use super::head::LogitsPart;
use crate::error::Result;

const COPY_THREADS: u32 = 256;
/// Pieces that a row is cut into: with a whole tile of rows they fill any bus.
const PIECES: u32 = 16;

/// Where logits go.
#[derive(Debug, Clone, Copy)]
pub struct LogitsRing {
    /// Pinned memory, as kernels/step/deliver.cu lays it out.
    pub ring: Address,
    /// `uint64_t`: tiles posted.
    pub counter: Address,
    /// Of a tile, at most.
    pub lines: u32,
}

impl Enqueue<'_> {
    /// Hands the part's logits over, those rows that were asked for. `last`: of the step's parts.
    ///
    /// # Safety
    /// [`Enqueue`]'s; `logits` is the part's, and while the work runs the host takes what the ring holds.
    pub unsafe fn deliver(
        &self,
        part: LogitsPart,
        last: bool,
        logits: Address,
        to: &LogitsRing,
    ) -> Result<()> {
        let (first, tile_rows) = part.rows();
        let lines = match part {
            LogitsPart::Sampled => self.bucket.sequences,
            LogitsPart::Tile(_) => tile_rows.min(self.bucket.rows - first),
        };
        debug_assert!(lines <= to.lines);
        let (ring, counter) = (Argument::Address(to.ring), Argument::Address(to.counter));
        let one = (1, 1, 1);
        // SAFETY: the caller's promise; these are tg_logits_wait's arguments.
        unsafe { self.launch(&self.kernels.logits_wait, one, 1, 0, &[ring, counter])? };
        let arguments = [
            ring,
            counter,
            Argument::Address(logits),
            Argument::Address(self.state),
            Argument::Address(self.step),
            Argument::U32(self.config.vocab_size as u32),
            Argument::U32(to.lines),
            Argument::U32(first),
            Argument::U32(tile_rows),
        ];
        let grid = (lines, PIECES, 1);
        // SAFETY: likewise, tg_logits_copy's.
        unsafe { self.launch(&self.kernels.logits_copy, grid, COPY_THREADS, 0, &arguments)? };
        let arguments = [
            ring,
            counter,
            Argument::U32(lines),
            Argument::U32(u32::from(last)),
        ];
        // SAFETY: likewise, tg_logits_post's.
        unsafe { self.launch(&self.kernels.logits_post, one, 1, 0, &arguments) }
    }
}
