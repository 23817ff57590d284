//! A step over two GPUs, as kernels/ways/pair.h has it: the struct that a GPU's kernels share, and what they compute, in Rust.

use crate::backend::cuda::driver::image;
use crate::backend::cuda::listed::handover::HandoverFailure;
use crate::backend::cuda::tools::foreseen::{self, Computed};
use crate::backend::cuda::tools::techniques::step::{mix, mix64};
use crate::error::{Error, Result};
use std::mem::offset_of;

/// TG_PAIR_* of kernels/ways/pair.h.
pub const ROW_WORDS: usize = 1024;
pub const THREADS: u32 = 256;
pub const BLOCKS: u32 = 64;
pub const FLAG_BYTES: usize = 128;
pub const STAMPS: usize = 1024;

/// `tg_pair`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Shared {
    pub step: u64,
    pub limit: u64,
    pub token: u64,
    pub sum: u64,
    pub stamps: u64,
    pub told: u64,
    pub limit_ns: u64,
    pub gpu: u32,
    pub rows: u32,
    pub blocks_done: u32,
    pub failed: u32,
    pub error: u32,
    pub block: u32,
}

// SAFETY: integers alone, of which all-zero bytes are a value.
unsafe impl bytemuck::Zeroable for Shared {}
// SAFETY: as above; no padding stands between them, which the test of the layout would find.
unsafe impl bytemuck::Pod for Shared {}

/// Where the token lies in it.
pub const TOKEN_AT: usize = offset_of!(Shared, token);

impl Shared {
    /// What the GPU says went wrong.
    pub fn failure(&self) -> Option<HandoverFailure> {
        (self.failed != 0).then_some(HandoverFailure {
            what: self.failed,
            error: self.error,
            step: self.step,
            block: self.block,
        })
    }

    /// # Errors
    /// The kernels have another struct.
    pub fn check_layout() -> Result<()> {
        let kernels = image::constants::<4>("tg_pair_layout_tile")?;
        let here = [
            size_of::<Self>(),
            TOKEN_AT,
            offset_of!(Self, gpu),
            offset_of!(Self, failed),
        ]
        .map(|bytes| bytes as u32);
        match kernels == here {
            true => Ok(()),
            false => Err(Error::Runtime(format!(
                "the kernels' tg_pair has size and offsets {kernels:?}, expected {here:?}: build again"
            ))),
        }
    }
}

/// By 16 bits that say which.
fn bf16(bits: u32) -> u32 {
    let value = ((bits & 0xff) as i32 - 128) * (1 << (bits >> 8 & 7));
    (value as f32).to_bits() >> 16
}

/// What a GPU has for word `i` of its rows.
fn word(token: u64, gpu: u32, i: u32) -> u32 {
    let of_gpu = gpu.wrapping_mul(0x7feb_352d);
    let bits = mix((token as u32)
        .wrapping_add(i.wrapping_mul(0x9e37_79b9))
        .wrapping_add(of_gpu));
    bf16(bits & 0xffff) | bf16(bits >> 16) << 16
}

/// Of two bf16 in each, to the nearest, to even where two are as near.
fn sum(a: u32, b: u32) -> u32 {
    let rounded = |a: u32, b: u32| {
        let bits = (f32::from_bits(a) + f32::from_bits(b)).to_bits();
        (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    };
    let (low, high) = (0xffff, 0xffff_0000);
    rounded((a & low) << 16, (b & low) << 16) | rounded(a & high, b & high) << 16
}

/// Steps of so many rows, on the host.
#[derive(Debug)]
pub struct PairSteps {
    rows: u32,
    reduces: bool,
}

/// Such steps as they must come out, for all ways of a comparison.
pub type Foreseen = foreseen::Foreseen<PairSteps>;

impl Foreseen {
    pub fn new(rows: u32, reduces: bool) -> Self {
        Self::of(PairSteps { rows, reduces })
    }

    pub fn rows(&self) -> u32 {
        self.steps(|steps| steps.rows)
    }

    /// Both GPUs add up their rows.
    pub fn reduces(&self) -> bool {
        self.steps(|steps| steps.reduces)
    }

    /// After the first `steps` steps.
    pub fn token(&self, steps: u64) -> u64 {
        self.value(steps)
    }
}

impl Computed for PairSteps {
    fn next(&mut self, token: u64) -> u64 {
        let sum = (0..self.rows * ROW_WORDS as u32).fold(0u64, |all, i| {
            let value = match self.reduces {
                true => sum(word(token, 0, i), word(token, 1, i)),
                false => word(token, 0, i),
            };
            all.wrapping_add(mix64(u64::from(i) << 32 | u64::from(value)))
        });
        mix64(token.wrapping_add(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_struct_is_the_kernels() {
        Shared::check_layout().unwrap();
    }

    /// As a sum in f64, which is exact, rounded by hand.
    #[test]
    fn a_sum_is_rounded_once() {
        let wide = |bits: u32| f64::from(f32::from_bits(bits << 16));
        let mut inexact = 0;
        for i in 0..20_000 {
            let (a, b) = (word(7, 0, i), word(7, 1, i));
            for half in [0, 16] {
                let (a, b) = (a >> half & 0xffff, b >> half & 0xffff);
                let (exact, found) = (wide(a) + wide(b), sum(a, b) & 0xffff);
                let off = (wide(found) - exact).abs();
                inexact += u32::from(off > 0.0);
                // A sign and a magnitude: what is next to 0 on the other side is the least negative one.
                let below = found.checked_sub(1).unwrap_or(0x8001);
                for beside in [below, found + 1] {
                    let other = (wide(beside) - exact).abs();
                    assert!(
                        off < other || (off == other && found % 2 == 0),
                        "{a:x} {b:x}"
                    );
                }
            }
        }
        assert!(inexact > 1000, "{inexact} sums are rounded");
    }

    #[test]
    fn tokens_follow_from_rows_and_kind() {
        let token = |rows, reduces, steps| Foreseen::new(rows, reduces).token(steps);
        let found = token(2, false, 3);
        assert_eq!(token(2, false, 3), found);
        for other in [token(1, false, 3), token(2, true, 3), token(2, false, 2)] {
            assert_ne!(other, found);
        }
    }
}
