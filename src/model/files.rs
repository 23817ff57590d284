//! Opening a checkpoint's files. Whoever made them is not trusted: only regular files are opened, so that none waits
//! for a writer that never comes, and small ones are read up to a limit. What is there instead is named.

use crate::error::{Error, Result};
use crate::magic;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// What a checkpoint may have besides its weights.
pub(super) const SMALL_FILES: [&str; 9] = [
    "config.json",
    "generation_config.json",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.json",
    "chat_template.jinja",
];
/// A folder of more of them.
pub(super) const MORE_TEMPLATES: &str = "additional_chat_templates";

/// Far above any file of JSON that is read whole.
const MAX_READ_BYTES: u64 = 256 << 20;

/// Opens the file at `path`, which should be `expected`.
///
/// # Errors
/// There is nothing, a link that leads nowhere, or something else than a file.
pub(super) fn open(path: &Path, expected: &str) -> Result<File> {
    if let Some(link) = dangling_link(path) {
        return Err(Error::file(path, format!("{link}, expected {expected}")));
    }
    let about = std::fs::metadata(path).map_err(|error| Error::open(path, &error, expected))?;
    if !about.is_file() {
        let found = if about.is_dir() {
            "a directory"
        } else {
            "a pipe or a device"
        };
        return Err(Error::file(
            path,
            format!("found {found}, expected {expected}"),
        ));
    }
    File::open(path).map_err(|error| Error::open(path, &error, expected))
}

/// The bytes of a small file.
///
/// # Errors
/// See [`open`]; or it is larger than any such file is.
pub(super) fn read(path: &Path, expected: &str) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let file = open(path, expected)?;
    let read = file.take(MAX_READ_BYTES + 1).read_to_end(&mut text);
    read.map_err(|error| Error::io(path, error))?;
    if text.len() as u64 > MAX_READ_BYTES {
        return Err(Error::file(
            path,
            format!("found more than {MAX_READ_BYTES} bytes, expected {expected}"),
        ));
    }
    Ok(text)
}

/// Whether there is anything at `path`, be it a link that leads nowhere: that is to be an error, not an absence.
pub(super) fn is_there(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// What an error says of a link that leads nowhere.
pub(super) fn dangling_link(path: &Path) -> Option<String> {
    let to = std::fs::read_link(path).ok().filter(|_| !path.exists())?;
    Some(format!(
        "found a link to {}, where there is nothing (download it again, or copy folders of links with cp -rL)",
        to.display()
    ))
}

/// Refuses what is recognised as something else than `expected`.
///
/// # Errors
/// The message says what it is and what helps.
pub(super) fn refuse_others(path: &Path, bytes: &[u8], expected: &str) -> Result<()> {
    let found = match magic::recognise(bytes) {
        Some(found) => found,
        None if bytes.trim_ascii().is_empty() => "an empty file (download it again)",
        None => return Ok(()),
    };
    Err(Error::file(
        path,
        format!("found {found}, expected {expected}"),
    ))
}
