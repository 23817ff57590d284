//! Names of models on the hub, and where this machine keeps them.

use crate::error::{Error, Result};
use crate::quote;
use hf_hub::{Cache, Repo, RepoType};
use std::path::Path;

/// The revision where none is named.
const MAIN: &str = "main";

/// `org/name[@revision]`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    id: String,
    revision: String,
}

impl Name {
    /// Nothing where the text is no such name.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, revision) = text.split_once('@').unwrap_or((text, MAIN));
        let (owner, name) = id.split_once('/')?;
        let plain = |part: &str| {
            let known = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
            !part.is_empty() && !part.starts_with('.') && part.bytes().all(known)
        };
        // A branch may be refs/pr/1.
        (plain(owner) && plain(name) && revision.split('/').all(plain)).then(|| Self {
            id: id.to_owned(),
            revision: revision.to_owned(),
        })
    }

    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// Whether the revision says which files these are for ever.
    pub fn is_commit(&self) -> bool {
        is_commit(&self.revision)
    }

    pub(super) fn repo(&self) -> Repo {
        Repo::with_revision(self.id.clone(), RepoType::Model, self.revision.clone())
    }

    pub(super) fn error(&self, message: impl AsRef<str>) -> Error {
        let name = match &*self.revision {
            MAIN => self.id.clone(),
            revision => format!("{}@{revision}", self.id),
        };
        Error::file(name, message.as_ref())
    }
}

/// Whether `text` is a whole commit id of git.
pub(super) fn is_commit(text: &str) -> bool {
    let hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 40 && text.bytes().all(hex)
}

/// What the environment says of the hub: names, their order and what counts as true are those of `huggingface_hub`.
pub(super) struct Place {
    pub cache: Cache,
    pub endpoint: String,
    pub token: Option<String>,
    /// Nothing is asked of the hub.
    pub offline: bool,
}

impl Place {
    /// # Errors
    /// There is no home for a cache.
    pub fn of_this_machine() -> Result<Self> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let is_true = |value: Option<String>| {
            let value = value.map(|value| value.to_ascii_uppercase());
            value.is_some_and(|value| ["1", "ON", "YES", "TRUE"].contains(&&*value))
        };
        let home = || set("XDG_CACHE_HOME").unwrap_or("~/.cache".to_owned()) + "/huggingface";
        let home = expanded(&set("HF_HOME").unwrap_or_else(home));
        let cache = set("HF_HUB_CACHE").or_else(|| set("HUGGINGFACE_HUB_CACHE"));
        let cache = expanded(&cache.unwrap_or_else(|| format!("{home}/hub")));
        if cache.starts_with('~') {
            return Err(Error::Usage(format!(
                "found {} for the folder of the hub's models, expected HOME to be set, or HF_HUB_CACHE to be a path (~NAME is not looked up)",
                quote::name(&cache)
            )));
        }
        let clean = |token: String| {
            let token = token.replace(['\r', '\n'], "").trim().to_owned();
            (!token.is_empty()).then_some(token)
        };
        // `hf auth login` leaves the token here.
        let path = set("HF_TOKEN_PATH").unwrap_or_else(|| format!("{home}/token"));
        let kept = || std::fs::read_to_string(expanded(&path)).ok();
        let token = set("HF_TOKEN").or_else(|| set("HUGGING_FACE_HUB_TOKEN"));
        let token = token.and_then(clean).or_else(|| clean(kept()?));
        Ok(Self {
            cache: Cache::new(cache.into()),
            endpoint: set("HF_ENDPOINT").unwrap_or("https://huggingface.co".to_owned()),
            token: token.filter(|_| !is_true(set("HF_HUB_DISABLE_IMPLICIT_TOKEN"))),
            offline: is_true(set("HF_HUB_OFFLINE").or_else(|| set("TRANSFORMERS_OFFLINE"))),
        })
    }
}

/// A path with `~` and variables in it, as Python's `expanduser` and `expandvars` take them: the unknown stays as it is.
fn expanded(path: &str) -> String {
    let home = std::env::home_dir().and_then(|home| home.into_os_string().into_string().ok());
    let below = path
        .strip_prefix('~')
        .filter(|rest| rest.is_empty() || rest.starts_with('/'));
    let path = match (below, home.filter(|home| !home.is_empty())) {
        (Some(rest), Some(home)) => home + rest,
        _ => path.to_owned(),
    };
    let mut parts = path.split('$');
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let braced = part.strip_prefix('{').and_then(|part| part.split_once('}'));
        let plain = || part.split_at(part.find(|c| !word(c)).unwrap_or(part.len()));
        let (name, rest) = braced.unwrap_or_else(plain);
        match std::env::var(name) {
            Ok(value) => expanded.extend([&value, rest]),
            Err(_) => expanded.extend(["$", part]),
        }
    }
    expanded
}

/// The name of a model whose folder is a snapshot of the cache: `.../models--org--name/snapshots/COMMIT`.
pub fn name_of_snapshot(folder: &Path) -> Option<String> {
    let snapshots = folder.parent()?;
    let model = snapshots.parent()?.file_name()?.to_str()?;
    let id = model.strip_prefix("models--")?;
    let (_, name) = id.split_once("--")?;
    (snapshots.file_name()? == "snapshots").then(|| quote::text(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_paths() {
        for (text, id, revision) in [
            ("LiquidAI/LFM2-8B-A1B", "LiquidAI/LFM2-8B-A1B", "main"),
            ("a/b@v1.0", "a/b", "v1.0"),
            ("a/b@refs/pr/1", "a/b", "refs/pr/1"),
        ] {
            let name = Name::parse(text).unwrap();
            assert_eq!((&*name.id, name.revision()), (id, revision));
        }
        for text in [
            "a", "./a", "a/b/c", "/a/b", "a/", "a/b@", "a/b@../x", "a/b@/x", "a/b c", "../b",
            "a/.b",
        ] {
            assert_eq!(Name::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_snapshot_has_its_models_name() {
        let of = |path: &str| name_of_snapshot(path.as_ref());
        assert_eq!(
            of("/c/models--a--b--c/snapshots/0f"),
            Some("b--c".to_owned())
        );
        assert_eq!(of("/c/models--a--b/0f"), None);
        assert_eq!(of("/c/other/snapshots/0f"), None);
    }
}
