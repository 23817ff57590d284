//! A checkpoint's small JSON files, of sizes that a checkpoint has.

use serde_json::{Map, Value};
use std::fs::File;
use std::io::{ErrorKind, Read as _};
use std::path::Path;

use super::one_line;
use crate::{Error, Result};

pub const TOKENIZER: &str = "tokenizer.json";
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
pub const CONFIG: &str = "config.json";

/// Bytes of a file, at most: the largest published tokenizer.json have some 35 MB.
const MAX_BYTES: u64 = 128 << 20;

/// The text of a file; `None` where there is no such file.
///
/// # Errors
/// It cannot be read, is too long or is not UTF-8.
pub fn read(path: &Path) -> Result<Option<String>> {
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
        Err(error) => return Err(Error::io(path, error)),
    }
    let file = File::open(path).map_err(|error| Error::io(path, error))?;
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io(path, error))?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(Error::file(
            path,
            format!("found more than {MAX_BYTES} bytes, expected a checkpoint's small file"),
        ));
    }
    String::from_utf8(bytes)
        .map(Some)
        .map_err(|_| Error::file(path, "found bytes that are no UTF-8, expected text"))
}

/// There is no such file; nor is there where a file stands in place of its folder.
fn is_absent(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory)
}

/// The object in a file; `None` where there is no such file. Python writes `NaN` and `Infinity`, which JSON does not
/// have: they count as null.
///
/// # Errors
/// As [`read`], and where it holds anything else.
pub fn object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    match serde_json::from_str(&text)
        .or_else(|error| serde_json::from_str(&without_constants(&text)).map_err(|_| error))
    {
        Ok(Value::Object(object)) => Ok(Some(object)),
        Ok(other) => Err(Error::file(
            path,
            format!("found {}, expected an object", shown(&other)),
        )),
        Err(error) => Err(Error::file(
            path,
            format!(
                "found broken JSON ({}), expected an object",
                one_line(&error.to_string())
            ),
        )),
    }
}

/// `text` with null in the place of each of Python's constants outside its strings.
fn without_constants(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut quoted = false;
    while let Some(c) = rest.chars().next() {
        let mut taken = c.len_utf8();
        let constant = ["NaN", "-Infinity", "Infinity"]
            .iter()
            .find(|constant| !quoted && rest.starts_with(**constant));
        if let Some(constant) = constant {
            out.push_str("null");
            rest = &rest[constant.len()..];
            continue;
        }
        if c == '"' {
            quoted = !quoted;
        } else if c == '\\' && quoted {
            taken += rest[taken..].chars().next().map_or(0, char::len_utf8);
        }
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    out
}

/// A value on one line, cut where it is long.
pub fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(80) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_python_are_null_outside_strings() {
        let text = r#"{"a": [NaN, -Infinity, Infinity], "NaN \" NaN": "Infinity\\", "b": NaN}"#;
        let json: Value = serde_json::from_str(&without_constants(text)).unwrap();
        let expected =
            serde_json::json!({"a": [null, null, null], "NaN \" NaN": "Infinity\\", "b": null});
        assert_eq!(json, expected);
    }
}
