//! What a model is, by its contents: hashes of everything that decides its answers, under the names of the files. A copy
//! in another folder is the same model; a file that was replaced in place is another.

use super::checkpoint;
use super::files::{self, MORE_TEMPLATES, SMALL_FILES};
use super::random;
use super::source::ModelSource;
use crate::error::{Error, Result};
use sha2::{Digest, Sha256};
use std::collections::HashSet;
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A file of weights is hashed in part: its header, and so many pieces of `PLACE_BYTES` from its start to its end.
const PLACES: u64 = 16;
const PLACE_BYTES: u64 = 64 << 10;

/// SHA-256 in hex of `parts` in a row.
pub fn of_parts(parts: impl Iterator<Item = impl AsRef<[u8]>>) -> String {
    hex(&parts.fold(Sha256::new(), Sha256::chain_update).finalize())
}

/// SHA-256 in hex of a small file.
///
/// # Errors
/// It cannot be read.
pub fn of_file(path: &Path) -> Result<String> {
    let bytes = files::read(path, "a file of a model")?;
    Ok(hex(&Sha256::digest(bytes)))
}

/// Where the files of `source` are or would be. Of a folder that cannot be read, those that are known by name: loading it
/// says what is wrong.
pub fn files(source: &ModelSource) -> Vec<PathBuf> {
    let dir = match source {
        ModelSource::Dir(dir) => dir,
        ModelSource::Random { preset, .. } if random::is_named_preset(preset) => return vec![],
        ModelSource::Random { preset, .. } => return vec![preset.into()],
    };
    let more = more_templates(dir).unwrap_or_default();
    let small = SMALL_FILES.into_iter().chain([checkpoint::SINGLE_FILE]);
    let small = small.map(str::to_owned).chain(more);
    let weights = checkpoint::weight_files(dir).unwrap_or_default();
    small.map(|name| dir.join(name)).chain(weights).collect()
}

/// Names and hashes (SHA-256 in hex) of what `source` is made of.
///
/// # Errors
/// A file cannot be read.
pub fn fingerprint(source: &ModelSource) -> Result<Vec<(String, String)>> {
    let dir = match source {
        ModelSource::Dir(dir) => dir,
        ModelSource::Random { seed, .. } => {
            let (config, _) = source.config()?;
            let config = Sha256::digest(config.to_json().to_string());
            let seed = Sha256::digest(seed.to_string());
            return Ok(vec![
                ("config of the random model".to_owned(), hex(&config)),
                (
                    "weights (the seed of the random model)".to_owned(),
                    hex(&seed),
                ),
            ]);
        }
    };
    let mut parts = Vec::new();
    let names = SMALL_FILES.iter().map(|&name| name.to_owned());
    for name in names.chain(more_templates(dir)?) {
        let path = dir.join(&name);
        if files::is_there(&path) {
            parts.push((name, of_file(&path)?));
        }
    }
    let mut hashed = HashSet::new();
    for path in checkpoint::weight_files(dir)? {
        let name = path.strip_prefix(dir).unwrap_or(&path);
        let file = files::open(&path, "a safetensors file")?;
        let about = file.metadata().map_err(|error| Error::io(&path, error))?;
        // Links may give one file many names.
        if hashed.insert((about.dev(), about.ino())) {
            let hash = of_weights(&file).map_err(|error| Error::io(&path, error))?;
            parts.push((format!("weights {}", name.display()), hash));
        }
    }
    Ok(parts)
}

/// Templates with names, in the order of these.
fn more_templates(dir: &Path) -> Result<Vec<String>> {
    let folder = dir.join(MORE_TEMPLATES);
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            return Ok(vec![]);
        }
        Err(error) => return Err(Error::io(folder, error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let name = entry
            .map_err(|error| Error::io(&folder, error))?
            .file_name();
        if Path::new(&name)
            .extension()
            .is_some_and(|ending| ending == "jinja")
        {
            names.push(format!("{MORE_TEMPLATES}/{}", name.to_string_lossy()));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Length, header and samples of a safetensors file. A header is as long as its first eight bytes say, and no longer than
/// the format allows.
fn of_weights(file: &File) -> std::io::Result<String> {
    const LARGEST_HEADER: u64 = 100_000_000;
    let total = file.metadata()?.len();
    let mut hash = Sha256::new();
    hash.update(total.to_le_bytes());
    let mut length = [0; 8];
    if total >= 8 {
        file.read_exact_at(&mut length, 0)?;
    }
    let header = u64::from_le_bytes(length)
        .saturating_add(8)
        .min(LARGEST_HEADER)
        .min(total);
    let last = total.saturating_sub(PLACE_BYTES);
    let samples = (0..PLACES).map(|place| {
        let start = (u128::from(last) * u128::from(place) / u128::from(PLACES - 1)) as u64;
        (start, PLACE_BYTES.min(total))
    });
    let mut bytes = Vec::new();
    for (start, length) in std::iter::once((0, header)).chain(samples) {
        bytes.resize(length as usize, 0);
        file.read_exact_at(&mut bytes, start)?;
        hash.update(&bytes);
    }
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(folder: &Path, seed: u64) -> ModelSource {
        let source = ModelSource::parse(&format!("random:tiny@{seed}")).unwrap();
        super::super::synth::write(&source, folder, 1 << 20, &mut |_| {}).unwrap();
        ModelSource::Dir(folder.to_owned())
    }

    fn differing(a: &[(String, String)], b: &[(String, String)]) -> Vec<String> {
        let differing = a.iter().filter(|part| !b.contains(part));
        differing.map(|(name, _)| name.clone()).collect()
    }

    #[test]
    fn a_copy_is_the_same_and_a_change_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let (first, copy) = (dir.path().join("first"), dir.path().join("another name"));
        let first = fingerprint(&made(&first, 3)).unwrap();
        let copied = made(&copy, 3);
        assert_eq!(fingerprint(&copied).unwrap(), first);
        let weights = first
            .iter()
            .filter(|(name, _)| name.starts_with("weights "));
        assert!(weights.count() > 1);

        let template = copy.join("chat_template.jinja");
        std::fs::write(&template, "{{ messages }}").unwrap();
        let changed = fingerprint(&copied).unwrap();
        assert_eq!(differing(&changed, &first), ["chat_template.jinja"]);
        std::fs::remove_file(&template).unwrap();

        // The last byte of the last tensor of a shard.
        let shard = std::fs::read_dir(&copy)
            .unwrap()
            .map(|entry| entry.unwrap());
        let shard = shard.map(|entry| entry.path());
        let shard = shard.filter(|path| path.extension().is_some_and(|e| e == "safetensors"));
        let shard = shard.min().unwrap();
        let mut bytes = std::fs::read(&shard).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&shard, bytes).unwrap();
        let name = format!("weights {}", shard.file_name().unwrap().to_str().unwrap());
        assert_eq!(differing(&fingerprint(&copied).unwrap(), &first), [name]);
    }

    #[test]
    fn random_models_differ_by_seed() {
        let of = |text: &str| fingerprint(&ModelSource::parse(text).unwrap()).unwrap();
        assert_eq!(of("random:tiny"), of("random:tiny@0"));
        let differing = differing(&of("random:tiny@1"), &of("random:tiny"));
        assert_eq!(differing, ["weights (the seed of the random model)"]);
    }
}
