//! What steps must come to, so that what a GPU computed can be compared with it: each leaves a value, from which the next one follows.

/// The mixing of two words in kernels/common/mix.cuh.
pub use tailgraph::io::hash::mix64;

/// What 0 to `steps` steps leave. `next` gives what a step leaves behind one that left its argument.
pub fn values(steps: u64, mut next: impl FnMut(u64) -> u64) -> Vec<u64> {
    let values = std::iter::successors(Some(0), |&last| Some(next(last)));
    values.take(steps as usize + 1).collect()
}

/// The mixing of one word there.
pub fn mix(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}
