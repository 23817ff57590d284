//! Bytes of byte-level tokens, and bytes that arrive in pieces as text.

use std::sync::LazyLock;

/// The byte a character of GPT-2's alphabet stands for: printable Latin-1 is itself, the other bytes follow
/// from U+0100 in order.
pub fn alphabet_byte(c: char) -> Option<u8> {
    static OTHERS: LazyLock<Vec<u8>> =
        LazyLock::new(|| (0..=255).filter(|&b| !is_printable(b)).collect());
    match u32::from(c) {
        code @ 0..=255 => Some(code as u8).filter(|&b| is_printable(b)),
        code => OTHERS.get(code as usize - 256).copied(),
    }
}

fn is_printable(byte: u8) -> bool {
    matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff)
}

/// Bytes to text: holds back a character that may still become whole, writes U+FFFD for what cannot
/// (one for each maximal part, as [`String::from_utf8_lossy`] does).
#[derive(Debug, Clone, Default)]
pub struct Utf8 {
    pending: Vec<u8>,
}

impl Utf8 {
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        loop {
            match std::str::from_utf8(rest) {
                Ok(text) => {
                    out.push_str(text);
                    rest = &[];
                    break;
                }
                Err(error) => {
                    let (valid, bad) = rest.split_at(error.valid_up_to());
                    out.push_str(&String::from_utf8_lossy(valid));
                    let Some(length) = error.error_len() else {
                        rest = bad;
                        break;
                    };
                    out.push('\u{fffd}');
                    rest = &bad[length..];
                }
            }
        }
        let done = self.pending.len() - rest.len();
        self.pending.drain(..done);
    }

    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            out.push('\u{fffd}');
            self.pending.clear();
        }
    }
}
