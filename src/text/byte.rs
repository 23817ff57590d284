//! The tokenizer of random presets, which have no vocabulary of their own: ids 0 to 7 are LFM2's special
//! tokens, byte b is id 8 + b, and every higher id is written `<id>`.

/// The special tokens with ids 0 to 7.
pub const SPECIALS: [&str; 8] = [
    "<|pad|>",
    "<|startoftext|>",
    "<|endoftext|>",
    "<|fim_pre|>",
    "<|fim_mid|>",
    "<|fim_suf|>",
    "<|im_start|>",
    "<|im_end|>",
];

pub const PAD: u32 = 0;
/// The id of `<|startoftext|>`.
pub const BOS: u32 = 1;
/// The id of `<|im_end|>`.
pub const EOS: u32 = 7;

/// The id of byte 0.
const FIRST_BYTE: u32 = SPECIALS.len() as u32;

/// How many ids have a meaning of their own.
pub const VOCABULARY: usize = SPECIALS.len() + 256;

/// The ids of `text`, in which a special token that is written out is a single id; `add_special` puts BOS first.
pub fn encode(text: &str, add_special: bool) -> Vec<u32> {
    let mut ids = Vec::with_capacity(text.len() + 1);
    if add_special {
        ids.push(BOS);
    }
    let mut rest = text;
    while let Some(&byte) = rest.as_bytes().first() {
        // No special is a prefix of another, so at most one matches. Each starts with `<`.
        let special = (byte == b'<')
            .then(|| SPECIALS.iter().position(|s| rest.starts_with(s)))
            .flatten();
        if let Some(id) = special {
            ids.push(id as u32);
            rest = &rest[SPECIALS[id].len()..];
        } else {
            let length = rest.chars().next().map_or(1, char::len_utf8);
            ids.extend(
                rest.as_bytes()[..length]
                    .iter()
                    .map(|&b| FIRST_BYTE + u32::from(b)),
            );
            rest = &rest[length..];
        }
    }
    ids
}

/// The bytes that `id` writes.
pub fn bytes(id: u32) -> Vec<u8> {
    if let Some(special) = SPECIALS.get(id as usize) {
        return special.as_bytes().to_vec();
    }
    match u8::try_from(id - FIRST_BYTE) {
        Ok(byte) => vec![byte],
        Err(_) => format!("<{id}>").into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn specials_are_single_ids_and_bytes_follow_them() {
        assert_eq!(
            encode("<|im_start|>é<", false),
            [6, 8 + 0xc3, 8 + 0xa9, 8 + b'<' as u32]
        );
        assert_eq!(encode("<|im_start|", true).len(), 12);
        assert_eq!(encode("", true), [1]);
    }

    #[test]
    fn every_id_writes_something_of_its_own() {
        assert_eq!(bytes(1), b"<|startoftext|>");
        assert_eq!(bytes(8), [0]);
        assert_eq!(bytes(263), [255]);
        assert_eq!(bytes(264), b"<264>");
        assert_eq!(bytes(u32::MAX), b"<4294967295>");
    }
}
