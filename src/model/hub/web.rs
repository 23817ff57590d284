//! Requests of the hub: which are tried again, after how long, and what is said of the others.

use super::name::{Name, Place, is_commit};
use super::{Download, Watch};
use crate::error::{Error, Result};
use crate::quote;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use hf_hub::api::RepoInfo;
use percent_encoding::percent_decode_str;
use rustls_native_certs::load_native_certs;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};
use ureq::http::{HeaderMap, Response, StatusCode, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// Tries of which none brings anything new, at most.
pub(super) const TRIES: u32 = 5;
/// A hub that says when to come again is not waited for longer than this at once.
const LONGEST_WAIT: Duration = Duration::from_secs(300);
const CONNECT: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(60);
/// The time limit of one request for contents: what came until then is kept, and the next request goes on from it.
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
    pub name: &'a Name,
    /// Where the hub is, without the password that HF_ENDPOINT may have in it: messages show it.
    pub endpoint: String,
    hub: Option<Origin>,
    /// Who asks, for the hub's eyes alone.
    authorization: Option<String>,
    agent: Agent,
    watch: Watch<'a>,
}

impl<'a> Web<'a> {
    /// # Errors
    /// HF_ENDPOINT is no address, or there is no certificate where the environment says.
    pub fn new(place: &Place, name: &'a Name, watch: Watch<'a>) -> Result<Self> {
        let certificates = TlsConfig::builder().root_certs(trusted()?).build();
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(certificates)
            .user_agent(concat!("tailgraph/", env!("CARGO_PKG_VERSION")))
            .timeout_connect(Some(CONNECT))
            .timeout_recv_response(Some(ANSWER))
            .timeout_recv_body(Some(CONTENTS))
            .build();
        let (endpoint, credentials) = without_credentials(&place.endpoint)?;
        let bearer = || Some(format!("Bearer {}", place.token.as_ref()?));
        Ok(Self {
            name,
            hub: origin(&endpoint),
            endpoint,
            authorization: credentials.or_else(bearer),
            agent: agent.into(),
            watch,
        })
    }

    /// # Errors
    /// [`Error::Interrupted`] where whoever hears it wants no more.
    pub fn tell(&self, download: Download<'_>) -> Result<()> {
        match (self.watch)(download) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        }
    }

    /// Waits, and says why where it takes longer than a moment.
    ///
    /// # Errors
    /// Fails as [`Self::tell`] does.
    pub fn wait(&self, time: Duration, why: &str) -> Result<()> {
        const MOMENT: Duration = Duration::from_millis(500);
        let end = Instant::now() + time;
        loop {
            std::thread::sleep(end.saturating_duration_since(Instant::now()).min(MOMENT));
            if time >= MOMENT {
                self.tell(Download::Waits { why })?;
            }
            if Instant::now() >= end {
                return Ok(());
            }
        }
    }

    /// Where `file` is at `commit`.
    pub fn url(&self, commit: &str, file: &str) -> String {
        let repo = self.name.repo().url();
        format!("{}/{repo}/resolve/{commit}/{file}", self.endpoint)
    }

    /// What the revision has by now.
    pub fn files(&self) -> Result<Listed> {
        let url = format!("{}/api/{}", self.endpoint, self.name.repo().api_url());
        let ask = || -> Tried<Listed> {
            let (_, mut answer) = self.send(false, &url, None, false)?;
            let body = answer.body_mut().with_config().limit(LIST_BYTES);
            let info: RepoInfo = body.read_json().map_err(|error| {
                let hub = &self.endpoint;
                let why = quote::message(&error);
                let message = format!("{hub} answered with no list of a model's files ({why})");
                Failure::Again(message, None)
            })?;
            let asked = Some(self.name.revision()).filter(|_| self.name.is_commit());
            if !is_commit(&info.sha) || asked.is_some_and(|asked| asked != info.sha) {
                let message = format!(
                    "found the commit {}, expected {}",
                    quote::name(&info.sha),
                    asked.unwrap_or("one of git")
                );
                return Err(self.name.error(message).into());
            }
            let files = info.siblings.into_iter().map(|file| file.rfilename);
            Ok(Listed {
                commit: info.sha,
                files: files.collect(),
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
        let mut url = url.to_owned();
        for _ in 0..REDIRECTS {
            let mut request = if head {
                self.agent.head(&url)
            } else {
                self.agent.get(&url)
            }
            // Lengths and ranges are those of the file.
            .header("accept-encoding", "identity");
            if let Some(who) = &self.authorization
                && origin(&url) == self.hub
            {
                request = request.header("authorization", who);
            }
            if let Some(from) = from {
                request = request.header("range", format!("bytes={from}-"));
            }
            let answer = request.call().map_err(|error| again(&error))?;
            let Some(next) = redirect(&url, &answer) else {
                self.check(answer.status(), answer.headers())?;
                return Ok((url, answer));
            };
            let to = origin(&next);
            if to.is_none() {
                let message = "found a redirect to no address, expected one of http or https";
                return Err(self.name.error(message).into());
            }
            if stays && to != self.hub {
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
        let hub = &self.endpoint;
        let message = match status.as_u16() {
            // A range that begins at the end.
            200..=299 | 416 => return Ok(()),
            // The hub says this of what it does not show too.
            401 => format!(
                "{hub} answered 401: there is no such model (and no such folder here), or it is private: expected a name that exists, and HF_TOKEN of an account that may read it"
            ),
            403 => format!(
                "{hub} answered 403: this account may not read the model: accept its conditions on its page, and set HF_TOKEN"
            ),
            404 => format!(
                "{hub} answered 404: found no such model or revision, and no such folder here: expected a name that exists"
            ),
            408 | 429 | 500..=599 => {
                return Err(Failure::Again(format!("{hub} answered {status}"), after()));
            }
            other => format!("{hub} answered {other}, expected 200"),
        };
        Err(self.name.error(message).into())
    }

    /// Tries until one succeeds, or until `tries` in a row bring no more bytes than the best before them; `so_far`: the bytes that are there.
    pub fn patiently<T>(
        &self,
        tries: u32,
        so_far: impl Fn() -> u64,
        mut ask: impl FnMut() -> Tried<T>,
    ) -> Result<T> {
        let mut failed = 0;
        let mut best = so_far();
        loop {
            let (why, after) = match ask() {
                Ok(found) => return Ok(found),
                Err(Failure::For(error)) => return Err(error),
                Err(Failure::Again(why, after)) => (why, after),
            };
            failed = if so_far() > best { 1 } else { failed + 1 };
            best = best.max(so_far());
            if failed >= tries {
                let tried = match failed {
                    2 => "tried twice".to_owned(),
                    _ => format!("tried {failed} times"),
                };
                let kept = match best {
                    0 => String::new(),
                    bytes => {
                        format!("; {bytes} bytes are kept, and the next run goes on from there")
                    }
                };
                return Err(self.name.error(format!("{why}; {tried}{kept}")));
            }
            let pause = Duration::from_millis(200 << (2 * (failed - 1)));
            let wait = after.unwrap_or(pause);
            let seconds = wait.as_secs_f64().ceil();
            self.wait(wait, &format!("{why}: waiting for {seconds} s"))?;
        }
    }
}

/// No answer: the network may have one the next time.
fn again(error: &ureq::Error) -> Failure {
    let why = quote::message(error);
    let help = if why.contains("certificate") {
        " (SSL_CERT_FILE names a file of those to trust)"
    } else {
        ""
    };
    Failure::Again(format!("the hub cannot be reached ({why}){help}"), None)
}

/// Scheme, host and port.
type Origin = (String, String, u16);

fn origin(url: &str) -> Option<Origin> {
    let url: Uri = url.parse().ok()?;
    let scheme = url.scheme_str()?.to_ascii_lowercase();
    let usual = match &*scheme {
        "https" => 443,
        "http" => 80,
        _ => return None,
    };
    let port = url.port_u16().unwrap_or(usual);
    Some((scheme, url.host()?.to_ascii_lowercase(), port))
}

/// The endpoint without NAME:PASSWORD@, and the header that these make.
fn without_credentials(endpoint: &str) -> Result<(String, Option<String>)> {
    let (scheme, rest) = endpoint.split_once("://").unwrap_or(("", endpoint));
    let (who, hub) = match rest.rsplit_once('@') {
        Some((who, hub)) => (Some(who), hub),
        None => (None, rest),
    };
    let plain = format!("{scheme}://{}", hub.trim_end_matches('/'));
    if origin(&plain).is_none() || who.is_some_and(|who| who.contains(['/', '?', '#'])) {
        // A password may be anywhere around an @.
        let found = match who {
            Some(_) => "an @ where no name and password end".to_owned(),
            None => quote::name(endpoint),
        };
        return Err(Error::Usage(format!(
            "HF_ENDPOINT: found {found}, expected an address such as https://huggingface.co or https://NAME:PASSWORD@HOST, with %2F for a / of these"
        )));
    }
    let basic = |who: &str| {
        let end = if who.contains(':') { "" } else { ":" };
        let who: Vec<u8> = percent_decode_str(who).chain(end.bytes()).collect();
        format!("Basic {}", BASE64_STANDARD.encode(who))
    };
    Ok((plain, who.map(basic)))
}

/// Certificates that SSL_CERT_FILE and SSL_CERT_DIR name, else the system's, else Mozilla's.
fn trusted() -> Result<RootCerts> {
    let found = load_native_certs();
    let set = |name| std::env::var_os(name).is_some_and(|path| !path.is_empty());
    if found.certs.is_empty() && (set("SSL_CERT_FILE") || set("SSL_CERT_DIR")) {
        let why = found.errors.first();
        let why = why.map_or(String::new(), |error| format!(" ({error})"));
        return Err(Error::Usage(format!(
            "SSL_CERT_FILE, SSL_CERT_DIR: found no certificate where these lead{why}, expected a file of PEM or a folder of them"
        )));
    }
    if found.certs.is_empty() {
        return Ok(RootCerts::WebPki);
    }
    let certificates = found.certs.iter();
    Ok(certificates
        .map(|der| Certificate::from_der(der).to_owned())
        .collect::<Vec<_>>()
        .into())
}

/// Where an answer sends us.
fn redirect(url: &str, answer: &Response<Body>) -> Option<String> {
    if !answer.status().is_redirection() {
        return None;
    }
    let location = answer.headers().get("location")?.to_str().ok()?;
    let from: Uri = url.parse().ok()?;
    let scheme = from.scheme_str()?;
    Some(match location.strip_prefix('/') {
        None => location.to_owned(),
        Some(rest) if rest.starts_with('/') => format!("{scheme}:{location}"),
        Some(_) => format!("{scheme}://{}{location}", from.authority()?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_than_what_came_before_is_no_progress() {
        let name = Name::parse("a/b").unwrap();
        let place = Place {
            cache: hf_hub::Cache::new("/".into()),
            endpoint: "http://host".to_owned(),
            token: None,
            offline: false,
        };
        let web = Web::new(&place, &name, &|_| ControlFlow::Continue(())).unwrap();
        let tries = std::cell::Cell::new(0);
        // A hub that gives 60 % and 50 % of a file in turn, each from its beginning.
        let so_far = || match tries.get() {
            0 => 0,
            odd if odd % 2 == 1 => 60,
            _ => 50,
        };
        let failed = web.patiently(TRIES, so_far, || -> Tried<()> {
            tries.set(tries.get() + 1);
            assert!(tries.get() < 100, "without end");
            Err(Failure::Again("cut".to_owned(), Some(Duration::ZERO)))
        });
        assert!(failed.unwrap_err().to_string().contains("5 times"));
        assert_eq!(tries.get(), 5);
    }
}
