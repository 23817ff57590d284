//! `serve`: the OpenAI interface over HTTP, to one session.
//!
//! - here: connections, from the first to the drain
//! - `routes`: what is served where; `refusal`: why something is not
//! - `bodies`: bodies as they come and go; `asked`: one as a question, by the code that reads batch rows; `answers`: what comes of
//!   it, whole or as a stream
//! - `texts`: texts to tokens and back
//! - `metrics`: what `/metrics` shows
//! - `files`: the routes to what is in a `folder`; `batches`: batches there, answered by the loop of `generate`
//!
//! The session's thread tells each token to a channel, without waiting. Few threads write what comes to the connections. A reader
//! that is slow leaves no more in its channel than its answer. Uses the session and what stands below.

mod answers;
mod asked;
mod batches;
mod bodies;
mod files;
mod folder;
mod metrics;
mod refusal;
mod routes;
mod texts;

pub use metrics::Metrics;

use crate::error::{Error, Result};
use crate::io::once::Once;
use crate::session::Session;
use crate::telemetry::{say, warn};
use batches::Batches;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use rustix::net::sockopt::set_tcp_user_timeout;
use rustix::process::{Resource, getrlimit, setrlimit};
use sha2::{Digest, Sha256};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener as Listener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A request has so long for its head, its body, or until it is sent on a connection that stays.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// A reader has so long to take anything at all.
const WRITE_LIMIT: Duration = Duration::from_secs(60);
/// The most bytes of a request's head.
const HEAD_BYTES: usize = 64 << 10;
/// Descriptors that are no connections.
const OTHER_FILES: u64 = 128;
/// The most descriptors.
const FILES: u64 = 1 << 16;
/// Time for answers that are cut off to say so.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// What is chosen about a server.
pub struct Options {
    /// What requests must have as their bearer token, where there is one.
    pub api_key: Option<String>,
    /// Sequences that may wait beside those that run.
    pub max_queue: usize,
    /// Time for answers that are under way when a signal comes.
    pub drain: Duration,
    /// Where batches and their files are.
    pub batches: Option<PathBuf>,
    /// Fields that nothing reads are errors.
    pub strict: bool,
}

/// What all requests share.
struct State {
    session: Session,
    options: Options,
    key: Option<[u8; 32]>,
    metrics: Arc<Metrics>,
    /// A place for each sequence that runs or waits.
    places: Arc<Semaphore>,
    once: Mutex<Once>,
    batches: Option<Batches>,
    /// When the server began, in seconds since 1970.
    began: u64,
    draining: AtomicBool,
    stop: UnboundedSender<Stop>,
}

/// Why a server ends.
pub enum Stop {
    Signal,
    /// The engine failed.
    Failed(Arc<Error>),
}

/// How a server is told to end.
pub struct Stopper(UnboundedSender<Stop>, UnboundedReceiver<Stop>);

impl Default for Stopper {
    fn default() -> Self {
        let (send, receive) = unbounded_channel();
        Self(send, receive)
    }
}

impl Stopper {
    /// What tells it of a signal, from any thread.
    pub fn signal(&self) -> impl FnOnce() + Send + 'static {
        let send = self.0.clone();
        // One that has ended needs no telling.
        move || drop(send.send(Stop::Signal))
    }
}

/// Serves until `stop` says otherwise. Returns whether all that was under way came to its end.
///
/// # Errors
/// The engine failed, or the system refuses what a server needs.
pub fn serve(
    listener: TcpListener,
    session: Session,
    metrics: Arc<Metrics>,
    options: Options,
    stop: Stopper,
) -> Result<bool> {
    let failed = |error| Error::Runtime(format!("the server cannot run: {error}"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .max_blocking_threads(64)
        .thread_name("server")
        .enable_all()
        .build()
        .map_err(failed)?;
    let slots = session.opened().options.max_seqs as usize * session.opened().targets().count();
    let Stopper(send, receive) = stop;
    let batches = options.batches.as_deref();
    let batches =
        batches.map(|folder| Batches::open(folder, session.clone(), slots / 2, send.clone()));
    let state = Arc::new(State {
        key: options
            .api_key
            .as_ref()
            .map(|key| Sha256::digest(key).into()),
        places: Arc::new(Semaphore::new(slots + options.max_queue)),
        once: Mutex::new(Once::new(Box::new(warn))),
        batches: batches.transpose()?,
        began: crate::io::partial::now(),
        draining: AtomicBool::new(false),
        stop: send,
        session,
        metrics,
        options,
    });
    let ended = runtime.block_on(async {
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = Listener::from_std(listener).map_err(failed)?;
        run(listener, &state, receive).await
    });
    // Work that hangs in a tokenizer is left behind.
    runtime.shutdown_background();
    if let Some(batches) = &state.batches {
        batches.end();
    }
    ended
}

async fn run(
    listener: Listener,
    state: &Arc<State>,
    mut stop: UnboundedReceiver<Stop>,
) -> Result<bool> {
    let app = routes::routes(state.clone());
    let graceful = GracefulShutdown::new();
    let room = Arc::new(Semaphore::new(connections()));
    let mut connections = JoinSet::new();
    let stopped = loop {
        let next = async {
            let place = room.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let (stream, place) = tokio::select! {
            stopped = stop.recv() => break stopped,
            // One that went away before it was accepted is no matter.
            (accepted, place) = next => match (accepted, place) {
                (Ok((stream, _)), Ok(place)) => (stream, place),
                _ => continue,
            },
        };
        if prepare(&stream).is_err() {
            continue;
        }
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(READ_LIMIT)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app.clone()));
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            // How a client leaves is its own matter.
            drop(connection.await);
            drop(place);
        });
        while connections.try_join_next().is_some() {}
    };
    drop(listener);
    state.draining.store(true, Ordering::SeqCst);
    if let Some(batches) = &state.batches {
        batches.interrupt();
    }
    if let Some(Stop::Failed(error)) = stopped {
        drop(timeout(LAST_WORDS, graceful.shutdown()).await);
        return Err(Error::Runtime(error.to_string()));
    }
    let limit = state.options.drain;
    if graceful.count() > 0 {
        say(&format!(
            "tailgraph: answers under way have {} s to end",
            limit.as_secs_f64()
        ));
    }
    let mut drained = Box::pin(graceful.shutdown());
    if timeout(limit, &mut drained).await.is_ok() {
        return Ok(true);
    }
    // Each that is left is told that it was cut off.
    let session = state.session.clone();
    let ended = tokio::task::spawn_blocking(move || session.finish(true)).await;
    drop(timeout(LAST_WORDS, drained).await);
    connections.abort_all();
    ended.unwrap_or_else(|error| Err(Error::Runtime(error.to_string())))?;
    Ok(false)
}

/// Tokens go out as they come, and who takes none for long has gone.
fn prepare(stream: &TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    set_tcp_user_timeout(stream, WRITE_LIMIT.as_millis() as u32)?;
    Ok(())
}

/// The most connections at once: others wait to be accepted.
fn connections() -> usize {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(limit.maximum.unwrap_or(FILES).min(FILES));
    // Where that is refused there are as many as there were.
    _ = setrlimit(Resource::Nofile, limit);
    let files = getrlimit(Resource::Nofile).current.unwrap_or(FILES);
    files.saturating_sub(OTHER_FILES).max(1) as usize
}
