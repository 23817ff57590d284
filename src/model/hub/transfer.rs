//! One file of a model into the cache: blobs/ETAG, to which snapshots/COMMIT/FILE links. Until it is whole it is
//! blobs/ETAG.partial, whose lock is the right to write it.

use super::web::{Failure, TRIES, Tried, Web};
use super::{Download, make_folder_of};
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::files::Claim;
use crate::files::names::beside;
use crate::quote;
use hf_hub::CacheRepo;
use sha1::Sha1;
use sha2::digest::DynDigest;
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::http::HeaderMap;
use ureq::http::StatusCode;

const BUFFER_BYTES: usize = 1 << 18;

/// What the hub says of a file.
struct About {
    /// Its name in the cache: for large files the SHA-256, for small ones git's SHA-1.
    etag: String,
    bytes: u64,
    /// Where it lies.
    url: String,
}

impl About {
    /// What the etag is, where it is a hash, and what computes it.
    fn hash(&self) -> Option<(&'static str, Box<dyn DynDigest>)> {
        let is_hash = self.etag.bytes().all(|b| b.is_ascii_hexdigit());
        match self.etag.len() {
            64 if is_hash => Some(("SHA-256", Box::new(Sha256::new()))),
            40 if is_hash => {
                let git = Sha1::new_with_prefix(format!("blob {}\0", self.bytes));
                Some(("git SHA-1", Box::new(git)))
            }
            _ => None,
        }
    }
}

/// Sees that `file` of `commit` is in the cache.
///
/// # Errors
/// It is not to be had, or the system refused.
pub(super) fn fetch(web: &Web<'_>, repo: &CacheRepo, commit: &str, file: &str) -> Result<()> {
    let link = repo.pointer_path(commit).join(file);
    if link.is_file() {
        return Ok(());
    }
    let about = web.patiently(TRIES, || 0, || about(web, commit, file))?;
    let blob = repo.blob_path(&about.etag);
    make_folder_of(&blob)?;
    make_folder_of(&link)?;
    // Under the name that leads to it without links.
    let folder = blob.parent().unwrap_or(Path::new("/"));
    let folder = folder
        .canonicalize()
        .map_err(|error| Error::io(folder, error))?;
    let blob = folder.join(&about.etag);
    let claim = loop {
        match Claim::try_take(&blob)? {
            Some(claim) => break claim,
            None => web.wait(
                Duration::from_millis(500),
                &format!("waiting for another run that downloads {file}"),
            )?,
        }
    };
    if blob.is_file() {
        // Another file has the same contents, or another process was first.
        claim.remove()?;
    } else {
        fill(web, commit, file, &about, &claim)?;
        claim.install()?;
    }
    let up = "../".repeat(Path::new(file).components().count() + 1);
    let target = PathBuf::from(up).join("blobs").join(about.etag);
    match symlink(target, &link) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Error::io(&link, error)),
        _ => Ok(()),
    }
}

/// Sees that the disk of the cache has room for what is still to come of `files`.
///
/// # Errors
/// It has less, or the hub does not say how large a file is. A file system that gives no sizes has room.
pub(super) fn check_room(
    web: &Web<'_>,
    repo: &CacheRepo,
    commit: &str,
    files: &[String],
) -> Result<()> {
    // Before the parts of files are measured, which another run may be adding to.
    let blob = repo.blob_path("blob");
    make_folder_of(&blob)?;
    let folder = blob.parent().unwrap_or(Path::new("/"));
    let room = rustix::fs::statvfs(folder).map_err(|error| Error::io(folder, error.into()))?;
    let free = room.f_bavail.saturating_mul(room.f_frsize);
    // Files of one hash are one blob.
    let mut missing = BTreeMap::new();
    for file in files {
        if repo.pointer_path(commit).join(file).is_file() {
            continue;
        }
        let about = web.patiently(TRIES, || 0, || about(web, commit, file))?;
        let blob = repo.blob_path(&about.etag);
        if !blob.is_file() {
            let partial = beside(&blob, ".partial").metadata();
            let came = partial.map_or(0, |partial| partial.len());
            missing.insert(blob, about.bytes.saturating_sub(came));
        }
    }
    let needed = missing.into_values().fold(0, u64::saturating_add);
    if room.f_blocks == 0 || needed <= free {
        return Ok(());
    }
    let (free, needed) = (Bytes(free), Bytes(needed));
    Err(Error::file(
        folder,
        format!(
            "found {free} free on its disk, expected {needed} for the model's weights: free some, or set HF_HOME or HF_HUB_CACHE to a folder on a disk that has room"
        ),
    ))
}

fn about(web: &Web<'_>, commit: &str, file: &str) -> Tried<About> {
    let (url, answer) = web.send(true, &web.url(commit, file), None, true)?;
    let headers = answer.headers();
    let text = |name: &str| headers.get(name)?.to_str().ok();
    let wrong = |found: String| Err(web.name.error(format!("{file}: found {found}")).into());
    let etag = text("x-linked-etag").or_else(|| text("etag")).unwrap_or("");
    let etag = etag.trim_start_matches("W/").trim_matches('"').to_owned();
    let known = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
    if etag.is_empty() || etag.len() > 128 || !etag.bytes().all(known) {
        return wrong(format!("the etag {}, expected a hash", quote::name(&etag)));
    }
    if let Some(other) = text("x-repo-commit").filter(|&found| found != commit) {
        let other = quote::name(other);
        return wrong(format!("the commit {other}, expected {commit}"));
    }
    // That of a redirect is its own.
    let length = text("content-length").filter(|_| !answer.status().is_redirection());
    let bytes = text("x-linked-size").or(length);
    let Some(bytes) = bytes.and_then(|bytes| bytes.parse().ok()) else {
        return wrong("an answer that names no size, expected the file's".to_owned());
    };
    Ok(About { etag, bytes, url })
}

/// Writes the file that `about` is of, from where an earlier try ended.
fn fill(web: &Web<'_>, commit: &str, file: &str, about: &About, claim: &Claim) -> Result<()> {
    // Addresses of large files hold for a while only.
    let mut url = Some(about.url.clone());
    let mut written = Written::found(claim, about)?;
    let so_far = Cell::new(written.bytes);
    let mut begun_anew = false;
    web.patiently(
        TRIES,
        || so_far.get(),
        || {
            let url = match url.take() {
                Some(url) => url,
                None => self::about(web, commit, file)?.url,
            };
            if written.bytes > about.bytes {
                written.begin()?;
            }
            if written.bytes < about.bytes {
                go_on(web, file, &url, &mut written, &so_far)?;
            }
            let Some((kind, found)) = written.hash.as_ref().map(|(kind, hash)| {
                let hash = hash.clone().finalize();
                let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
                (*kind, hex)
            }) else {
                return Ok(());
            };
            if found == about.etag {
                return Ok(());
            }
            written.begin()?;
            so_far.set(0);
            let etag = &about.etag;
            let message = format!("{file}: found contents of the {kind} {found}, expected {etag}");
            if begun_anew {
                return Err(web.name.error(message).into());
            }
            // What an earlier run left may be at fault.
            begun_anew = true;
            Err(Failure::Again(message, None))
        },
    )
}

fn go_on(
    web: &Web<'_>,
    file: &str,
    url: &str,
    written: &mut Written<'_>,
    so_far: &Cell<u64>,
) -> Tried<()> {
    let of = written.about.bytes;
    let from = (written.bytes > 0).then_some(written.bytes);
    let (_, answer) = web.send(false, url, from, false)?;
    let again = |why: String| Err(Failure::Again(why, None));
    let goes_on = answer.status() == StatusCode::PARTIAL_CONTENT
        && starts_at(answer.headers()) == Some(written.bytes);
    if !goes_on {
        // Either the file comes from its beginning, or something that does not fit.
        written.begin()?;
        if answer.status() != StatusCode::OK {
            return again("the hub gave another part of a file than was asked for".to_owned());
        }
    }
    let mut contents = answer.into_body().into_reader();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let read = match contents.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return again(format!("the hub's answer was cut: {error}")),
        };
        if read as u64 > of - written.bytes {
            written.begin()?;
            let message =
                format!("{file}: found more than {of} bytes, expected what the hub says it has");
            return Err(web.name.error(message).into());
        }
        written.add(&buffer[..read])?;
        so_far.set(written.bytes);
        let bytes = written.bytes;
        web.tell(Download::Came { file, bytes, of })?;
    }
    match written.bytes {
        at if at < of => again(format!("the hub's answer ended at byte {at} of {of}")),
        _ => Ok(()),
    }
}

/// The first byte that `content-range: bytes START-END/SIZE` names.
fn starts_at(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get("content-range")?.to_str().ok()?;
    let (start, _) = range.strip_prefix("bytes ")?.split_once('-')?;
    start.parse().ok()
}

/// ETAG.partial, as far as it goes.
struct Written<'a> {
    claim: &'a Claim,
    about: &'a About,
    bytes: u64,
    hash: Option<(&'static str, Box<dyn DynDigest>)>,
}

impl<'a> Written<'a> {
    /// What an earlier try left.
    fn found(claim: &'a Claim, about: &'a About) -> Result<Self> {
        let mut written = Self {
            claim,
            about,
            bytes: 0,
            hash: about.hash(),
        };
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = claim.file().read_at(&mut buffer, written.bytes);
            match read.map_err(|error| Error::io(claim.path(), error))? {
                0 => return Ok(written),
                read => written.hashed(&buffer[..read]),
            }
        }
    }

    fn begin(&mut self) -> Result<()> {
        self.claim.cut(0)?;
        self.hash = self.about.hash();
        self.bytes = 0;
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.claim.file().write_all_at(bytes, self.bytes);
        written.map_err(|error| {
            Error::file(
                self.claim.path(),
                format!(
                    "{error}; the {} bytes before are in it, and the next try goes on from them once there is room",
                    self.bytes
                ),
            )
        })?;
        self.hashed(bytes);
        Ok(())
    }

    fn hashed(&mut self, bytes: &[u8]) {
        if let Some((_, hash)) = &mut self.hash {
            hash.update(bytes);
        }
        self.bytes += bytes.len() as u64;
    }
}
