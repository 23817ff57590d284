//! `/v1/batches`: one batch at a time, by the loop of `generate` with its journal, in the session that answers everybody. A server
//! that ends leaves the journal, from which the next one with the same folder goes on.

use super::Stop;
use super::folder::{Folder, remove};
use super::refusal::Refusal;
use crate::error::{Error, Result};
use crate::files::names::beside;
use crate::io::answer::Origin;
use crate::io::fields::{found, present, string, wrong};
use crate::io::lines::Lines;
use crate::io::output::Output;
use crate::io::partial::{Journal, Start, now};
use crate::io::rows::Rows;
use crate::io::source::Source;
use crate::session::guest::Guest;
use crate::session::identity::identity;
use crate::session::job::{Job, Style, Summary};
use crate::session::prefixes::Prefixes;
use crate::session::{Progress, Session};
use crate::telemetry::warn;
use axum::http::StatusCode;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use tokio::sync::mpsc::UnboundedSender;

/// Rows that are in flight or wait to be, at most.
const WINDOW: u64 = 1024;
/// In seconds. A batch that takes longer goes on.
const DAY: u64 = 24 * 60 * 60;

/// The folder, and the thread that runs what is in it.
pub struct Batches {
    shared: Arc<Shared>,
    /// Ids of batches to run; `None` once no more are.
    queue: Mutex<Option<Sender<String>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    folder: Folder,
    session: Session,
    room: usize,
    stop: UnboundedSender<Stop>,
    /// The batch that runs, and what interrupts it. Who holds this may write what is said of a batch.
    running: Mutex<Option<(String, Arc<AtomicBool>)>>,
    ending: AtomicBool,
}

impl Batches {
    /// `room`: sequences that batches have at once.
    ///
    /// # Errors
    /// The folder cannot be made, or the system refused a thread.
    pub fn open(
        folder: &Path,
        session: Session,
        room: usize,
        stop: UnboundedSender<Stop>,
    ) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(|error| Error::io(folder, error))?;
        let shared = Arc::new(Shared {
            folder: Folder(folder.to_owned()),
            session,
            room,
            stop,
            running: Mutex::default(),
            ending: AtomicBool::new(false),
        });
        let (queue, ids) = channel::<String>();
        let all = shared.folder.all("batch_");
        for batch in all.iter().rev().filter(|batch| is_open(batch)) {
            let id = batch["id"].as_str().unwrap_or_default();
            drop(queue.send(id.to_owned()));
        }
        let runs = shared.clone();
        let work = move || {
            while let Ok(id) = ids.recv() {
                runs.run(&id);
            }
        };
        let thread = std::thread::Builder::new()
            .name("batches".to_owned())
            .spawn(work);
        Ok(Self {
            shared,
            queue: Mutex::new(Some(queue)),
            thread: Mutex::new(Some(thread.map_err(|error| Error::thread(&error))?)),
        })
    }

    pub fn folder(&self) -> &Folder {
        &self.shared.folder
    }

    /// Stops the batch that runs, which the next server goes on with.
    pub fn interrupt(&self) {
        self.shared.ending.store(true, Ordering::SeqCst);
        if let Some((_, interrupt)) = &*self.shared.running.lock() {
            interrupt.store(true, Ordering::SeqCst);
        }
    }

    /// Waits until none runs.
    pub fn end(&self) {
        self.interrupt();
        self.queue.lock().take();
        if let Some(thread) = self.thread.lock().take() {
            // A panic has been reported where it was.
            drop(thread.join());
        }
    }

    /// A new batch, as the body asks for it.
    pub fn create(&self, body: &Map<String, Value>) -> std::result::Result<Value, Refusal> {
        let folder = &self.shared.folder;
        let input = string(body, "input_file_id")?.unwrap_or_default();
        folder.read("file-", &input)?;
        let endpoint = string(body, "endpoint")?.unwrap_or_default();
        if !["/v1/chat/completions", "/v1/completions"].contains(&endpoint.as_str()) {
            let expected = "\"/v1/chat/completions\" or \"/v1/completions\"";
            return Err(wrong("endpoint", &endpoint.into(), expected).into());
        }
        let id = folder.id("batch_");
        let mut batch = json!({
            "id": id,
            "object": "batch",
            "endpoint": endpoint,
            "input_file_id": input,
            "completion_window": string(body, "completion_window")?.unwrap_or("24h".to_owned()),
            "status": "validating",
            "created_at": now(),
            "expires_at": now() + DAY,
            "request_counts": {"total": 0, "completed": 0, "failed": 0},
            "metadata": present(body, "metadata"),
        });
        let later = "errors output_file_id error_file_id in_progress_at finalizing_at completed_at failed_at expired_at cancelling_at cancelled_at";
        for name in later.split(' ') {
            batch[name] = Value::Null;
        }
        folder.write(&batch)?;
        if let Some(queue) = &*self.queue.lock() {
            drop(queue.send(id));
        }
        Ok(batch)
    }

    /// Ends a batch early: there will be no output of it.
    pub fn cancel(&self, id: &str) -> std::result::Result<Value, Refusal> {
        let running = self.shared.running.lock();
        let mut batch = self.folder().read("batch_", id)?;
        if !is_open(&batch) {
            let message = format!(
                "{id}: found it {}, expected one that is not over",
                found(&batch["status"])
            );
            return Err(Refusal::new(StatusCode::CONFLICT, "over", message));
        }
        batch["cancelling_at"] = json!(now());
        match &*running {
            Some((of, interrupt)) if of == id => {
                batch["status"] = json!("cancelling");
                interrupt.store(true, Ordering::SeqCst);
            }
            _ => over(&mut batch, "cancelled"),
        }
        self.folder().write(&batch)?;
        Ok(batch)
    }
}

/// Whether a batch is still to come to its end.
fn is_open(batch: &Value) -> bool {
    let status = batch["status"].as_str().unwrap_or_default();
    ["validating", "in_progress", "cancelling"].contains(&status)
}

/// Notes that a batch has come to `status`.
fn over(batch: &mut Value, status: &str) {
    batch["status"] = json!(status);
    batch[format!("{status}_at")] = json!(now());
}

impl Shared {
    /// From what is said of a batch to what is said of it in the end. A server that ends leaves it as it is.
    fn run(&self, id: &str) {
        let interrupt = Arc::new(AtomicBool::new(false));
        let files = {
            let mut running = self.running.lock();
            let batch = self.folder.read("batch_", id);
            let Some(mut batch) = batch.ok().filter(is_open) else {
                return;
            };
            if self.ending.load(Ordering::SeqCst) {
                return;
            }
            if batch["cancelling_at"].is_null() {
                *running = Some((id.to_owned(), interrupt.clone()));
                batch["status"] = json!("in_progress");
            } else {
                over(&mut batch, "cancelled");
            }
            if batch["in_progress_at"].is_null() {
                batch["in_progress_at"] = json!(now());
            }
            self.noted(&batch);
            if running.is_none() {
                return;
            }
            let input = batch["input_file_id"].as_str().unwrap_or_default();
            let number = id.trim_start_matches("batch_");
            let of = |what| format!("file-{number}-{what}");
            [input.to_owned(), of("output"), of("error")]
        };
        let came = self.answer(&files, &interrupt);
        let mut running = self.running.lock();
        *running = None;
        let Ok(mut batch) = self.folder.read("batch_", id) else {
            return;
        };
        let ended = came.and_then(|(summary, total)| self.end(&mut batch, &files, &summary, total));
        match ended {
            Ok(false) => {}
            Ok(true) => self.noted(&batch),
            Err(error) => {
                let line = json!({"code": "failed", "message": error.to_string(), "line": null, "param": null});
                batch["errors"] = json!({"object": "list", "data": [line]});
                over(&mut batch, "failed");
                self.noted(&batch);
            }
        }
    }

    fn noted(&self, batch: &Value) {
        if let Err(error) = self.folder.write(batch) {
            warn(&format!("a batch: {error}"));
        }
    }

    /// Answers the rows of a file, into another and one of errors; and how many there are.
    fn answer(
        &self,
        [input, output, errors]: &[String; 3],
        interrupt: &AtomicBool,
    ) -> Result<(Summary, u64)> {
        let [input, output, errors] = [input, output, errors].map(|id| self.folder.content(id));
        let open = || {
            let file = File::open(&input).map_err(|error| Error::io(&input, error));
            file.map(BufReader::new)
        };
        let lines = open()?.split(b'\n');
        let lines = lines.map_while(std::result::Result::ok);
        let total = lines.filter(|line| !line.trim_ascii().is_empty()).count() as u64;
        let (texts, opened) = (self.session.texts(), self.session.opened());
        // Templates read the time at which the server began, which is another after a restart.
        let identity = identity(opened, &texts.rules)?;
        let (mut journal, kept) = Journal::open(&output, Start::Resume, &identity)?;
        journal.errors_to(&errors, Start::Resume)?;
        let origin = Origin {
            model: opened.spec.model.short_name(),
            created: journal.created(),
        };
        let source = Source::new(
            Lines::file(Box::new(open()?), &input),
            kept,
            identity.hash(),
            Box::new(warn),
        );
        let (rules, threads) = (texts.rules.clone(), texts.threads.clone());
        let job = Job {
            rows: Rows::start(source, rules, texts.codec.clone(), threads)?,
            codec: &texts.codec,
            output: Output::File(journal),
            style: Style::Json,
            origin,
            window: WINDOW,
            in_order: false,
            prefixes: Prefixes::none(), // the session finds them
            progress: Progress::new(true, None),
            interrupt,
        };
        let summary = job.run(&mut Guest::new(self.session.clone(), self.room))?;
        Ok((summary, total))
    }

    /// Whether a batch is over, which `batch` then says.
    fn end(
        &self,
        batch: &mut Value,
        [_, output, errors]: &[String; 3],
        summary: &Summary,
        total: u64,
    ) -> Result<bool> {
        if self.ending.load(Ordering::SeqCst) && summary.interrupted {
            return Ok(false);
        }
        match &summary.failure {
            None => {}
            // The engine's: the next server goes on.
            Some(Error::Runtime(message)) => {
                let error = Arc::new(Error::Runtime(message.clone()));
                drop(self.stop.send(Stop::Failed(error)));
                return Ok(false);
            }
            Some(failure) => return Err(Error::Runtime(failure.to_string())),
        }
        let counts = &summary.counts;
        batch["request_counts"] = json!({
            "total": total,
            "completed": counts.rows - counts.failed,
            "failed": counts.failed,
        });
        if summary.interrupted {
            over(batch, "cancelled");
            // A journal without a row has gone by itself.
            let journal = beside(&self.folder.content(output), ".partial");
            if journal.exists() {
                remove(&journal)?;
            }
            return Ok(true);
        }
        let id = batch["id"].as_str().unwrap_or_default().to_owned();
        for (file, field, name) in [
            (output, "output_file_id", "output"),
            (errors, "error_file_id", "error"),
        ] {
            let path = self.folder.content(file);
            let bytes = path
                .metadata()
                .map_err(|error| Error::io(&path, error))?
                .len();
            if bytes == 0 {
                remove(&path)?;
                continue;
            }
            let purpose = "batch_output";
            self.folder
                .add_file(file, &format!("{id}_{name}.jsonl"), purpose)?;
            batch[field] = json!(file);
        }
        over(batch, "completed");
        Ok(true)
    }
}
