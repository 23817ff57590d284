//! A folder of things that have an id: what is said of each is in ID.json, and its content, where it is a file, in ID.jsonl.

use super::refusal::Refusal;
use crate::error::Error;
use crate::files::{Out, Unfinished};
use crate::io::partial::now;
use axum::http::StatusCode;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone)]
pub struct Folder(pub PathBuf);

impl Folder {
    /// An id of `kind` that no other has.
    pub fn id(&self, kind: &str) -> String {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let id = format!(
                "{kind}{:08x}{:04x}{number:04x}",
                now(),
                std::process::id() & 0xffff
            );
            if !self.about(&id).exists() {
                return id;
            }
        }
    }

    pub fn about(&self, id: &str) -> PathBuf {
        self.0.join(format!("{id}.json"))
    }

    pub fn content(&self, id: &str) -> PathBuf {
        self.0.join(format!("{id}.jsonl"))
    }

    /// What is said of `id`, which begins with `kind`.
    pub fn read(&self, kind: &str, id: &str) -> Result<Value, Refusal> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let is_id = id.starts_with(kind) && id.chars().all(is_name);
        let found = is_id.then(|| std::fs::read(self.about(id)).ok());
        let about = found
            .flatten()
            .and_then(|text| serde_json::from_slice(&text).ok());
        about.ok_or_else(|| Refusal::not_found(id))
    }

    pub fn write(&self, about: &Value) -> Result<(), Error> {
        let id = about["id"].as_str().unwrap_or_default();
        let out = Out::open(&self.about(id), Unfinished::Removed)?;
        out.finish_with(format!("{about}\n").as_bytes())
    }

    /// Says of FILE.jsonl, which is there, what it is.
    pub fn add_file(&self, id: &str, name: &str, purpose: &str) -> Result<Value, Error> {
        let path = self.content(id);
        let bytes = path
            .metadata()
            .map_err(|error| Error::io(&path, error))?
            .len();
        let about = json!({
            "id": id,
            "object": "file",
            "bytes": bytes,
            "created_at": now(),
            "filename": name,
            "purpose": purpose,
            "status": "processed",
        });
        self.write(&about)?;
        Ok(about)
    }

    /// All of `kind`, the newest first.
    pub fn all(&self, kind: &str) -> Vec<Value> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let ids = names.filter_map(|name| Some(name.strip_suffix(".json")?.to_owned()));
        let mut all: Vec<Value> = ids.filter_map(|id| self.read(kind, &id).ok()).collect();
        // An id begins with its time.
        all.sort_by_key(|about| std::cmp::Reverse(about["id"].as_str().map(str::to_owned)));
        all
    }

    pub fn list(&self, kind: &str) -> Value {
        json!({"object": "list", "has_more": false, "data": self.all(kind)})
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let message = error.to_string();
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "folder", message)
    }
}

pub fn remove(path: &Path) -> Result<(), Error> {
    std::fs::remove_file(path).map_err(|error| Error::io(path, error))
}
