//! Input that may be compressed: gzip and Zstandard are told by their first bytes and read as the text that is in them.

use flate2::bufread::GzDecoder;
use std::io::{BufRead, BufReader, Cursor, Error, Read, Result};
use std::ops::RangeInclusive;

/// The text of a file or stream, which is looked at when it is first read, since a stream may have its first bytes late.
pub struct Unpacked {
    from: From,
    /// Bytes and line ends of text so far.
    bytes: u64,
    lines: u64,
}

enum From {
    Unread(Box<dyn Read + Send>),
    Plain(Box<dyn Read + Send>),
    Packed {
        what: &'static str,
        text: Box<dyn Read + Send>,
    },
}

type Magic = [RangeInclusive<u8>];

const GZIP: &Magic = &[0x1f..=0x1f, 0x8b..=0x8b];
const ZSTANDARD: &Magic = &[0x28..=0x28, 0xb5..=0xb5, 0x2f..=0x2f, 0xfd..=0xfd];
/// A frame of other data, which Zstandard's readers skip.
const SKIPPABLE: &Magic = &[0x50..=0x5f, 0x2a..=0x2a, 0x4d..=0x4d, 0x18..=0x18];

/// Whether `first`, as far as it goes, is how `magic` begins.
fn may_be(first: &[u8], magic: &Magic) -> bool {
    first
        .iter()
        .zip(magic)
        .all(|(byte, range)| range.contains(byte))
}

fn is(first: &[u8], magic: &Magic) -> bool {
    first.len() >= magic.len() && may_be(first, magic)
}

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

    fn text(&mut self) -> Result<&mut (dyn Read + Send)> {
        if let From::Unread(unread) = &mut self.from {
            let mut unread = std::mem::replace(unread, Box::new(std::io::empty()));
            let mut first = Vec::new();
            // As few bytes as tell: whoever types rows is not kept waiting for more.
            while first.len() < ZSTANDARD.len()
                && [GZIP, ZSTANDARD, SKIPPABLE]
                    .iter()
                    .any(|magic| may_be(&first, magic))
            {
                if unread.by_ref().take(1).read_to_end(&mut first)? == 0 {
                    break;
                }
            }
            let whole = Cursor::new(first.clone()).chain(unread);
            self.from = opened(&first, whole)?;
        }
        Ok(match &mut self.from {
            From::Unread(text) | From::Plain(text) | From::Packed { text, .. } => &mut **text,
        })
    }

    /// What is said of data that cannot be unpacked.
    fn damaged(&self, what: &str, error: &Error) -> Error {
        let (bytes, lines) = (self.bytes, self.lines);
        Error::new(
            error.kind(),
            format!(
                "found {what} data that is cut off or damaged after {lines} whole lines of text ({bytes} bytes): {error}; expected all of it: copy or make the file again"
            ),
        )
    }
}

fn opened(first: &[u8], whole: impl Read + Send + 'static) -> Result<From> {
    let packed = |what, text| Ok(From::Packed { what, text });
    if is(first, GZIP) {
        let text = Members(Some(GzDecoder::new(BufReader::new(whole))));
        return packed("gzip-compressed", Box::new(text));
    }
    if is(first, ZSTANDARD) || is(first, SKIPPABLE) {
        let mut text = zstd::Decoder::new(whole)?;
        text.window_log_max(WINDOW_LOG)?;
        return packed("zstd-compressed", Box::new(text));
    }
    Ok(From::Plain(Box::new(whole)))
}

/// Members of gzip one after the other. Zeros behind one are padding, as tapes and some file systems leave it.
struct Members<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Members<R> {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        while let Some(member) = &mut self.0 {
            let read = member.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            self.0 = match skip_zeros(member.get_mut())? {
                true => self
                    .0
                    .take()
                    .map(|member| GzDecoder::new(member.into_inner())),
                false => None,
            };
        }
        Ok(0)
    }
}

/// Whether anything comes behind them.
fn skip_zeros(from: &mut impl BufRead) -> Result<bool> {
    loop {
        let bytes = from.fill_buf()?;
        let (all, zeros) = (
            bytes.len(),
            bytes.iter().take_while(|&&byte| byte == 0).count(),
        );
        from.consume(zeros);
        if zeros < all || all == 0 {
            return Ok(all > 0);
        }
    }
}

impl Read for Unpacked {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        let read = self.text()?.read(buffer);
        match (read, &self.from) {
            (Ok(bytes), _) => {
                self.bytes += bytes as u64;
                let ends = buffer[..bytes].iter().filter(|&&byte| byte == b'\n');
                self.lines += ends.count() as u64;
                Ok(bytes)
            }
            (Err(error), From::Packed { what, .. }) => Err(self.damaged(what, &error)),
            (Err(error), _) => Err(error),
        }
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
        let whole: Vec<u8> = (0..20_000u32)
            .flat_map(|i| format!("line {}\n", i * i).into_bytes())
            .collect();
        for begin in [
            &b""[..],
            b"\n",
            b"a",
            b"\x1f",
            b"\x28\xb5",
            b"P*M",
            b"P*M row",
            &whole,
        ] {
            assert_eq!(text(begin.to_vec()).unwrap(), begin);
            for bytes in packed(begin) {
                assert_eq!(text(bytes.clone()).unwrap(), begin);
                // Members and frames one after the other are one text.
                let twice = [bytes.clone(), bytes].concat();
                assert_eq!(text(twice).unwrap(), [begin, begin].concat());
            }
        }
    }

    #[test]
    fn frames_to_be_skipped_and_padding_are_no_text() {
        let [gzip, zstd] = packed(b"text\n");
        for first in 0x50..=0x5f {
            let skipped = [&[first, 0x2a, 0x4d, 0x18, 3, 0, 0, 0], &b"abc"[..]].concat();
            let all = [&skipped, &zstd, &skipped, &zstd, &skipped]
                .map(Vec::as_slice)
                .concat();
            assert_eq!(text(all).unwrap(), b"text\ntext\n");
            assert_eq!(text(skipped.clone()).unwrap(), b"");
            assert!(text(skipped[..9].to_vec()).is_err());
        }
        for zeros in [1, 511, 100_000] {
            let padded = [&gzip[..], &vec![0; zeros]].concat();
            assert_eq!(text(padded.clone()).unwrap(), b"text\n");
            assert_eq!(
                text([&padded[..], &padded].concat()).unwrap(),
                b"text\ntext\n"
            );
            let error = text([&padded[..], b"x"].concat()).unwrap_err().to_string();
            assert!(error.contains("after 1 whole lines"), "{error}");
        }
        assert!(text([&gzip[..], b"garbage"].concat()).is_err());
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
            let middle = flipped.len() / 2;
            flipped[middle] ^= 0x10;
            assert!(text(flipped).is_err());
        }
    }

    #[test]
    fn rows_are_lines_that_are_not_blank() {
        for (text, rows) in [
            ("", 0),
            ("\n \r\n", 0),
            ("a", 1),
            ("a\n\n b\r\n\t\n", 2),
            ("a\nb\nc", 3),
        ] {
            assert_eq!(count_rows(text.as_bytes()).unwrap(), rows, "{text:?}");
        }
    }
}
