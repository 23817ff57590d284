//! FNV-1a: small, fixed hashes for sampling keys, duplicate ids and the journal. None of them guards against
//! an adversary, only against chance. And how longer ones are written.

/// 64-bit FNV-1a, fed piece by piece.
#[derive(Debug, Clone, Copy)]
pub struct Fnv64(u64);

impl Default for Fnv64 {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv64 {
    #[must_use]
    pub fn with(mut self, bytes: &[u8]) -> Self {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self
    }

    pub fn finish(self) -> u64 {
        self.0
    }
}

/// 128-bit FNV-1a: a million ids collide with a chance of about 1e-27.
pub fn fnv128(bytes: &[u8]) -> u128 {
    let mut hash = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d_u128;
    for &byte in bytes {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    hash
}

/// The finaliser of SplitMix64: spreads every input bit over the whole word.
pub fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The bytes of a digest in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_vectors() {
        assert_eq!(
            Fnv64::default().with(b"foobar").finish(),
            0x8594_4171_f739_67e8
        );
        assert_eq!(
            Fnv64::default().with(b"foo").with(b"bar").finish(),
            0x8594_4171_f739_67e8
        );
        assert_eq!(fnv128(b"foobar"), 0x343e_1662_793c_64bf_6f0d_3597_ba44_6f18);
    }
}
