//! Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): a counter-based
//! generator, so element i of a stream needs no element before it.

/// Four words for a counter and a key.
pub fn philox4x32_10(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let mut c = counter;
    let mut k = key;
    for round in 0..10 {
        if round > 0 {
            k = [
                k[0].wrapping_add(0x9e37_79b9),
                k[1].wrapping_add(0xbb67_ae85),
            ];
        }
        let first = u64::from(c[0]) * 0xd251_1f53;
        let second = u64::from(c[2]) * 0xcd9e_8d57;
        c = [
            (second >> 32) as u32 ^ c[1] ^ k[0],
            second as u32,
            (first >> 32) as u32 ^ c[3] ^ k[1],
            first as u32,
        ];
    }
    c
}

#[cfg(test)]
mod tests {
    use super::philox4x32_10;

    /// Random123's known answers.
    #[test]
    fn known_answers() {
        assert_eq!(
            philox4x32_10([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox4x32_10([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
    }
}
