//! [`Session`]: questions in, their texts out as they come.

use super::any_engine::AnyEngine;
use super::job::{Job, Summary};
use super::opened::Opened;
use super::recording::Keep;
use super::sequences::{Change, Sequences, Taken};
use super::serving::Serving;
use super::spec::RunSpec;
use super::texts::Texts;
use crate::error::{Error, Result};
use crate::io::answer::Outcome;
use crate::io::codec::Codec;
use crate::io::prepare::{Prepared, Rules, prepare};
use crate::io::row::{Ask, RowError};
use crate::plan::StepKind;
use crate::runtime::{TokenLogprobs, Until};
use crate::text::Threads;
use crate::trace::About;
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How often a session that waits looks whether it can send what it has to.
const POLL: Duration = Duration::from_millis(10);

/// A model with its tokenizer, chat template and running engine.
///
/// Questions are independent of each other: as many run at once as the engine has slots, the rest wait in the order of
/// their submission. All is done by the thread that calls; the engine works meanwhile. Dropping a session ends it.
///
/// Several questions at once:
/// ```
/// use std::time::Duration;
/// use tailgraph::io::row::{Ask, Options};
/// use tailgraph::session::{Output, RunSpec, Session};
///
/// let mut spec = RunSpec::new("random:tiny")?;
/// spec.defaults = Options { max_new_tokens: Some(4), ..Options::default() };
/// let mut session = Session::open(spec)?;
/// let mut left = 2;
/// for text in ["one", "another"] {
///     let prepared = session.prepare(&Ask::text(text)).expect("a prompt that fits");
///     session.submit(&prepared)?.expect("room for two");
/// }
/// while left > 0 {
///     match session.next(Duration::from_secs(10))? {
///         Some(Output::Token { request, text, .. }) => print!("[{request}: {text}]"),
///         Some(Output::End { outcome, .. }) => {
///             assert_eq!(outcome.expect("an answer").output_ids.len(), 4);
///             left -= 1;
///         }
///         None => panic!("no token in ten seconds"),
///     }
/// }
/// # Ok::<(), tailgraph::Error>(())
/// ```
pub struct Session {
    serving: Serving,
    sequences: Sequences<u64>,
    /// What came while an [`Answer`] waited for its own.
    held: VecDeque<Output>,
    /// Requests whose [`Answer`] is gone, until they have ended.
    unheard: HashSet<u64>,
    /// Questions prepared so far.
    prepared: u64,
    texts: Texts,
    opened: Opened,
}

/// What a session tells of a question.
#[derive(Debug, Clone, PartialEq)]
pub enum Output {
    Token {
        request: u64,
        id: u32,
        /// Where the question asked for them.
        logprobs: Option<TokenLogprobs>,
        /// What has become certain of the text; often of earlier tokens too, and empty where nothing has.
        text: String,
    },
    /// Comes once, as the last of its request.
    End {
        request: u64,
        /// The rest of the text.
        text: String,
        /// The whole answer, or why there is none. Tokens that came after a stop string, before that was certain, are not in
        /// it.
        outcome: std::result::Result<Outcome, RowError>,
    },
}

impl Output {
    pub fn request(&self) -> u64 {
        match self {
            Self::Token { request, .. } | Self::End { request, .. } => *request,
        }
    }
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Unanswered {
    /// It cannot be answered, or its sequence failed; others are served all the same.
    #[error("{0}")]
    Question(RowError),
    /// The engine failed, and with it every question.
    #[error(transparent)]
    Engine(#[from] Error),
}

impl Session {
    /// Opens the model and its device, loads the weights and starts the engine. Warnings about the model's files go to
    /// standard error.
    ///
    /// # Errors
    /// [`Error::Usage`] for a device, a size or a combination that cannot be, named as the command line names it;
    /// [`Error::File`] and [`Error::Io`] for the model's files; [`Error::Memory`] with the arithmetic where there is too
    /// little; [`Error::Runtime`] for what the machine or its driver refuses.
    pub fn open(spec: RunSpec) -> Result<Self> {
        let mut opened = Opened::new(spec, false)?;
        opened.only(&[StepKind::Decode, StepKind::Mixed]);
        let texts = Texts::of(&opened)?;
        Self::start(opened, texts, Keep::default())
    }

    /// The second half of [`Session::open`], for whoever has something to do before the weights are loaded. The run is
    /// kept as `keep` says.
    ///
    /// # Errors
    /// As there; what is kept cannot be written.
    pub fn start(opened: Opened, texts: Texts, keep: Keep) -> Result<Self> {
        Ok(Self {
            serving: opened.start(&None, keep)?,
            sequences: Sequences::default(),
            held: VecDeque::new(),
            unheard: HashSet::new(),
            prepared: 0,
            texts,
            opened,
        })
    }

    /// The model's configuration, plan and sizes.
    pub fn opened(&self) -> &Opened {
        &self.opened
    }

    /// The tokenizer and the chat template, which other threads may use too. They have no deadline of their own.
    pub fn codec(&self) -> Arc<Codec> {
        self.texts.codec.clone()
    }

    /// Where text work is done, within the run's deadline.
    pub fn threads(&self) -> Threads {
        self.texts.threads.clone()
    }

    /// What questions are checked against, and what they fall back to: options of the run, then generation_config.json's.
    pub fn rules(&self) -> &Rules {
        &self.texts.rules
    }

    /// The question as tokens, with all its options. Questions are numbered as they are prepared, from 0; the number and
    /// the run's seed key the sampling of one that has no seed of its own.
    ///
    /// # Errors
    /// What is wrong with the question, its options or its length; its text is not tokens by the deadline.
    pub fn prepare(&mut self, ask: &Ask) -> std::result::Result<Prepared, RowError> {
        let number = self.prepared;
        self.prepared += 1;
        let Texts {
            rules,
            codec,
            threads,
        } = &self.texts;
        if !ask.has_text() {
            return prepare(rules, codec, number, ask);
        }
        let (rules, codec, ask) = (rules.clone(), codec.clone(), ask.clone());
        threads.run(move || prepare(&rules, &codec, number, &ask))?
    }

    /// Hands a question to the engine; its request number, from 0. `None`: there is no room, take what comes out first.
    ///
    /// # Errors
    /// [`Error::Runtime`] once the engine failed; what is kept of the run cannot be written.
    pub fn submit(&mut self, prepared: &Prepared) -> Result<Option<u64>> {
        let Some(request) = self.serving.try_submit(&prepared.request)? else {
            return Ok(None);
        };
        self.sequences
            .enter(request, prepared, &self.texts.codec, request);
        Ok(Some(request))
    }

    /// Ends a request early, wherever it is: its [`Output::End`] comes all the same. One that has ended is left alone.
    pub fn cancel(&mut self, request: u64) {
        self.sequences.cancel(request);
        self.sequences.pass_cancels(&mut self.serving);
    }

    /// The next output of any request; `None`: nothing came within `wait`.
    ///
    /// # Errors
    /// [`Error::Runtime`] once the engine failed and every event before that is out.
    pub fn next(&mut self, wait: Duration) -> Result<Option<Output>> {
        match self.held.pop_front() {
            Some(output) => Ok(Some(output)),
            None => self.next_new(wait),
        }
    }

    fn next_new(&mut self, wait: Duration) -> Result<Option<Output>> {
        let until = Until::after(wait);
        loop {
            self.sequences.pass_cancels(&mut self.serving);
            let left = until.left();
            let Some(event) = self.serving.next_event(left.min(POLL))? else {
                match left.is_zero() {
                    true => return Ok(None),
                    false => continue,
                }
            };
            let request = event.request();
            let Some(change) = self.sequences.take(event) else {
                continue;
            };
            if let Some(output) = told(request, change) {
                let ended = matches!(output, Output::End { .. });
                let unheard = match ended {
                    true => self.unheard.remove(&request),
                    false => self.unheard.contains(&request),
                };
                if !unheard {
                    return Ok(Some(output));
                }
            }
        }
    }

    /// Asks one question, whose text comes as it is made. Other requests go on meanwhile.
    ///
    /// # Errors
    /// The question cannot be answered, or the engine failed.
    pub fn ask(&mut self, ask: &Ask) -> std::result::Result<Answer<'_>, Unanswered> {
        let prepared = self.prepare(ask).map_err(Unanswered::Question)?;
        loop {
            if let Some(request) = self.submit(&prepared)? {
                return Ok(Answer {
                    session: self,
                    request,
                    end: None,
                    failure_told: false,
                });
            }
            if let Some(output) = self.next_new(POLL)? {
                self.held.push_back(output);
            }
        }
    }

    /// Serves the rows of `job` until all have their answers.
    ///
    /// # Errors
    /// Those of the job's output; [`Error::Usage`] where requests of [`Session::submit`] have not ended.
    pub fn run(&mut self, job: Job<'_>) -> Result<Summary> {
        if !self.sequences.is_empty() {
            return Err(Error::Usage(format!(
                "a job: found {} requests that have not ended, expected none beside it",
                self.sequences.len()
            )));
        }
        job.run(&mut self.serving)
    }

    /// Ends the engine once every request has ended, and with it what is kept of its run: see [`Serving::finish`].
    ///
    /// # Errors
    /// As there.
    pub fn finish(self, whole: bool) -> Result<Option<About>> {
        self.serving.finish(whole)
    }
}

/// `None`: it is nothing that is told.
fn told(request: u64, change: Change<'_, u64>) -> Option<Output> {
    match change {
        Change::Token {
            taken: Taken::Dropped,
            ..
        } => None,
        Change::Token { live, .. } => Some(Output::Token {
            request,
            id: live.last_id()?,
            logprobs: live.last_logprobs().cloned(),
            text: live.certain(),
        }),
        Change::End {
            reason,
            live,
            timing,
            ..
        } => {
            let told = live.told_bytes();
            let outcome = live.end(reason, timing).outcome;
            let rest = outcome.iter().map(|outcome| &outcome.text[told..]);
            Some(Output::End {
                request,
                text: rest.collect(),
                outcome,
            })
        }
    }
}

/// The text of one question, piece by piece. Dropping it cancels the request.
pub struct Answer<'s> {
    session: &'s mut Session,
    request: u64,
    /// Once it has ended.
    end: Option<std::result::Result<Outcome, RowError>>,
    /// The iterator has given its error, and is through.
    failure_told: bool,
}

impl Answer<'_> {
    /// The whole answer, once it has ended: this waits for that.
    ///
    /// # Errors
    /// The sequence or the engine failed.
    pub fn outcome(mut self) -> std::result::Result<Outcome, Unanswered> {
        loop {
            match &self.end {
                Some(end) => return end.clone().map_err(Unanswered::Question),
                None => self.piece()?,
            };
        }
    }

    /// The next piece of one that has not ended; may be empty.
    fn piece(&mut self) -> Result<String> {
        loop {
            match self.session.next_new(POLL)? {
                None => {}
                Some(output) if output.request() != self.request => {
                    self.session.held.push_back(output);
                }
                Some(Output::Token { text, .. }) => return Ok(text),
                Some(Output::End { text, outcome, .. }) => {
                    self.end = Some(outcome);
                    return Ok(text);
                }
            }
        }
    }

    /// What the iterator ends with.
    fn failure(&mut self, error: Unanswered) -> Option<std::result::Result<String, Unanswered>> {
        let told = std::mem::replace(&mut self.failure_told, true);
        (!told).then_some(Err(error))
    }
}

impl Iterator for Answer<'_> {
    type Item = std::result::Result<String, Unanswered>;

    /// The next piece of the text, never an empty one. An error comes last.
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            match &self.end {
                Some(Ok(_)) => return None,
                Some(Err(error)) => {
                    let error = Unanswered::Question(error.clone());
                    return self.failure(error);
                }
                None => match self.piece() {
                    Ok(text) if text.is_empty() => {}
                    Ok(text) => return Some(Ok(text)),
                    Err(error) => return self.failure(error.into()),
                },
            }
        }
    }
}

impl Drop for Answer<'_> {
    fn drop(&mut self) {
        if self.end.is_none() {
            self.session.unheard.insert(self.request);
            self.session.cancel(self.request);
        }
    }
}
