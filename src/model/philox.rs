//! Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011) and the
//! sums of its 16-bit fields that fill random presets. Integers, one multiply and one addition per element:
//! every machine, a GPU too, gets the same bits.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// The four output words for `counter` under `key`.
#[inline(always)]
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut c0, mut c1, mut c2, mut c3] = counter;
    let [mut k0, mut k1] = key;
    for _ in 0..ROUNDS {
        let p0 = u64::from(MULTIPLIERS[0]) * u64::from(c0);
        let p1 = u64::from(MULTIPLIERS[1]) * u64::from(c2);
        (c0, c1, c2, c3) = (
            (p1 >> 32) as u32 ^ c1 ^ k0,
            p1 as u32,
            (p0 >> 32) as u32 ^ c3 ^ k1,
            p0 as u32,
        );
        k0 = k0.wrapping_add(KEY_STEPS[0]);
        k1 = k1.wrapping_add(KEY_STEPS[1]);
    }
    [c0, c1, c2, c3]
}

/// FNV-1a, 32 bits.
pub fn fnv1a_32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811C_9DC5, |hash, &byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// The elements of one random tensor: `offset + sum * scale` where `sum` is that of the low and high halves of
/// Philox's first two words, less its mean. The key is (low half of the seed, FNV-1a of the tensor's name), the
/// counter (element index low, high, high half of the seed, 0).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stream {
    key: [u32; 2],
    seed_high: u32,
    scale: f32,
    offset: f32,
}

/// Mean of the sum of four uniform 16-bit integers.
const MEAN: i32 = 4 * 65_535 / 2;
/// Its variance.
const VARIANCE: f64 = 4.0 * (65_536.0 * 65_536.0 - 1.0) / 12.0;

impl Stream {
    /// Elements of mean `mean` and standard deviation `std` for the tensor of this name.
    pub fn new(seed: u64, name: &str, mean: f32, std: f64) -> Self {
        Self {
            key: [seed as u32, fnv1a_32(name.as_bytes())],
            seed_high: (seed >> 32) as u32,
            scale: (std / VARIANCE.sqrt()) as f32,
            offset: mean,
        }
    }

    /// Element `index` before rounding to the tensor's type.
    #[inline(always)]
    pub fn element(&self, index: u64) -> f32 {
        let counter = [index as u32, (index >> 32) as u32, self.seed_high, 0];
        let [a, b, _, _] = philox4x32_10(counter, self.key);
        let sum = (a & 0xFFFF) + (a >> 16) + (b & 0xFFFF) + (b >> 16);
        // Adding a zero offset changes nothing: no product here is -0.
        self.offset + (sum as i32 - MEAN) as f32 * self.scale
    }

    /// What a kernel makes elements by: the key, the counter's third word, scale and offset.
    pub fn parts(&self) -> ([u32; 2], u32, f32, f32) {
        (self.key, self.seed_high, self.scale, self.offset)
    }

    /// Elements `first ..` as f32 bits, little-endian in memory.
    pub fn fill_f32(&self, first: u64, out: &mut [u32]) {
        fill(self, first, out, |element| element.to_bits().to_le());
    }

    /// Elements `first ..` rounded to the nearest bf16, ties to even, little-endian in memory.
    pub fn fill_bf16(&self, first: u64, out: &mut [u16]) {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
            {
                // SAFETY: this CPU has the features that the function is compiled for.
                return unsafe { x86::fill_bf16_avx512(self, first, out) };
            }
            if is_x86_feature_detected!("avx2") {
                // SAFETY: this CPU has the feature that the function is compiled for.
                return unsafe { x86::fill_bf16_avx2(self, first, out) };
            }
        }
        fill(self, first, out, bf16_bits);
    }
}

/// Fills `out` by one loop for every instruction set; inlined into a function of its own for each, where the compiler turns it
/// into vectors of that set's width.
#[inline(always)]
fn fill<T>(stream: &Stream, first: u64, out: &mut [T], convert: impl Fn(f32) -> T) {
    for (i, out) in out.iter_mut().enumerate() {
        *out = convert(stream.element(first + i as u64));
    }
}

/// Nearest bf16, ties to even, little-endian in memory. For finite numbers; there are no others here.
#[inline(always)]
fn bf16_bits(element: f32) -> u16 {
    let bits = element.to_bits();
    (((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) as u16).to_le()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Stream, bf16_bits, fill};

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
    pub fn fill_bf16_avx512(stream: &Stream, first: u64, out: &mut [u16]) {
        fill(stream, first, out, bf16_bits);
    }

    #[target_feature(enable = "avx2")]
    pub fn fill_bf16_avx2(stream: &Stream, first: u64, out: &mut [u16]) {
        fill(stream, first, out, bf16_bits);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with Random123 (kat_vectors, philox4x32 10).
    #[test]
    fn philox_gives_the_published_answers() {
        let cases = [
            (
                [0; 4],
                [0; 2],
                [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8],
            ),
            (
                [u32::MAX; 4],
                [u32::MAX; 2],
                [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd],
            ),
            (
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0],
                [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
            ),
        ];
        for (counter, key, expected) in cases {
            assert_eq!(philox4x32_10(counter, key), expected);
        }
    }

    #[test]
    fn fnv1a_gives_the_published_answers() {
        assert_eq!(fnv1a_32(b""), 0x811c_9dc5);
        assert_eq!(fnv1a_32(b"a"), 0xe40c_292c);
        assert_eq!(fnv1a_32(b"foobar"), 0xbf9c_f968);
    }

    /// Whatever instructions this CPU has, and wherever a chunk starts, the elements are those of the formula.
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let stream = Stream::new(0x1234_5678_9abc_def0, "x", 1.0, 0.1);
        for first in [0, 1, 77, u64::from(u32::MAX) - 100] {
            let expected: Vec<u16> = (0..203)
                .map(|i| {
                    half::bf16::from_f32(stream.element(first + i))
                        .to_bits()
                        .to_le()
                })
                .collect();
            let mut found = vec![0; expected.len()];
            stream.fill_bf16(first, &mut found);
            assert_eq!(found, expected, "the widest, from {first}");
            found.fill(0);
            fill(&stream, first, &mut found, bf16_bits);
            assert_eq!(found, expected, "portable, from {first}");
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") {
                found.fill(0);
                // SAFETY: this CPU has the feature that the function is compiled for.
                unsafe { x86::fill_bf16_avx2(&stream, first, &mut found) };
                assert_eq!(found, expected, "AVX2, from {first}");
            }
        }
    }
}
