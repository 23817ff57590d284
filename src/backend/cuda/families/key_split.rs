//! How decode steps cut a row's keys into chunks, which blocks of a GPU share (kernels/attention/decode.cu).

use crate::sys::abi;

/// Rows of a bucket from which on chunks are shorter again: more blocks are there to share them.
const MANY_ROWS: u32 = 33;
/// Keys of the smallest chunk.
const LEAST_KEYS: u32 = 256;
/// Chunks of a row, at most.
const MOST_CHUNKS: u32 = abi::TG_DECODE_SPLITS;
/// Chunks that a row may have in any bucket.
const LEAST_CHUNKS: u32 = 8;
/// Rows times chunks that a bucket may have, unless the row's own limits say otherwise.
const MOST_PIECES: u32 = 2048;

/// How the decode attention of a bucket divides the keys of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySplit {
    /// A row of no more keys before its own has one chunk. A multiple of 32.
    pub chunk_keys: u32,
    /// Chunks of a row, at most. They grow where the keys of a row are more than these hold.
    pub chunks: u32,
}

/// [`KeySplit::chunks`] of a bucket, at most; no more in a larger bucket.
fn most_chunks(rows: u32) -> u32 {
    (MOST_PIECES / rows.max(1)).clamp(LEAST_CHUNKS, MOST_CHUNKS)
}

impl KeySplit {
    /// The more rows there are, the longer their chunks: together they keep a GPU busy, and a chunk has costs of its own.
    pub fn new(rows: u32, max_context: u32) -> Self {
        let most_keys = if rows < MANY_ROWS { 4096 } else { 2048 };
        let chunk_keys = rows.saturating_mul(128).clamp(LEAST_KEYS, most_keys);
        let needed = max_context.saturating_sub(1).div_ceil(chunk_keys);
        Self {
            chunk_keys,
            chunks: needed.clamp(1, most_chunks(rows)),
        }
    }

    /// Rows times chunks of any step with up to `slots` decode rows, whatever its bucket; 0 where no row has two chunks.
    pub fn most_pieces(slots: u32, max_context: u32) -> u32 {
        if max_context <= LEAST_KEYS + 1 {
            return 0;
        }
        let few = slots.saturating_mul(MOST_CHUNKS).min(MOST_PIECES);
        few.max(slots.saturating_mul(LEAST_CHUNKS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For every bucket that a step of `rows` rows may have.
    #[test]
    fn no_bucket_has_more_pieces_than_there_is_room_for() {
        for slots in [1, 2, 7, 31, 32, 33, 63, 64, 65, 200, 255, 256, 257, 1024] {
            for max_context in [1, 2, 256, 257, 258, 2049, 4097, 4098, 20_000, 128_000] {
                let room = KeySplit::most_pieces(slots, max_context);
                for bucket in 1..=1100 {
                    let split = KeySplit::new(bucket, max_context);
                    let pieces = bucket.min(slots) * split.chunks;
                    assert!(
                        split.chunks == 1 || pieces <= room,
                        "{bucket} of {slots}, contexts of {max_context}: {pieces} pieces, room for {room}"
                    );
                    assert_eq!(split.chunk_keys % 32, 0);
                }
            }
        }
    }

    #[test]
    fn short_contexts_are_not_cut() {
        assert_eq!(KeySplit::new(1, 257).chunks, 1);
        assert_eq!(KeySplit::new(1, 258).chunks, 2);
        assert_eq!(KeySplit::new(32, 4097).chunks, 1);
        assert_eq!(KeySplit::new(1, 128_000).chunks, 32);
        assert_eq!(KeySplit::most_pieces(256, 257), 0);
    }
}
