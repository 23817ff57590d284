//! Requests of the hub: which are tried again, after how long, and what is said of the others.

use super::name::{Name, Place, is_commit};
use crate::error::{Error, Result};
use crate::quote;
use crate::telemetry::say;
use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use std::time::Duration;
use ureq::http::{HeaderMap, Response, StatusCode, Uri};
use ureq::{Agent, Body};

/// Tries of which none brings anything new, at most.
const TRIES: u32 = 5;
/// A hub that says when to come again is not waited for longer than this at once.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
const CONNECT: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(60);
/// Of one request: what came until then is kept, and the next goes on from it.
const CONTENTS: Duration = Duration::from_secs(600);
const REDIRECTS: usize = 10;
/// A model has hundreds of files at most.
const LIST_BYTES: u64 = 64 << 20;

/// Why a try failed.
pub(super) enum Failure {
    /// Another may not; the hub may say after how long.
    Again(String, Option<Duration>),
    For(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::For(error)
    }
}

pub(super) type Tried<T> = std::result::Result<T, Failure>;

/// The files of a model.
pub(super) struct Listed {
    pub commit: String,
    pub files: Vec<String>,
}

/// The hub, as far as one model goes.
pub(super) struct Web<'a> {
    place: &'a Place,
    pub name: &'a Name,
    agent: Agent,
}

impl<'a> Web<'a> {
    /// # Errors
    /// HF_ENDPOINT is no address.
    pub fn new(place: &'a Place, name: &'a Name) -> Result<Self> {
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .user_agent(concat!("tailgraph/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(ANSWER))
            .timeout_recv_body(Some(CONTENTS))
            .build();
        if origin(&place.endpoint).is_none() {
            return Err(Error::Usage(format!(
                "HF_ENDPOINT: found {}, expected an address such as https://huggingface.co",
                quote::name(&place.endpoint)
            )));
        }
        Ok(Self {
            place,
            name,
            agent: agent.into(),
        })
    }

    /// The crate's view of the model at `revision`.
    fn repo(&self, revision: &str) -> Result<ApiRepo> {
        let api = ApiBuilder::from_cache(self.place.cache.clone())
            .with_endpoint(self.place.endpoint.clone())
            .with_token(self.place.token.clone())
            .build();
        let api = api.map_err(|error| self.name.error(error.to_string()))?;
        Ok(api.repo(self.name.at(revision)))
    }

    /// Where `file` is at `commit`.
    pub fn url(&self, commit: &str, file: &str) -> Result<String> {
        Ok(self.repo(commit)?.url(file))
    }

    /// What the revision has by now.
    pub fn files(&self) -> Result<Listed> {
        let repo = self.repo(self.name.revision())?;
        let ask = || -> Tried<Listed> {
            let request = repo.info_request().config();
            let mut answer = request
                .http_status_as_error(false)
                .timeout_connect(Some(CONNECT))
                .timeout_recv_response(Some(ANSWER))
                .build()
                .call()
                .map_err(|error| again(&error))?;
            self.check(answer.status(), answer.headers())?;
            let body = answer.body_mut().with_config().limit(LIST_BYTES);
            let info: hf_hub::api::RepoInfo = body.read_json().map_err(|error| {
                let hub = &self.place.endpoint;
                let why = quote::message(&error);
                let message = format!("{hub} answered with no list of a model's files ({why})");
                Failure::Again(message, None)
            })?;
            if !is_commit(&info.sha) {
                let message = format!(
                    "found the commit {}, expected one of git",
                    quote::name(&info.sha)
                );
                return Err(self.name.error(message).into());
            }
            Ok(Listed {
                commit: info.sha,
                files: info
                    .siblings
                    .into_iter()
                    .map(|file| file.rfilename)
                    .collect(),
            })
        };
        // The first request: a hub that cannot be reached is said soon.
        self.patiently(2, || 0, ask)
    }

    /// One request, the redirects that the hub answers with followed as far as `stays` says. Only the hub itself is shown
    /// the token.
    pub fn send(
        &self,
        head: bool,
        url: &str,
        from: Option<u64>,
        stays: bool,
    ) -> Tried<(String, Response<Body>)> {
        let hub = origin(&self.place.endpoint);
        let mut url = url.to_owned();
        for _ in 0..REDIRECTS {
            let mut request = match head {
                true => self.agent.head(&url),
                false => self.agent.get(&url),
            }
            // Lengths and ranges are those of the file.
            .header("accept-encoding", "identity");
            if let Some(token) = self.place.token.as_ref().filter(|_| origin(&url) == hub) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if let Some(from) = from {
                request = request.header("range", format!("bytes={from}-"));
            }
            let answer = request.call().map_err(|error| again(&error))?;
            let Some(next) = redirect(&url, &answer) else {
                self.check(answer.status(), answer.headers())?;
                return Ok((url, answer));
            };
            if stays && origin(&next) != hub {
                return Ok((next, answer));
            }
            url = next;
        }
        let message = format!("found more than {REDIRECTS} redirects, expected an end");
        Err(self.name.error(message).into())
    }

    /// What an answer's status comes to.
    fn check(&self, status: StatusCode, headers: &HeaderMap) -> Tried<()> {
        let after = || {
            let text = headers.get("retry-after")?.to_str().ok()?;
            Some(Duration::from_secs(text.trim().parse().ok()?).min(LONGEST_WAIT))
        };
        let hub = &self.place.endpoint;
        let message = match status.as_u16() {
            // A range that begins at the end.
            200..=299 | 416 => return Ok(()),
            // The hub says this of what it does not show too.
            401 => match self.place.token {
                None => format!(
                    "{hub} answered 401: there is no such model (and no such folder here), or it is private: expected a name that exists, or HF_TOKEN of an account that may read it"
                ),
                Some(_) => format!(
                    "{hub} answered 401: there is no such model, or the token may not read it: expected a name that exists, and HF_TOKEN of an account that may read it"
                ),
            },
            403 => format!(
                "{hub} answered 403: this account may not read the model: accept its conditions on its page, and set HF_TOKEN"
            ),
            404 => format!(
                "{hub} answered 404: found no such model or revision, and no such folder here: expected a name that exists"
            ),
            429 => {
                return Err(Failure::Again(
                    format!("{hub} answered 429, too many requests"),
                    after(),
                ));
            }
            408 | 500..=599 => {
                return Err(Failure::Again(
                    format!("{hub} answered {}", status.as_u16()),
                    after(),
                ));
            }
            other => format!("{hub} answered {other}, expected 200"),
        };
        Err(self.name.error(message).into())
    }

    /// Tries until one succeeds, or `tries` one after the other bring nothing new; `so_far` is what they have brought.
    pub fn patiently<T>(
        &self,
        tries: u32,
        so_far: impl Fn() -> u64,
        mut ask: impl FnMut() -> Tried<T>,
    ) -> Result<T> {
        let mut failed = 0;
        loop {
            let before = so_far();
            let (why, after) = match ask() {
                Ok(found) => return Ok(found),
                Err(Failure::For(error)) => return Err(error),
                Err(Failure::Again(why, after)) => (why, after),
            };
            failed = match so_far() > before {
                true => 1,
                false => failed + 1,
            };
            if failed >= tries {
                return Err(self.name.error(format!(
                    "{why}, {failed} times one after the other; what has come is kept, and the same command goes on from there"
                )));
            }
            let pause = Duration::from_millis(200 << (2 * (failed - 1)));
            let wait = after.unwrap_or(pause);
            if wait >= Duration::from_secs(1) {
                say(&format!(
                    "tailgraph: {why}: waiting for {} s",
                    wait.as_secs()
                ));
            }
            std::thread::sleep(wait);
        }
    }

    pub fn patiently_for<T>(
        &self,
        so_far: impl Fn() -> u64,
        ask: impl FnMut() -> Tried<T>,
    ) -> Result<T> {
        self.patiently(TRIES, so_far, ask)
    }
}

/// No answer: the network may have one the next time.
fn again(error: &ureq::Error) -> Failure {
    Failure::Again(
        format!("the hub cannot be reached: {}", quote::message(error)),
        None,
    )
}

/// Scheme, host and port.
fn origin(url: &str) -> Option<(String, String)> {
    let url: Uri = url.parse().ok()?;
    Some((url.scheme_str()?.to_owned(), url.authority()?.to_string()))
}

/// Where an answer sends us.
fn redirect(url: &str, answer: &Response<Body>) -> Option<String> {
    if !answer.status().is_redirection() {
        return None;
    }
    let location = answer.headers().get("location")?.to_str().ok()?;
    match location.starts_with('/') {
        false => Some(location.to_owned()),
        true => {
            let (scheme, authority) = origin(url)?;
            Some(format!("{scheme}://{authority}{location}"))
        }
    }
}
