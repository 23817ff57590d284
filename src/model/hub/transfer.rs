//! One file of a model into the cache: blobs/ETAG, to which snapshots/COMMIT/FILE links. Until it is whole it is
//! blobs/ETAG.partial, whose lock is the right to write it.

use super::make_folder_of;
use super::shown::Shown;
use super::web::{Failure, Tried, Web};
use crate::error::{Error, Result};
use crate::files::Claim;
use crate::quote;
use crate::telemetry::say;
use hf_hub::CacheRepo;
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::cell::Cell;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::http::HeaderMap;
use ureq::http::StatusCode;

const BUFFER_BYTES: usize = 1 << 18;

/// What the hub says of a file.
struct About {
    /// Its name in the cache: of large files the SHA-256, of small ones git's SHA-1.
    etag: String,
    bytes: Option<u64>,
    /// Where it lies.
    url: String,
}

impl About {
    /// What the etag is.
    fn hash(&self) -> Option<Hash> {
        let is_hash = self.etag.bytes().all(|b| b.is_ascii_hexdigit());
        match self.etag.len() {
            64 if is_hash => Some(Hash::Sha256),
            40 if is_hash => Some(Hash::Git),
            _ => None,
        }
    }
}

#[derive(Clone, Copy)]
enum Hash {
    Sha256,
    /// SHA-1 of `blob SIZE`, a zero and the contents.
    Git,
}

impl Hash {
    fn name(self) -> &'static str {
        match self {
            Self::Sha256 => "SHA-256",
            Self::Git => "git SHA-1",
        }
    }
}

/// Files of one commit.
pub(super) struct Transfer<'a> {
    web: &'a Web<'a>,
    repo: &'a CacheRepo,
    commit: &'a str,
}

impl<'a> Transfer<'a> {
    pub fn new(web: &'a Web<'a>, repo: &'a CacheRepo, commit: &'a str) -> Self {
        Self { web, repo, commit }
    }

    /// Sees that `file` is in the cache.
    ///
    /// # Errors
    /// It is not to be had, or the system refused.
    pub fn fetch(&mut self, file: &str) -> Result<()> {
        let link = self.repo.pointer_path(self.commit).join(file);
        if link.is_file() {
            return Ok(());
        }
        let about = self.web.patiently_for(|| 0, || self.about(file))?;
        let blob = self.repo.blob_path(&about.etag);
        make_folder_of(&blob)?;
        make_folder_of(&link)?;
        // Under the name that leads to it without links.
        let folder = blob.parent().unwrap_or(Path::new("/"));
        let folder = folder
            .canonicalize()
            .map_err(|error| Error::io(folder, error))?;
        let etag = about.etag.clone();
        let blob = folder.join(&etag);
        let claim = self.claim(&blob, file)?;
        if blob.is_file() {
            // Another file has the same contents, or another process was first.
            claim.remove()?;
        } else {
            self.fill(&claim, file, about)?;
            claim.install()?;
        }
        let up = "../".repeat(Path::new(file).components().count() + 1);
        let target = PathBuf::from(up).join("blobs").join(etag);
        match symlink(target, &link) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(Error::io(&link, error)),
            _ => Ok(()),
        }
    }

    /// The right to write the blob, once no other process has it.
    fn claim(&self, blob: &Path, file: &str) -> Result<Claim> {
        let mut said = false;
        loop {
            if let Some(claim) = Claim::try_take(blob)? {
                return Ok(claim);
            }
            if !said {
                say(&format!(
                    "tailgraph: waiting for another run that downloads {file}"
                ));
                said = true;
            }
            std::thread::sleep(Duration::from_millis(500));
        }
    }

    fn about(&self, file: &str) -> Tried<About> {
        let url = self.web.url(self.commit, file);
        let (url, answer) = self.web.send(true, &url, None, true)?;
        let headers = answer.headers();
        let text = |name: &str| headers.get(name)?.to_str().ok();
        let etag = text("x-linked-etag").or_else(|| text("etag")).unwrap_or("");
        let etag = etag.trim_start_matches("W/").trim_matches('"').to_owned();
        let known = |b: u8| b.is_ascii_alphanumeric() || b"-_".contains(&b);
        if etag.is_empty() || etag.len() > 128 || !etag.bytes().all(known) {
            let message = format!(
                "{file}: found the etag {}, expected a hash",
                quote::name(&etag)
            );
            return Err(self.web.name.error(message).into());
        }
        if let Some(other) = text("x-repo-commit").filter(|&commit| commit != self.commit) {
            let message = format!(
                "{file}: found the commit {}, expected {}",
                quote::name(other),
                self.commit
            );
            return Err(self.web.name.error(message).into());
        }
        let own_length = || match answer.status().is_redirection() {
            true => None,
            false => text("content-length"),
        };
        let bytes = text("x-linked-size").or_else(own_length);
        Ok(About {
            etag,
            bytes: bytes.and_then(|bytes| bytes.parse().ok()),
            url,
        })
    }

    /// Writes the file that `about` is of, from where an earlier try ended.
    fn fill(&self, claim: &Claim, file: &str, about: About) -> Result<()> {
        let mut known = Some(about);
        let mut written = Written::found(claim)?;
        let shown = Shown::new(file);
        let so_far = Cell::new(written.bytes);
        let mut begun_anew = false;
        self.web.patiently_for(
            || so_far.get(),
            || {
                // Addresses of large files hold for a while only.
                let about = known.take().map_or_else(|| self.about(file), Ok)?;
                if about.bytes.is_some_and(|bytes| written.bytes > bytes) {
                    written.begin()?;
                }
                if about.bytes != Some(written.bytes) {
                    self.go_on(file, &about, &mut written, &shown, &so_far)?;
                }
                let Some(hash) = about.hash() else {
                    return Ok(());
                };
                let found = written.hash(hash)?;
                if found == about.etag {
                    return Ok(());
                }
                written.begin()?;
                so_far.set(0);
                let message = format!(
                    "{file}: found contents of the {} {found}, expected {}",
                    hash.name(),
                    about.etag
                );
                if begun_anew {
                    return Err(self.web.name.error(message).into());
                }
                // What an earlier run left may be at fault.
                begun_anew = true;
                Err(Failure::Again(message, None))
            },
        )
    }

    fn go_on(
        &self,
        file: &str,
        about: &About,
        written: &mut Written<'_>,
        shown: &Shown,
        so_far: &Cell<u64>,
    ) -> Tried<()> {
        let from = (written.bytes > 0).then_some(written.bytes);
        let (_, answer) = self.web.send(false, &about.url, from, false)?;
        let goes_on = answer.status() == StatusCode::PARTIAL_CONTENT
            && starts_at(answer.headers()) == Some(written.bytes);
        if !goes_on {
            // Either the file comes from its beginning, or something that does not fit.
            written.begin()?;
        }
        if !goes_on && answer.status() != StatusCode::OK {
            return Err(Failure::Again(
                "the hub gave another part of a file than was asked for".to_owned(),
                None,
            ));
        }
        let rest = || {
            Some(
                written
                    .bytes
                    .saturating_add(answer.body().content_length()?),
            )
        };
        let Some(bytes) = about.bytes.or_else(rest) else {
            let message = format!("{file}: found an answer of no length, expected one");
            return Err(self.web.name.error(message).into());
        };
        let mut contents = answer.into_body().into_reader();
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let read = match contents.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    return Err(Failure::Again(
                        format!("the hub's answer was cut: {error}"),
                        None,
                    ));
                }
            };
            if read as u64 > bytes - written.bytes {
                written.begin()?;
                let message = format!(
                    "{file}: found more than {bytes} bytes, expected what the hub says it has"
                );
                return Err(self.web.name.error(message).into());
            }
            written.add(&buffer[..read])?;
            so_far.set(written.bytes);
            shown.tell(written.bytes, bytes);
        }
        if written.bytes < bytes {
            let at = written.bytes;
            let message = format!("the hub's answer ended at byte {at} of {bytes}");
            return Err(Failure::Again(message, None));
        }
        Ok(())
    }
}

/// Of `content-range: bytes START-END/SIZE`.
fn starts_at(headers: &HeaderMap) -> Option<u64> {
    let range = headers.get("content-range")?.to_str().ok()?;
    let (start, _) = range.strip_prefix("bytes ")?.split_once('-')?;
    start.parse().ok()
}

/// ETAG.partial, as far as it goes.
struct Written<'a> {
    claim: &'a Claim,
    bytes: u64,
    sha256: Sha256,
}

impl<'a> Written<'a> {
    /// What an earlier try left.
    fn found(claim: &'a Claim) -> Result<Self> {
        let mut written = Self {
            claim,
            bytes: 0,
            sha256: Sha256::new(),
        };
        let (sha256, bytes) = (&mut written.sha256, &mut written.bytes);
        each_part(claim, |part| {
            sha256.update(part);
            *bytes += part.len() as u64;
        })?;
        Ok(written)
    }

    fn begin(&mut self) -> Result<()> {
        self.claim.cut(0)?;
        self.sha256 = Sha256::new();
        self.bytes = 0;
        Ok(())
    }

    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        let written = self.claim.file().write_all_at(bytes, self.bytes);
        written.map_err(|error| {
            Error::file(
                self.claim.path(),
                format!(
                    "{error}; the {} bytes before are in it, and the same command goes on from them once there is room",
                    self.bytes
                ),
            )
        })?;
        self.sha256.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Of all that is there. Git's begins with the size, which only the whole has.
    fn hash(&self, hash: Hash) -> Result<String> {
        let hex = |digest: &[u8]| digest.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(match hash {
            Hash::Sha256 => hex(&self.sha256.clone().finalize()),
            Hash::Git => {
                let mut sha1 = Sha1::new_with_prefix(format!("blob {}\0", self.bytes));
                each_part(self.claim, |part| sha1.update(part))?;
                hex(&sha1.finalize())
            }
        })
    }
}

/// What is written so far, in parts.
fn each_part(claim: &Claim, mut take: impl FnMut(&[u8])) -> Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut at = 0;
    loop {
        let read = claim.file().read_at(&mut buffer, at);
        let read = read.map_err(|error| Error::io(claim.path(), error))?;
        if read == 0 {
            return Ok(());
        }
        take(&buffer[..read]);
        at += read as u64;
    }
}
