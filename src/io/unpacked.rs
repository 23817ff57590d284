//! Input that may be compressed: gzip and Zstandard are told by their first bytes and read as the text that is in them.

use flate2::bufread::MultiGzDecoder;
use std::io::{BufRead, BufReader, Cursor, Error, Read, Result};

/// The text of a file or stream, which is looked at when it is first read, since a stream may have its first bytes late.
pub struct Unpacked {
    from: From,
    /// Bytes and line ends of text so far.
    bytes: u64,
    lines: u64,
}

enum From {
    Unread(Box<dyn Read + Send>),
    Read {
        packing: Option<&'static str>,
        text: Box<dyn Read + Send>,
    },
}

/// How packed data begins. The last is a frame of other data, which Zstandard's readers skip, by the first of its numbers.
const MAGICS: [(&[u8], &str); 3] = [
    (b"\x1f\x8b", "gzip-compressed"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed"),
    (b"\x50\x2a\x4d\x18", "zstd-compressed"),
];

/// Bytes that a Zstandard frame may look back, as a power of two: what `zstd -d` takes. It is held in memory.
const WINDOW_LOG: u32 = 27;

impl Unpacked {
    pub fn new(from: impl Read + Send + 'static) -> Self {
        Self {
            from: From::Unread(Box::new(from)),
            bytes: 0,
            lines: 0,
        }
    }

    fn open(&mut self) -> Result<()> {
        let From::Unread(unread) = &mut self.from else {
            return Ok(());
        };
        let mut unread = std::mem::replace(unread, Box::new(std::io::empty()));
        let mut first = Vec::new();
        // Reads no more bytes than tell: whoever types rows is not kept waiting for more.
        let packing = loop {
            match MAGICS.iter().find(|(magic, _)| may_be(&first, magic)) {
                Some((magic, packing)) if first.len() == magic.len() => break Some(*packing),
                Some(_) if unread.by_ref().take(1).read_to_end(&mut first)? > 0 => {}
                _ => break None,
            }
        };
        let whole = Cursor::new(first).chain(unread);
        let text: Box<dyn Read + Send> = match packing {
            None => Box::new(whole),
            Some("gzip-compressed") => Box::new(MultiGzDecoder::new(BufReader::new(whole))),
            Some(_) => {
                let mut text = zstd::Decoder::new(whole)?;
                text.window_log_max(WINDOW_LOG)?;
                Box::new(text)
            }
        };
        self.from = From::Read { packing, text };
        Ok(())
    }
}

/// Whether `first`, as far as it goes, is how `magic` begins.
fn may_be(first: &[u8], magic: &[u8]) -> bool {
    let is = |(byte, of_magic): (&u8, &u8)| match byte {
        0x50..=0x5f => *of_magic == 0x50,
        byte => byte == of_magic,
    };
    first.iter().zip(magic).all(is)
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        self.open()?;
        let From::Read { packing, text } = &mut self.from else {
            return Ok(0);
        };
        let bytes = text.read(buffer).map_err(|error| match packing {
            None => error,
            Some(packing) => Error::new(
                error.kind(),
                format!(
                    "found {packing} data that is cut off or damaged after {} whole lines of text ({} bytes): {error}; expected all of it: copy or make the file again",
                    self.lines, self.bytes
                ),
            ),
        })?;
        self.bytes += bytes as u64;
        let ends = buffer[..bytes].iter().filter(|&&byte| byte == b'\n');
        self.lines += ends.count() as u64;
        Ok(bytes)
    }
}

/// How many lines of `text` are rows: those that are not blank.
///
/// # Errors
/// It cannot be read.
pub fn count_rows(text: impl Read) -> Result<u64> {
    let mut text = BufReader::with_capacity(1 << 16, text);
    let (mut rows, mut blank) = (0, true);
    loop {
        let bytes = text.fill_buf()?;
        if bytes.is_empty() {
            return Ok(rows + u64::from(!blank));
        }
        for byte in bytes {
            match byte {
                b'\n' => {
                    rows += u64::from(!blank);
                    blank = true;
                }
                byte => blank &= byte.is_ascii_whitespace(),
            }
        }
        let used = bytes.len();
        text.consume(used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn packed(text: &[u8]) -> [Vec<u8>; 2] {
        let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gzip.write_all(text).unwrap();
        [gzip.finish().unwrap(), zstd::encode_all(text, 1).unwrap()]
    }

    fn text(bytes: Vec<u8>) -> Result<Vec<u8>> {
        let mut text = Vec::new();
        Unpacked::new(Cursor::new(bytes)).read_to_end(&mut text)?;
        Ok(text)
    }

    #[test]
    fn text_comes_out_however_it_is_packed() {
        let whole = "a line of text\n".repeat(20_000);
        for begin in ["", "\n", "a", "\x1f", "(", "P*M", "P*M row", &whole] {
            let begin = begin.as_bytes();
            assert_eq!(text(begin.to_vec()).unwrap(), begin);
            for bytes in packed(begin) {
                assert_eq!(text(bytes.clone()).unwrap(), begin);
                // Members and frames one after the other are one text.
                let twice = [bytes.clone(), bytes].concat();
                assert_eq!(text(twice).unwrap(), [begin, begin].concat());
            }
            let skipped = b"\x57\x2a\x4d\x18\x03\0\0\0abc";
            let [_, zstd] = packed(begin);
            let all = [&skipped[..], &zstd, skipped, &zstd].concat();
            assert_eq!(text(all).unwrap(), [begin, begin].concat());
        }
    }

    #[test]
    fn what_is_cut_off_or_damaged_is_an_error_that_says_how_far_it_went() {
        let whole: Vec<u8> = (0..40_000u64)
            .flat_map(|i| format!("line {}\n", i.wrapping_mul(0x9e37_79b9_7f4a_7c15)).into_bytes())
            .collect();
        for bytes in packed(&whole) {
            for part in 1..8 {
                let cut = bytes[..bytes.len() * part / 8].to_vec();
                let error = text(cut).unwrap_err().to_string();
                assert!(error.contains("whole lines of text ("), "{error}");
                assert!(part < 4 || !error.contains("after 0 "), "{error}");
            }
            // The checksum at the end counts too.
            let mut flipped = bytes.clone();
            flipped[bytes.len() / 2] ^= 0x10;
            assert!(text(flipped).is_err());
            assert!(text([&bytes[..], b"garbage"].concat()).is_err());
        }
    }

    #[test]
    fn rows_are_lines_that_are_not_blank() {
        for (text, rows) in [("\n \r\n", 0), ("a", 1), ("a\n\n b\r\n\t\n", 2)] {
            assert_eq!(count_rows(text.as_bytes()).unwrap(), rows, "{text:?}");
        }
    }
}
