//! What a file is by its first bytes, where it is not what was asked for: so that an error can say so, and what to do.

/// What `bytes`, the beginning of a file, belong to, and what helps; `None` where nothing is recognised. Safetensors
/// files and JSON are not among what is recognised: they are what is looked for.
pub fn recognise(bytes: &[u8]) -> Option<&'static str> {
    const BY_FIRST_BYTES: [(&[u8], &str); 14] = [
        (
            b"version https://git-lfs.github.com/spec/",
            "a git-lfs pointer, which stands for the file itself (git lfs pull fetches it)",
        ),
        (
            b"GGUF",
            "a GGUF file, which is not supported (take the published safetensors checkpoint)",
        ),
        (b"\x1f\x8b", "gzip-compressed data (gunzip it first)"),
        (b"\x28\xb5\x2f\xfd", ZSTANDARD),
        (b"BZh", "bzip2-compressed data (bunzip2 it first)"),
        (b"\xfd7zXZ\0", "xz-compressed data (unxz it first)"),
        (
            b"PK\x03\x04",
            "a zip archive, as pickled checkpoints and .npz files are (unpack or convert it first)",
        ),
        (b"PAR1", "a Parquet file (convert it first)"),
        (b"ARROW1", "an Arrow file (convert it first)"),
        (b"\x89HDF", "an HDF5 file (convert it first)"),
        (b"\x93NUMPY", "a .npy file"),
        (b"\xff\xfe\0\0", "UTF-32 text (convert it to UTF-8 first)"),
        (b"\xff\xfe", UTF_16),
        (b"\xfe\xff", UTF_16),
    ];
    // Its first bytes are a length, which may be like anything.
    if let [_, _, _, _, 0, 0, 0, 0, b'{', ..] = bytes {
        return None;
    }
    let known = BY_FIRST_BYTES
        .iter()
        .find(|(first, _)| bytes.starts_with(first));
    if let Some((_, what)) = known {
        return Some(what);
    }
    match bytes {
        _ if is_utf_16(bytes) => Some(UTF_16),
        // A frame to be skipped, with which Zstandard may begin too.
        [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(ZSTANDARD),
        [0x80, 2..=5, ..] => Some("a Python pickle, which is not read (convert it to safetensors)"),
        _ if is_html(bytes) => {
            Some("an HTML page, perhaps an error of the download (download the file again)")
        }
        _ => None,
    }
}

const ZSTANDARD: &str = "zstd-compressed data (unzstd it first)";
const UTF_16: &str = "UTF-16 text (convert it to UTF-8 first: iconv -f UTF-16 -t UTF-8)";

/// Whether text without a byte order mark is UTF-16: every other byte of ASCII is 0.
fn is_utf_16(bytes: &[u8]) -> bool {
    let begin = &bytes[..bytes.len().min(8)];
    let zeros = |at: usize| begin.iter().skip(at).step_by(2).all(|&b| b == 0);
    let ascii = |at: usize| {
        begin
            .iter()
            .skip(at)
            .step_by(2)
            .all(|b| matches!(b, b' '..=b'~' | b'\n' | b'\r' | b'\t'))
    };
    begin.len() >= 4 && ((zeros(1) && ascii(0)) || (zeros(0) && ascii(1)))
}

fn is_html(bytes: &[u8]) -> bool {
    let text = bytes.trim_ascii_start();
    [&b"<!doctype html"[..], b"<html"].iter().any(|start| {
        text.get(..start.len())
            .is_some_and(|begins| begins.eq_ignore_ascii_case(start))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_pass_by_mistake_is_recognised() {
        for (bytes, what) in [
            (&b"GGUF\x03\0\0\0"[..], "GGUF"),
            (b"version https://git-lfs.github.com/spec/v1\n", "git-lfs"),
            (b"\xff\xfe{\0\"\0", "UTF-16"),
            (b"{\0\"\0a\0", "UTF-16"),
            (b"\0{\0\"\0a", "UTF-16"),
            (b"\n<!DOCTYPE HTML><html>", "HTML"),
            (b"\x80\x02}q\0", "pickle"),
            (b"\x28\xb5\x2f\xfd\0", "zstd"),
            (b"\x5e\x2a\x4d\x18\0\0\0\0", "zstd"),
        ] {
            let found = recognise(bytes).unwrap_or_else(|| panic!("{bytes:?}"));
            assert!(found.contains(what), "{bytes:?}: {found}");
        }
    }

    #[test]
    fn what_is_looked_for_is_nothing_else() {
        for bytes in [
            &b"{\"a\":1}"[..],
            b"",
            b"[",
            b"  {",
            b"\x80\x01\0\0\0\0\0\0{\"__metadata__\":{}",
            b"\x1f\x8b\0\0\0\0\0\0{\"a\":",
            b"id,prompt\n",
        ] {
            assert_eq!(recognise(bytes), None, "{bytes:?}");
        }
    }
}
