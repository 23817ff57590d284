//! The thread of a session: it owns the engine, hands it questions as there is room, and tells each asker what comes.

use super::echoing::Echoing;
use super::job::EVENTS_A_TURN;
use super::opened::Opened;
use super::prefixes::Prefixes;
use super::recording::Keep;
use super::sequences::{Change, Sequences, Taken};
use crate::error::{Error, Result};
use crate::io::answer::Outcome;
use crate::io::codec::Codec;
use crate::io::echo::Echo;
use crate::io::prepare::Prepared;
use crate::io::row::{Code, RowError};
use crate::runtime::{
    EndReason, Engine, EngineStatus, Event, Request, Timing, TokenLogprobs, Waker,
};
use std::collections::{HashMap, VecDeque};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// When the engine had no room for a question or a cancel: the scheduler's next turn makes some.
const RETRY: Duration = Duration::from_millis(1);

/// What comes of a question.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Output {
    /// The prompt, where the answer repeats it; comes once, before all else.
    Prompt(Box<Echo>),
    Token {
        id: u32,
        /// Where the question asked for them.
        logprobs: Option<TokenLogprobs>,
        /// What has become certain of the text; often of earlier tokens too, and empty where nothing has.
        text: String,
    },
    /// Comes once, as the last.
    End {
        /// The rest of the text.
        text: String,
        /// The whole answer, or why there is none. Tokens that came after a stop string, before that was certain, are not in
        /// it.
        outcome: std::result::Result<Outcome, RowError>,
    },
}

/// An output, or why no more come.
pub type Told = std::result::Result<Output, Arc<Error>>;

pub(super) enum Command {
    Ask(Wanted),
    /// No more is wanted of the question of that number.
    Cancel(u64),
    Status(Box<dyn FnOnce(EngineStatus) + Send>),
    /// All questions end now, and the run with them, which did what it was asked to if `whole`.
    Finish {
        whole: bool,
        tell: Sender<Result<()>>,
    },
    /// Nobody is left to ask.
    End,
}

/// A question, and who waits for its answer.
pub(super) enum Wanted {
    Answer(Box<Prepared>, Asker),
    Events(Box<Request>, Guest),
}

/// Who waits for an answer.
pub(super) struct Asker {
    pub number: u64,
    pub tell: Box<dyn FnMut(Told) + Send>,
}

/// Who waits for the events of a request, which are what it makes of them.
pub(super) struct Guest {
    pub number: u64,
    /// The guest's own number of the request.
    pub request: u64,
    pub tell: Sender<std::result::Result<Event, Arc<Error>>>,
}

impl Asker {
    fn refuse(&mut self, code: Code, message: &str) {
        let (text, outcome) = (String::new(), Err(code.error(message)));
        (self.tell)(Ok(Output::End { text, outcome }));
    }
}

impl Guest {
    /// One that is gone has cancelled.
    fn tell(&self, mut event: Event) {
        match &mut event {
            Event::Token { request, .. } | Event::End { request, .. } => *request = self.request,
        }
        drop(self.tell.send(Ok(event)));
    }

    fn end(&self, reason: EndReason) {
        let (request, tokens, timing) = (self.request, 0, Timing::default());
        self.tell(Event::End {
            request,
            reason,
            tokens,
            timing,
        });
    }
}

impl Wanted {
    fn request(&mut self) -> &mut Request {
        match self {
            Self::Answer(prepared, _) => &mut prepared.request,
            Self::Events(request, _) => request,
        }
    }

    fn number(&self) -> u64 {
        match self {
            Self::Answer(_, Asker { number, .. }) | Self::Events(_, Guest { number, .. }) => {
                *number
            }
        }
    }

    fn fail(self, error: Arc<Error>) {
        match self {
            Self::Answer(_, mut asker) => (asker.tell)(Err(error)),
            Self::Events(_, guest) => drop(guest.tell.send(Err(error))),
        }
    }
}

/// The thread's handle. Dropping it ends the thread and the engine.
pub(super) struct Serving {
    commands: Sender<Command>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Loads the weights and starts the engine, on the thread that will use it.
    ///
    /// # Errors
    /// Fails as [`Opened::start`] does, and where the system refuses a thread.
    pub fn start(opened: Arc<Opened>, codec: Arc<Codec>, keep: Keep) -> Result<Self> {
        let (commands, receive) = channel();
        let (tell, started) = channel();
        let serve = move || {
            let engine = match Echoing::start(&opened, keep) {
                Ok(engine) => engine,
                Err(error) => return drop(tell.send(Err(error))),
            };
            drop(tell.send(Ok(engine.waker())));
            let server = Server {
                engine,
                codec,
                prefixes: Prefixes::of(&opened.options),
                waiting: VecDeque::new(),
                sequences: Sequences::default(),
                guests: HashMap::new(),
                cancels: Vec::new(),
            };
            server.serve(&receive);
        };
        let thread = Builder::new().name("session".to_owned()).spawn(serve);
        let thread = thread.map_err(|error| Error::thread(&error))?;
        let failed = match started.recv() {
            Ok(Ok(waker)) => {
                return Ok(Self {
                    commands,
                    waker,
                    thread: Some(thread),
                });
            }
            Ok(Err(error)) => Some(error),
            Err(_) => None,
        };
        // What it has of the device goes before another try.
        match (thread.join(), failed) {
            (Err(panic), _) => resume_unwind(panic),
            (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => unreachable!("it tells how it started before it ends"),
        }
    }

    pub fn send(&self, command: Command) {
        // A thread that has panicked tells nobody anything, which its askers find out.
        drop(self.commands.send(command));
        self.waker.wake();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.send(Command::End);
        if let Some(thread) = self.thread.take() {
            // A panic has been reported where it was.
            drop(thread.join());
        }
    }
}

struct Server {
    engine: Echoing,
    codec: Arc<Codec>,
    prefixes: Prefixes,
    /// In the order in which they were asked.
    waiting: VecDeque<Wanted>,
    sequences: Sequences<Asker>,
    /// Those whose requests the engine has, by its numbers of these.
    guests: HashMap<u64, Guest>,
    /// Requests of guests to cancel as soon as the engine takes it.
    cancels: Vec<u64>,
}

/// Why the loop ends.
enum Ended {
    NobodyAsks,
    Asked {
        whole: bool,
        tell: Sender<Result<()>>,
    },
}

impl Server {
    fn serve(mut self, commands: &Receiver<Command>) {
        let error = match self.until_end(commands) {
            Ok(Ended::NobodyAsks) => return,
            Ok(Ended::Asked { whole, tell }) => {
                drop(tell.send(self.finish(whole)));
                Error::Runtime("the session has ended".into())
            }
            Err(error) => {
                let error = Arc::new(error);
                self.fail(&error);
                return refuse_all(commands, &error);
            }
        };
        refuse_all(commands, &Arc::new(error));
    }

    /// The engine failed.
    fn fail(&mut self, error: &Arc<Error>) {
        // Answers that were done by then are served.
        while let Ok(Some(event)) = self.engine.next_event(Duration::ZERO) {
            self.take(event);
        }
        for wanted in self.waiting.drain(..) {
            wanted.fail(error.clone());
        }
        for mut asker in self.sequences.abandon() {
            (asker.tell)(Err(error.clone()));
        }
        for (_, guest) in self.guests.drain() {
            drop(guest.tell.send(Err(error.clone())));
        }
    }

    /// Ends all questions, and then the run.
    fn finish(mut self, whole: bool) -> Result<()> {
        for wanted in std::mem::take(&mut self.waiting) {
            refuse(wanted);
        }
        self.sequences.cancel_all();
        self.cancels.extend(self.guests.keys());
        while !self.is_idle() {
            let wait = if self.pass_cancels() {
                RETRY
            } else {
                Duration::MAX
            };
            self.take_events(wait)?;
        }
        self.engine.finish(whole).map(drop)
    }

    fn is_idle(&self) -> bool {
        self.sequences.is_empty() && self.guests.is_empty()
    }

    /// Whether any are left that the engine has no room for.
    fn pass_cancels(&mut self) -> bool {
        self.cancels.retain(|&request| !self.engine.cancel(request));
        self.sequences.pass_cancels(&mut self.engine) || !self.cancels.is_empty()
    }

    fn until_end(&mut self, commands: &Receiver<Command>) -> Result<Ended> {
        loop {
            let idle = self.waiting.is_empty() && self.is_idle();
            let mut next = if idle {
                Some(commands.recv().unwrap_or(Command::End))
            } else {
                commands.try_recv().ok()
            };
            while let Some(command) = next {
                match command {
                    Command::Ask(mut wanted) => {
                        self.prefixes.expect(&wanted.request().prompt, 1);
                        self.waiting.push_back(wanted);
                    }
                    Command::Cancel(number) => self.cancel(number),
                    Command::Status(tell) => tell(self.status()),
                    Command::Finish { whole, tell } => return Ok(Ended::Asked { whole, tell }),
                    Command::End => return Ok(Ended::NobodyAsks),
                }
                next = commands.try_recv().ok();
            }
            self.submit()?;
            let wait = if self.pass_cancels() || !self.waiting.is_empty() {
                RETRY
            } else if self.is_idle() {
                continue;
            } else {
                Duration::MAX
            };
            self.take_events(wait)?;
        }
    }

    /// Takes the events that are there; waits for the first.
    fn take_events(&mut self, mut wait: Duration) -> Result<()> {
        for _ in 0..EVENTS_A_TURN {
            let Some(event) = self.engine.next_event(wait)? else {
                break;
            };
            wait = Duration::ZERO;
            self.take(event);
        }
        Ok(())
    }

    fn status(&self) -> EngineStatus {
        let status = self.engine.status();
        // The engine counts a request once its scheduler has seen it.
        let has = self.sequences.len() + self.guests.len() + self.waiting.len();
        EngineStatus {
            waiting: (has as u32).saturating_sub(status.running),
            ..status
        }
    }

    /// Hands over what there is room for.
    fn submit(&mut self) -> Result<()> {
        while let Some(mut wanted) = self.waiting.pop_front() {
            let request = wanted.request();
            request.borders = self.prefixes.borders(&request.prompt);
            match (self.engine.try_submit(request), &mut wanted) {
                (Ok(Some(request)), _) => match wanted {
                    Wanted::Answer(prepared, asker) => {
                        self.sequences.enter(request, &prepared, &self.codec, asker);
                    }
                    Wanted::Events(_, guest) => drop(self.guests.insert(request, guest)),
                },
                (Err(Error::Usage(message)), Wanted::Answer(_, asker)) => {
                    asker.refuse(Code::InvalidRequest, &message);
                }
                (Err(Error::Usage(_)), Wanted::Events(_, guest)) => guest.end(EndReason::Refused),
                (full_or_failed, _) => {
                    self.waiting.push_front(wanted);
                    return full_or_failed.map(drop);
                }
            }
        }
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        let mut waiting = self.waiting.iter();
        let place = waiting.position(|wanted| wanted.number() == number);
        if let Some(wanted) = place.and_then(|place| self.waiting.remove(place)) {
            return refuse(wanted);
        }
        self.sequences.cancel_where(|asker| asker.number == number);
        let mut guests = self.guests.iter();
        let guest = guests.find(|(_, guest)| guest.number == number);
        self.cancels.extend(guest.map(|(request, _)| *request));
    }

    fn take(&mut self, event: Event) {
        if let Some(guest) = self.guests.get(&event.request()) {
            let request = event.request();
            let is_end = matches!(event, Event::End { .. });
            guest.tell(event);
            if is_end {
                self.guests.remove(&request);
            }
            return;
        }
        match self.sequences.take(event) {
            None
            | Some(Change::Token {
                taken: Taken::Dropped | Taken::OfPrompt,
                ..
            }) => {}
            Some(Change::Token { with, live, .. }) => {
                if let Some(echo) = live.echo() {
                    (with.tell)(Ok(Output::Prompt(echo)));
                }
                let Some(id) = live.last_id() else { return };
                let output = Output::Token {
                    id,
                    logprobs: live.last_logprobs().cloned(),
                    text: live.certain(),
                };
                (with.tell)(Ok(output));
            }
            Some(Change::End {
                mut with,
                reason,
                mut live,
                timing,
            }) => {
                if let Some(echo) = live.echo() {
                    (with.tell)(Ok(Output::Prompt(echo)));
                }
                let told = live.told_bytes();
                let outcome = live.end(reason, timing).outcome;
                let rest = outcome.iter().map(|outcome| &outcome.text[told..]);
                let text = rest.collect();
                (with.tell)(Ok(Output::End { text, outcome }));
            }
        }
    }
}

/// No more is wanted of a question that the engine does not have.
fn refuse(wanted: Wanted) {
    match wanted {
        Wanted::Answer(_, mut asker) => {
            asker.refuse(Code::Cancelled, "cancelled before its first token");
        }
        Wanted::Events(_, guest) => guest.end(EndReason::Cancelled),
    }
}

/// Until nobody asks any more.
fn refuse_all(commands: &Receiver<Command>, error: &Arc<Error>) {
    loop {
        match commands.recv() {
            Ok(Command::Ask(wanted)) => wanted.fail(error.clone()),
            Ok(Command::Cancel(_) | Command::Status(_)) => {}
            Ok(Command::Finish { tell, .. }) => {
                drop(tell.send(Err(Error::Runtime(error.to_string()))));
            }
            Ok(Command::End) | Err(_) => return,
        }
    }
}
