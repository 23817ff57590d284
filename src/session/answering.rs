//! [`Session`]: questions in from any thread, their texts out as they come.

use super::opened::Opened;
use super::recording::Keep;
use super::serving::{Asker, Command, Guest, Output, Serving, Told, Wanted};
use super::spec::RunSpec;
use super::texts::Texts;
use crate::error::{Error, Result};
use crate::io::answer::Outcome;
use crate::io::codec::Codec;
use crate::io::prepare::{Prepared, Rules, Waiting, prepare, prepare_all};
use crate::io::row::{Ask, RowError};
use crate::runtime::{EngineStatus, Event, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};

/// A model with its tokenizer, chat template and running engine: a handle, of which threads may have clones.
///
/// Questions are independent of each other: as many run at once as the engine has slots, the rest wait in the order in which
/// they were asked. A thread behind the handles drives the engine; it ends with the last handle and the last [`Answer`].
///
/// Four threads at once:
/// ```
/// use tailgraph::io::row::{Ask, Options};
/// use tailgraph::session::{RunSpec, Session};
///
/// let mut spec = RunSpec::new("random:tiny")?;
/// spec.defaults = Options { max_new_tokens: Some(4), ..Options::default() };
/// let session = Session::open(spec)?;
/// let threads = ["one", "two", "three", "four"].map(|text| {
///     let session = session.clone();
///     std::thread::spawn(move || {
///         let mut answer = session.ask(&Ask::text(text))?;
///         for piece in &mut answer {
///             print!("{}", piece?);
///         }
///         answer.outcome()
///     })
/// });
/// for thread in threads {
///     assert_eq!(thread.join().expect("no panic")?.output_ids.len(), 4);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Session(Arc<Shared>);

/// What all handles and answers have.
struct Shared {
    serving: Serving,
    opened: Arc<Opened>,
    texts: Texts,
    /// Questions prepared so far.
    prepared: AtomicU64,
    /// Questions submitted so far.
    submitted: AtomicU64,
}

/// Why a question has no answer.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Unanswered {
    /// It cannot be answered, or its sequence failed; others are served all the same.
    #[error(transparent)]
    Question(#[from] RowError),
    /// The engine failed, and with it every question.
    #[error(transparent)]
    Engine(Arc<Error>),
}

impl Session {
    /// Opens the model and its device, loads the weights and starts the engine. Warnings about the model's files go to
    /// standard error.
    ///
    /// # Errors
    /// [`Error::Usage`] for a device, a size or a combination that cannot be; [`Error::File`] and [`Error::Io`] for the
    /// model's files; [`Error::Memory`] with the arithmetic where there is too little; [`Error::Runtime`] for what the machine
    /// or its driver refuses.
    pub fn open(spec: RunSpec) -> Result<Self> {
        let opened = Opened::to_answer(spec)?;
        let texts = Texts::of(&opened)?;
        Self::start(opened, texts, Keep::default())
    }

    /// Starts the engine of a model that is opened, whose run is kept as `keep` says: [`Session::finish`] then ends it.
    ///
    /// # Errors
    /// Fails as [`Opened::start`] does, and where the system refuses a thread.
    pub fn start(opened: Opened, texts: Texts, keep: Keep) -> Result<Self> {
        let opened = Arc::new(opened);
        Ok(Self(Arc::new(Shared {
            serving: Serving::start(opened.clone(), texts.codec.clone(), keep)?,
            opened,
            texts,
            prepared: AtomicU64::new(0),
            submitted: AtomicU64::new(0),
        })))
    }

    /// The model's configuration, plan and sizes.
    pub fn opened(&self) -> &Opened {
        &self.0.opened
    }

    /// The tokenizer, the chat template, and the rules for questions.
    pub fn texts(&self) -> &Texts {
        &self.0.texts
    }

    /// The question as tokens, with all its options. Questions are numbered as they are prepared, from 0; the number and
    /// the run's seed key the sampling of one that has no seed of its own.
    ///
    /// # Errors
    /// What is wrong with the question, its options or its length; its text is not tokens by the deadline.
    pub fn prepare(&self, ask: &Ask) -> std::result::Result<Prepared, RowError> {
        let (_, prepared) = self.with_text(ask, prepare)?;
        Ok(prepared)
    }

    /// All sequences of a question for several answers, and its number. Otherwise [`Session::prepare`].
    ///
    /// # Errors
    /// Fails as [`Session::prepare`] does.
    pub fn prepare_all(&self, ask: &Ask) -> std::result::Result<(u64, Waiting), RowError> {
        self.with_text(ask, prepare_all)
    }

    /// What `prepare` makes of a question, where its text may take its time; and the question's number.
    fn with_text<T: Send + 'static>(
        &self,
        ask: &Ask,
        prepare: fn(&Rules, &Codec, u64, &Ask) -> std::result::Result<T, RowError>,
    ) -> std::result::Result<(u64, T), RowError> {
        let number = self.0.prepared.fetch_add(1, Relaxed);
        let Texts {
            rules,
            codec,
            threads,
        } = &self.0.texts;
        if !ask.has_text() {
            return Ok((number, prepare(rules, codec, number, ask)?));
        }
        let (rules, codec, ask) = (rules.clone(), codec.clone(), ask.clone());
        let prepared = threads.run(move || prepare(&rules, &codec, number, &ask))?;
        Ok((number, prepared?))
    }

    /// Hands a prepared question over. What becomes of it, and whether the engine has failed, the answer says. As many may
    /// wait as there is memory for: who wants fewer asks for fewer.
    pub fn submit(&self, prepared: Prepared) -> Answer {
        let (tell, outputs) = channel();
        // One that is gone has cancelled.
        let question = self.submit_to(prepared, move |told| drop(tell.send(told)));
        Answer {
            question,
            outputs,
            end: None,
            failure_told: false,
        }
    }

    /// Hands a prepared question over, of which `tell` is told all that comes, on the thread that drives the engine: it must not
    /// wait. After an error, or an [`Output::End`], it is told nothing.
    pub fn submit_to(
        &self,
        prepared: Prepared,
        tell: impl FnMut(Told) + Send + 'static,
    ) -> Question {
        let number = self.0.submitted.fetch_add(1, Relaxed);
        let tell = Box::new(tell);
        let wanted = Wanted::Answer(Box::new(prepared), Asker { number, tell });
        self.send(Command::Ask(wanted));
        Question {
            session: self.clone(),
            number,
            is_over: false,
        }
    }

    /// Hands a request over, whose events come as `request`; returns the number to cancel it by.
    pub(super) fn pass(
        &self,
        request: u64,
        of: Request,
        tell: Sender<std::result::Result<Event, Arc<Error>>>,
    ) -> u64 {
        let number = self.0.submitted.fetch_add(1, Relaxed);
        let guest = Guest {
            number,
            request,
            tell,
        };
        self.send(Command::Ask(Wanted::Events(Box::new(of), guest)));
        number
    }

    /// `tell` is told, soon, what is in flight; it is dropped where the engine has ended.
    pub fn status(&self, tell: impl FnOnce(EngineStatus) + Send + 'static) {
        self.send(Command::Status(Box::new(tell)));
    }

    /// Ends all questions, and the run; later questions have an error. Files of what is kept get their names where the run did what
    /// it was asked to, which is `whole`.
    ///
    /// # Errors
    /// The engine failed, or what is kept cannot be written.
    pub fn finish(&self, whole: bool) -> Result<()> {
        let (tell, ended) = channel();
        self.send(Command::Finish { whole, tell });
        ended.recv().unwrap_or_else(|_| Err(panicked()))
    }

    pub(super) fn send(&self, command: Command) {
        self.0.serving.send(command);
    }

    /// Asks one question, whose text comes as it is made.
    ///
    /// # Errors
    /// Fails as [`Session::prepare`] does.
    pub fn ask(&self, ask: &Ask) -> std::result::Result<Answer, RowError> {
        Ok(self.submit(self.prepare(ask)?))
    }
}

/// What is said where the thread behind the handles is gone.
pub(crate) fn panicked() -> Error {
    Error::Runtime("the thread of the session has panicked: this is a bug in tailgraph".into())
}

/// A question that was handed over. Dropping it cancels it.
pub struct Question {
    session: Session,
    number: u64,
    /// Nothing more comes of it.
    pub is_over: bool,
}

impl Question {
    /// Ends it early, wherever it is: its [`Output::End`] comes all the same.
    pub fn cancel(&self) {
        self.session.send(Command::Cancel(self.number));
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        if !self.is_over {
            self.cancel();
        }
    }
}

/// The answer to one question, as it comes: an iterator over the pieces of its text, each of which blocks until there is one.
/// None is empty, and an error comes last. Dropping it cancels the question.
pub struct Answer {
    question: Question,
    outputs: Receiver<Told>,
    /// Once it has ended.
    end: Option<std::result::Result<Outcome, Unanswered>>,
    /// The iterator has given its error, and is through.
    failure_told: bool,
}

impl Answer {
    /// The next token or the end, once it is there; `None` behind the end, or where the engine has failed, as
    /// [`Answer::outcome`] says.
    pub fn output(&mut self) -> Option<Output> {
        if self.end.is_some() {
            return None;
        }
        let failed = |error| Some(Err(Unanswered::Engine(error)));
        match self.outputs.recv() {
            Ok(Ok(output)) => {
                if let Output::End { outcome, .. } = &output {
                    self.end = Some(outcome.clone().map_err(Unanswered::Question));
                    self.question.is_over = true;
                }
                return Some(output);
            }
            Ok(Err(error)) => self.end = failed(error),
            Err(_) => self.end = failed(Arc::new(panicked())),
        }
        self.question.is_over = true;
        None
    }

    /// Ends the question early, wherever it is: its [`Output::End`] comes all the same.
    pub fn cancel(&self) {
        self.question.cancel();
    }

    /// The whole answer, once it has ended: this waits for that.
    ///
    /// # Errors
    /// The sequence or the engine failed.
    pub fn outcome(mut self) -> std::result::Result<Outcome, Unanswered> {
        loop {
            if let Some(end) = &self.end {
                return end.clone();
            }
            self.output();
        }
    }
}

impl Iterator for Answer {
    type Item = std::result::Result<String, Unanswered>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(output) = self.output() {
            match output {
                Output::Token { text, .. } | Output::End { text, .. } if !text.is_empty() => {
                    return Some(Ok(text));
                }
                _ => {}
            }
        }
        match &self.end {
            Some(Err(error)) if !self.failure_told => {
                self.failure_told = true;
                Some(Err(error.clone()))
            }
            _ => None,
        }
    }
}
