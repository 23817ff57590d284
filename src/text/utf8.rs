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

/// Text that has become certain: characters, each with the token, counted from 0, that its last byte came with.
#[derive(Debug, Clone, Default)]
pub struct Chunk(Vec<(char, usize)>);

impl Chunk {
    pub fn push(&mut self, c: char, origin: usize) {
        self.0.push((c, origin));
    }

    /// `origins`: one for each byte, or the one of them all last.
    pub fn push_text(&mut self, text: &str, origins: &[usize]) {
        let Some(&last) = origins.last() else {
            return;
        };
        let each = origins.len() == text.len();
        let mut end = 0;
        for c in text.chars() {
            end += c.len_utf8();
            self.push(c, if each { origins[end - 1] } else { last });
        }
    }

    pub fn append(&mut self, mut other: Self) {
        self.0.append(&mut other.0);
    }

    pub fn characters(&self) -> impl Iterator<Item = (char, usize)> + '_ {
        self.0.iter().copied()
    }

    pub fn clear(&mut self) {
        self.0.clear();
    }
}

/// Bytes to text: holds back a character that may still become whole, writes U+FFFD for what cannot
/// (one for each maximal part, as [`String::from_utf8_lossy`] does).
#[derive(Debug, Clone, Default)]
pub struct Utf8 {
    pending: Vec<u8>,
    /// The origin of the last pending byte.
    origin: usize,
}

impl Utf8 {
    pub fn push(&mut self, bytes: &[u8], origin: usize, out: &mut Chunk) {
        let old = self.pending.len();
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        while done < self.pending.len() {
            let rest = &self.pending[done..];
            let (valid, broken) = match std::str::from_utf8(rest) {
                Ok(text) => (text.len(), Some(0)),
                Err(error) => (error.valid_up_to(), error.error_len()),
            };
            out.push_text(&String::from_utf8_lossy(&rest[..valid]), &[origin]);
            done += valid;
            match broken {
                // What is left may still become a character.
                None => break,
                Some(0) => {}
                Some(length) => {
                    done += length;
                    // Bytes from before alone are what is broken, or ones of these too.
                    let last = if done <= old { self.origin } else { origin };
                    out.push('\u{fffd}', last);
                }
            }
        }
        self.pending.drain(..done);
        if !bytes.is_empty() {
            self.origin = origin;
        }
    }

    pub fn finish(&mut self, out: &mut Chunk) {
        if !self.pending.is_empty() {
            out.push('\u{fffd}', self.origin);
            self.pending.clear();
        }
    }
}
