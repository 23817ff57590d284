//! A checkpoint's small JSON files, of sizes that a checkpoint has.

use serde_json::{Map, Value};
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use crate::json;
use crate::magic;
use crate::quote;
use crate::{Error, Result};

pub const TOKENIZER: &str = "tokenizer.json";
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub const CONFIG: &str = "config.json";

/// Bytes of tokenizer.json, at most: the largest published ones have some 35 MB.
pub const MAX_TOKENIZER_BYTES: u64 = 128 << 20;
/// Bytes of a file of settings: published ones have up to some 2 MB, most of it added tokens.
const MAX_SETTINGS_BYTES: u64 = 16 << 20;
const READABLE: &str = "a file that can be read";

/// The text of a file of at most `max_bytes`; `None` where there is no such file.
///
/// # Errors
/// It cannot be read, is too long or is not UTF-8.
pub fn read(path: &Path, max_bytes: u64) -> Result<Option<String>> {
    // Asked first: opening a pipe would wait for a writer that never comes.
    match path.metadata() {
        Ok(found) if found.is_file() => {}
        Ok(_) => {
            return Err(Error::file(
                path,
                "found a folder, a pipe or a device, expected a file",
            ));
        }
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(Error::open(path, &error, READABLE)),
    }
    let file = File::open(path).map_err(|error| Error::open(path, &error, READABLE))?;
    let mut bytes = Vec::new();
    file.take(max_bytes + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io(path, error))?;
    if bytes.len() as u64 > max_bytes {
        return Err(Error::file(
            path,
            format!("found more than {max_bytes} bytes, expected at most that"),
        ));
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| Error::file(path, "found bytes that are no UTF-8, expected text"))
}

/// What an error says of `text`, which should be JSON and is recognised as something else.
pub fn mistaken(text: &str, expected: &str) -> Option<String> {
    let found = magic::recognise(text.as_bytes())?;
    Some(format!("found {found}, expected {expected}"))
}

/// There is no such file; nor is there where a file stands in place of its folder.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The object in a file of settings; `None` where there is no such file. Numbers that are not finite, which Python
/// writes, are as [`crate::json`] reads them.
///
/// # Errors
/// As [`read`], and where it holds anything else.
pub fn object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let Some(text) = read(path, MAX_SETTINGS_BYTES)? else {
        return Ok(None);
    };
    match crate::json::from_slice(text.as_bytes()) {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(other) => Err(Error::file(
            path,
            format!("found {}, expected an object", json::shown(&other)),
        )),
        Err(error) => {
            let broken = || {
                let why = quote::message(error);
                format!("found broken JSON ({why}), expected an object")
            };
            let message = mistaken(&text, "an object").unwrap_or_else(broken);
            Err(Error::file(path, message))
        }
    }
}
