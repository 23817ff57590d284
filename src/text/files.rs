//! Reading a checkpoint's text files, with bounds on their sizes.

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

/// The most bytes of tokenizer.json: the largest published ones have some 35 MB.
pub const MAX_TOKENIZER_BYTES: u64 = 128 << 20;
/// The most bytes of any other JSON file: published ones have up to some 2 MB, most of it added tokens.
const MAX_SETTINGS_BYTES: u64 = 16 << 20;
const READABLE: &str = "a file that can be read";

/// The text of a file of at most `max_bytes`; `None` where there is no such file.
///
/// # Errors
/// The file cannot be read, is too long or is not UTF-8.
pub fn read(path: &Path, max_bytes: u64) -> Result<Option<String>> {
    // Opening a pipe would wait for a writer that never comes, so what it is is asked first.
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

/// The message about `text`, which should be JSON, if it is recognised as something else.
pub fn mistaken(text: &str, expected: &str) -> Option<String> {
    let found = magic::recognise(text.as_bytes())?;
    Some(format!("found {found}, expected {expected}"))
}

/// Whether the error says that there is no such file. A file in the place of its folder says that too.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The object in a JSON file; `None` where there is no such file. [`crate::json`] reads it, so numbers that are not finite
/// are allowed, as Python writes them.
///
/// # Errors
/// One of the errors of [`read`], or the file holds anything else.
pub fn object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let Some(text) = read(path, MAX_SETTINGS_BYTES)? else {
        return Ok(None);
    };
    match json::from_slice(text.as_bytes()) {
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
