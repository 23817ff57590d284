//! The step that all ways launch, as kernels/ways/ways.h has it: the struct that its kernels share, and what they compute, in
//! Rust.

use crate::backend::cuda::driver::image;
use crate::backend::cuda::listed::techniques::Failure;
use crate::backend::cuda::tools::foreseen::{self, Computed};
use crate::error::{Error, Result};
use std::mem::offset_of;

/// TG_WAYS_* of kernels/ways/ways.h.
pub const BUCKETS: usize = 4;
pub const THREADS: u32 = 128;
pub const WIDEST: u32 = 128;
pub const STAMPS: usize = 1024;
pub const COPIES: usize = 2;

/// `tg_ways`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct Shared {
    pub step: u64,
    pub limit: u64,
    pub digest: u64,
    pub seed: u32,
    pub bucket: u32,
    pub layers: u32,
    pub renew: u32,
    pub launched: u32,
    pub not_taken: u32,
    pub idle_turns: u64,
    pub arrived: u64,
    /// what, error
    pub failed: [u32; 2],
    pub failed_step: u64,
    /// bucket, count
    pub failed_at: [u32; 2],
    pub values: [u64; 2],
    pub stamps: u64,
    pub told: u64,
    pub graphs: [[u64; BUCKETS]; COPIES],
}

// SAFETY: integers alone, of which all-zero bytes are a value.
unsafe impl bytemuck::Zeroable for Shared {}
// SAFETY: as above; no padding stands between them, which the test of the layout would find.
unsafe impl bytemuck::Pod for Shared {}

impl Shared {
    /// What the GPU says went wrong.
    pub fn failure(&self) -> Option<Failure> {
        (self.failed[0] != 0).then_some(Failure {
            what: self.failed[0],
            error: self.failed[1],
            step: self.failed_step,
            bucket: self.failed_at[0],
            count: self.failed_at[1],
        })
    }

    /// # Errors
    /// The kernels have another struct.
    pub fn check_layout() -> Result<()> {
        let kernels = image::constants::<4>("tg_ways_layout_tile")?;
        let here = [
            size_of::<Self>(),
            offset_of!(Self, failed),
            offset_of!(Self, graphs),
            offset_of!(Self, told),
        ]
        .map(|bytes| bytes as u32);
        match kernels == here {
            true => Ok(()),
            false => Err(Error::Runtime(format!(
                "the kernels' tg_ways has size and offsets {kernels:?}, expected {here:?}: build again"
            ))),
        }
    }
}

/// Blocks of a bucket.
pub fn blocks(bucket: usize) -> u32 {
    match bucket {
        0 => 1,
        bucket => 2 << (2 * bucket),
    }
}

/// Of one word, as in ways/step.cuh.
pub fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}

/// ... and of a long one.
pub fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Steps of small kernels, on the host.
#[derive(Debug)]
pub struct SmallSteps {
    layers: u32,
    values: [Vec<u32>; 2],
}

/// Such steps as they must come out, for all ways of a comparison.
pub type Foreseen = foreseen::Foreseen<SmallSteps>;

impl Foreseen {
    pub fn new(layers: u32) -> Self {
        let zeros = || vec![0; (WIDEST * THREADS) as usize];
        Self::of(SmallSteps {
            layers,
            values: [zeros(), zeros()],
        })
    }

    pub fn layers(&self) -> u32 {
        self.steps(|steps| steps.layers)
    }

    /// Of the first `steps` steps.
    pub fn digest(&self, steps: u64) -> u64 {
        self.value(steps)
    }

    /// Of the step that follows the first `steps`.
    pub fn bucket(&self, steps: u64) -> usize {
        bucket_behind(self.value(steps))
    }
}

/// Of the step that follows those with this digest.
fn bucket_behind(digest: u64) -> usize {
    (digest >> 32) as u32 as usize % BUCKETS
}

impl Computed for SmallSteps {
    fn next(&mut self, digest: u64) -> u64 {
        let n = (blocks(bucket_behind(digest)) * THREADS) as usize;
        let seed = digest as u32;
        for layer in 0..self.layers {
            let [even, odd] = &mut self.values;
            let (from, to) = match layer % 2 {
                0 => (even, odd),
                _ => (odd, even),
            };
            let add = layer.wrapping_add(seed);
            for (to, from) in to[..n].iter_mut().zip(from[..n].iter().rev()) {
                *to = mix(from.wrapping_add(add));
            }
        }
        let last = &self.values[self.layers as usize % 2][..n];
        let word = |(i, &value): (usize, &u32)| mix64((i as u64) << 32 | u64::from(value));
        let sum = last.iter().enumerate().map(word).fold(0, u64::wrapping_add);
        mix64(digest.wrapping_add(sum))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_struct_is_the_kernels() {
        Shared::check_layout().unwrap();
    }

    #[test]
    fn every_bucket_comes_and_every_kernel_shows() {
        let steps = Foreseen::new(5);
        let mut seen = [0; BUCKETS];
        for step in 0..200 {
            seen[steps.bucket(step)] += 1;
        }
        assert!(seen.iter().all(|&count| count > 20), "{seen:?}");
        let digest = steps.digest(200);
        assert_eq!(Foreseen::new(5).digest(200), digest);
        // A kernel less, or a step less, is another digest.
        assert_ne!(Foreseen::new(4).digest(200), digest);
        assert_ne!(steps.digest(199), digest);
        assert_eq!([0, 1, 2, 3].map(blocks), [1, 8, 32, WIDEST]);
    }
}
