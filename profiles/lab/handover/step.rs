//! A step over two GPUs, as kernels/ways/pair.cu has it: the struct that a GPU's kernels share, and what they compute.

use super::super::reference::{mix, mix64, values};
use super::super::ways::step::{self, error_name};
use bytemuck::{Pod, Zeroable};
use std::mem::offset_of;
use tailgraph::error::Error;

/// TG_PAIR_* of kernels/ways/pair.cu.
pub const ROW_WORDS: usize = 1024;
pub const ROW_BYTES: usize = 4 * ROW_WORDS;
pub const THREADS: u32 = 256;
pub const BLOCKS: u32 = 64;
pub const FLAG_BYTES: usize = 128;

/// `tg_pair`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub struct Shared {
    /// Its steps; the token is their digest.
    pub ways: step::Shared,
    pub sum: u64,
    pub limit_ns: u64,
    pub gpu: u32,
    pub rows: u32,
    pub blocks_done: u32,
    pub pad: u32,
}

/// Where the token lies in it.
pub const TOKEN_AT: usize = offset_of!(Shared, ways.digest);

/// The name of the kernels' numbers of that struct, and what they must be.
pub const LAYOUT: (&str, [usize; 4]) = (
    "tg_pair_layout_tile",
    [
        size_of::<Shared>(),
        TOKEN_AT,
        offset_of!(Shared, gpu),
        offset_of!(Shared, ways.failed),
    ],
);

impl Shared {
    /// What a GPU waited for in vain, or was refused (TG_PAIR_*), in one line. `gpus`: which one says so, and the other.
    pub fn failure(&self, way: &str, [gpu, other]: [u32; 2]) -> Option<Error> {
        let at = |what| format!("{way}: step {} on cuda:{gpu}: {what}", self.ways.step);
        let ([what, error], [_, block]) = (self.ways.failed, self.ways.failed_at);
        let part = match what {
            0 => return None,
            1 => "the rows".to_owned(),
            2 => "the token".to_owned(),
            3 => format!("the rows of block {block} for the sum"),
            _ => {
                return Some(Error::Runtime(at(format!(
                    "the tail launch of its own graph was refused with {}, expected a launch; the limit is one pending launch of itself",
                    error_name(error)
                ))));
            }
        };
        Some(Error::Runtime(at(format!(
            "{part} of cuda:{other} did not come within {} s, expected microseconds: another process may hold that GPU, or it failed",
            self.limit_ns / 1_000_000_000
        ))))
    }
}

/// A bf16 by 16 bits that say which.
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

/// The sums of the two bf16 in each, to the nearest, to even where two are as near.
fn sum(a: u32, b: u32) -> u32 {
    let rounded = |a: u32, b: u32| {
        let bits = (f32::from_bits(a) + f32::from_bits(b)).to_bits();
        (bits + 0x7fff + (bits >> 16 & 1)) >> 16
    };
    let (low, high) = (0xffff, 0xffff_0000);
    rounded((a & low) << 16, (b & low) << 16) | rounded(a & high, b & high) << 16
}

/// Tokens behind 0 to `steps` steps of so many rows, which both GPUs add up if `reduces`.
pub fn reference(rows: u32, reduces: bool, steps: u64) -> Vec<u64> {
    values(steps, |token| {
        let sum = (0..rows * ROW_WORDS as u32).fold(0u64, |all, i| {
            let own = word(token, 0, i);
            let value = if reduces {
                sum(own, word(token, 1, i))
            } else {
                own
            };
            all.wrapping_add(mix64(u64::from(i) << 32 | u64::from(value)))
        });
        mix64(token.wrapping_add(sum))
    })
}
