//! FNV-1a: small, fixed hashes for sampling keys, duplicate ids and the journal. None of them guards against
//! an adversary, only against chance. And how longer ones are written.

use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

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

/// Length and SHA-256 of a file, in hexadecimal.
///
/// # Errors
/// It cannot be read; `path` names it.
pub fn sha256(file: &File, path: &Path) -> Result<(u64, String)> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    loop {
        let read = file
            .read_at(&mut buffer, bytes)
            .map_err(|error| Error::io(path, error))?;
        if read == 0 {
            return Ok((bytes, hex(&hash.finalize())));
        }
        hash.update(&buffer[..read]);
        bytes += read as u64;
    }
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
