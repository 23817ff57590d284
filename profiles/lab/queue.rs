//! An atomic queue by itself (kernels/ways/queue.cu): items that the GPU's threads claim from one counter, in each way to claim
//! them, and the same items split beforehand.

use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::driver::launch::{Argument, Kernel, Launch};
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::tools::techniques::step::{mix, mix64};
use crate::error::{Error, Result};
use cudarc::driver::CudaStream;
use std::sync::Arc;

/// QUEUE_THREADS of kernels/ways/queue.cu.
const THREADS: u32 = 128;
/// Four an SM of 132: all are on the GPU at once, so none begins when another has ended.
const BLOCKS: u32 = 528;
const WARPS: usize = (BLOCKS * THREADS / 32) as usize;

/// How a thread comes by its items.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    One,
    Many,
    ByWarp,
    Split,
}

impl Claim {
    pub const ALL: [Self; 4] = [Self::One, Self::Many, Self::ByWarp, Self::Split];

    pub fn name(self) -> &'static str {
        match self {
            Self::One => "one item a claim",
            Self::Many => "32 items a claim",
            Self::ByWarp => "32 for a warp, by one lane",
            Self::Split => "split evenly beforehand",
        }
    }

    /// Atomic operations that `items` take at least.
    pub fn claims(self, items: u32) -> u64 {
        match self {
            Self::One => items.into(),
            Self::Many | Self::ByWarp => items.div_ceil(32).into(),
            Self::Split => 0,
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    pub items: u32,
    /// Dependent steps of arithmetic of an item, in the mean; 0: nothing but claiming.
    pub rounds: u32,
    /// Items differ.
    pub skewed: bool,
}

/// When the workers, which are warps, ended, in us from the first one's beginning.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ends {
    pub first_us: f64,
    pub median_us: f64,
    pub last_us: f64,
    /// Of the workers' time, what they had nothing to do in.
    pub idle_share: f64,
}

/// The kernel and its memory.
pub struct Queue {
    stream: Arc<CudaStream>,
    kernel: Kernel,
    next: Buffer,
    sum: Buffer,
    times: Buffer,
}

impl Queue {
    /// # Errors
    /// What the driver refuses.
    pub fn new(gpu: &OpenGpu) -> Result<Self> {
        let stream = gpu.context.new_stream().map_err(|error| {
            Error::Runtime(format!(
                "making a stream: the driver answered {:?}",
                error.0
            ))
        })?;
        Ok(Self {
            stream,
            kernel: gpu.module.kernel("tg_queue")?,
            next: Buffer::new(&gpu.context, 4)?,
            sum: Buffer::new(&gpu.context, 8)?,
            times: Buffer::new(&gpu.context, 16 * WARPS)?,
        })
    }

    /// Does `work` once; what all items came to, which every way to claim them must give, and when the workers ended.
    ///
    /// # Errors
    /// What the driver refuses.
    pub fn run(&self, work: Work, claim: Claim) -> Result<(u64, Ends)> {
        let stream = &self.stream;
        self.next.fill(stream, 0)?;
        self.sum.fill(stream, 0)?;
        let address = |buffer: &Buffer| Argument::Address(buffer.at(0));
        let arguments = [
            address(&self.next),
            address(&self.sum),
            address(&self.times),
            Argument::U32(work.items),
            Argument::U32(work.rounds),
            Argument::U32(work.skewed.into()),
            Argument::U32(claim as u32),
        ];
        let launch = Launch::blocks(BLOCKS, THREADS);
        // SAFETY: the arguments are the kernel's; the reads below wait for it.
        unsafe { self.kernel.launch(stream, launch, &arguments) }?;
        let mut sum = [0u64];
        self.sum
            .read(stream, 0, bytemuck::cast_slice_mut(&mut sum))?;
        let mut times = vec![[0u64; 2]; WARPS];
        self.times
            .read(stream, 0, bytemuck::cast_slice_mut(&mut times))?;
        Ok((sum[0], ends(&times)))
    }
}

/// Of when each worker began and ended; at least one.
fn ends(times: &[[u64; 2]]) -> Ends {
    let start = times.iter().map(|time| time[0]).min().unwrap_or(0);
    let mut ends: Vec<u64> = times.iter().map(|time| time[1] - start).collect();
    ends.sort_unstable();
    let us = |at: usize| ends[at] as f64 / 1e3;
    let (last, all) = (us(ends.len() - 1), ends.iter().sum::<u64>() as f64 / 1e3);
    Ends {
        first_us: us(0),
        median_us: us(ends.len() / 2),
        last_us: last,
        idle_share: 1.0 - all / (last * ends.len() as f64).max(1e-9),
    }
}

/// What [`Queue::run`] must come to, worked out on the host.
pub fn expected(work: Work) -> u64 {
    let of_item = |item: u32| {
        let mut value = mix64(u64::from(item) + 1);
        for round in 0..rounds(work, item) {
            value = mix64(value.wrapping_add(round.into()));
        }
        value
    };
    (0..work.items).map(of_item).fold(0, u64::wrapping_add)
}

fn rounds(work: Work, item: u32) -> u32 {
    match work.skewed {
        false => work.rounds,
        true => (work.rounds / 4) << mix(item).trailing_zeros().min(6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skewed_items_take_about_as_long_in_all() {
        let work = |skewed| Work {
            items: 100_000,
            rounds: 64,
            skewed,
        };
        let all = |work: Work| (0..work.items).map(move |item| u64::from(rounds(work, item)));
        let (even, skewed): (u64, u64) = (all(work(false)).sum(), all(work(true)).sum());
        let ratio = skewed as f64 / even as f64;
        assert!((0.9..1.2).contains(&ratio), "{ratio}");
        assert_eq!(all(work(true)).max(), Some(16 * 64));
        assert_ne!(expected(work(true)), expected(work(false)));
    }

    #[test]
    fn idle_workers_are_those_that_wait_for_the_last() {
        let found = ends(&[[1000, 3000], [1100, 2000], [1000, 5000]]);
        assert_eq!(
            (found.first_us, found.median_us, found.last_us),
            (1.0, 2.0, 4.0)
        );
        assert!((found.idle_share - 5.0 / 12.0).abs() < 1e-9, "{found:?}");
    }
}
