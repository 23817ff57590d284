//! Names of models on the hub, and where this machine keeps them.

use crate::error::{Error, Result};
use crate::quote;
use hf_hub::{Cache, Repo, RepoType};
use std::path::{Path, PathBuf};

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
        self.at(&self.revision)
    }

    pub(super) fn at(&self, revision: &str) -> Repo {
        Repo::with_revision(self.id.clone(), RepoType::Model, revision.to_owned())
    }

    pub(super) fn error(&self, message: impl AsRef<str>) -> Error {
        let name = match &*self.revision {
            MAIN => self.id.clone(),
            revision => format!("{}@{revision}", self.id),
        };
        Error::file(name, message.as_ref())
    }
}

/// As git has it.
pub(super) fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// What the environment says of the hub, under the names that its Python library reads.
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
        let path = |name: &str| set(name).map(PathBuf::from);
        let home = || {
            let caches = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")));
            path("HF_HOME").or_else(|| Some(caches?.join("huggingface")))
        };
        let Some(cache) = path("HF_HUB_CACHE").or_else(|| Some(home()?.join("hub"))) else {
            return Err(Error::Usage(
                "found neither HF_HOME nor HOME in the environment, expected one of them for models of the hub".to_owned(),
            ));
        };
        // As `hf auth login` leaves it.
        let token = || Cache::new(home()?.join("hub")).token();
        let token = set("HF_TOKEN").or_else(token);
        let endpoint = set("HF_ENDPOINT").unwrap_or("https://huggingface.co".to_owned());
        let offline = set("HF_HUB_OFFLINE").map(|value| value.to_ascii_lowercase());
        Ok(Self {
            cache: Cache::new(cache),
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.map(|token| token.trim().to_owned()),
            offline: offline.is_some_and(|value| ["1", "on", "yes", "true"].contains(&&*value)),
        })
    }
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
