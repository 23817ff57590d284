//! The step that all ways launch, as kernels/ways/step.cuh has it: the struct that its kernels share, and what they compute.

use super::super::reference::{mix, mix64, values};
use bytemuck::{Pod, Zeroable};
use std::mem::offset_of;
use tailgraph::error::Error;

/// TG_WAYS_* of kernels/ways/step.cuh.
pub const BUCKETS: usize = 4;
pub const THREADS: u32 = 128;
pub const WIDEST: u32 = 128;
pub const COPIES: usize = 2;

/// `tg_ways`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
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

/// The name of the kernels' numbers of that struct, and what they must be.
pub const LAYOUT: (&str, [usize; 4]) = (
    "tg_ways_layout_tile",
    [
        size_of::<Shared>(),
        offset_of!(Shared, failed),
        offset_of!(Shared, graphs),
        offset_of!(Shared, told),
    ],
);

impl Shared {
    /// What the GPU was refused, or waited for in vain, in one line that names `way`, the node and the limit (TG_WAYS_*).
    pub fn failure(&self, way: &str) -> Option<Error> {
        let [what, error] = self.failed;
        let (step, [bucket, count]) = (self.failed_step, self.failed_at);
        let pending = "2,048 pending kernels (cudaLimitDevRuntimePendingLaunchCount)";
        let (node, limit) = match what {
            0 => return None,
            1 => (
                "the tail launch of a step's graph",
                "255 pending tail launches",
            ),
            2 => (
                "the fire-and-forget launch of a step's graph",
                "120 in a run of a graph, and none of a graph that still runs",
            ),
            3 => (
                "the tail launch of the head by itself",
                "one pending launch of itself",
            ),
            4 => ("a kernel launched by the scheduler kernel", pending),
            5 => ("the scheduler kernel's next turn", pending),
            6 => (
                "a stream made by the scheduler kernel",
                "the device runtime's memory",
            ),
            _ => {
                return Some(Error::Runtime(format!(
                    "{way}: step {step}, bucket {bucket}: {count} blocks did not come to a grid barrier within 5 s, expected all of a \
                     cooperative launch: another process may hold the GPU"
                )));
            }
        };
        let answer = error_name(error);
        Some(Error::Runtime(format!(
            "{way}: step {step}, bucket {bucket}: {node} was refused with {answer} after {count} launches, expected a launch; the \
             limit is {limit}"
        )))
    }
}

/// An error that a launch on a device gives.
pub fn error_name(error: u32) -> String {
    let name = match error {
        1 => "cudaErrorInvalidValue",
        2 => "cudaErrorMemoryAllocation",
        69 => "cudaErrorLaunchPendingCountExceeded",
        701 => "cudaErrorLaunchOutOfResources",
        800 => "cudaErrorNotPermitted",
        801 => "cudaErrorNotSupported",
        _ => "cudaError_t",
    };
    format!("{name} ({error})")
}

/// Blocks of a bucket.
pub fn blocks(bucket: usize) -> u32 {
    if bucket == 0 { 1 } else { 2 << (2 * bucket) }
}

/// The bucket of the step that follows those with this digest.
pub fn bucket_behind(digest: u64) -> usize {
    (digest >> 32) as u32 as usize % BUCKETS
}

/// Digests behind 0 to `steps` steps of so many kernels, the last of which decides.
pub fn reference(kernels: u32, steps: u64) -> Vec<u64> {
    let zeros = || vec![0u32; (WIDEST * THREADS) as usize];
    let (layers, mut rows) = (kernels - 1, [zeros(), zeros()]);
    values(steps, |digest| {
        let n = (blocks(bucket_behind(digest)) * THREADS) as usize;
        for layer in 0..layers {
            let [even, odd] = &mut rows;
            let (from, to) = if layer % 2 == 0 {
                (even, odd)
            } else {
                (odd, even)
            };
            let add = layer.wrapping_add(digest as u32);
            for (to, from) in to[..n].iter_mut().zip(from[..n].iter().rev()) {
                *to = mix(from.wrapping_add(add));
            }
        }
        let last = &rows[layers as usize % 2][..n];
        let word = |(i, &value): (usize, &u32)| mix64((i as u64) << 32 | u64::from(value));
        let sum = last.iter().enumerate().map(word).fold(0, u64::wrapping_add);
        mix64(digest.wrapping_add(sum))
    })
}
