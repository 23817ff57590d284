//! The thread of a session: it owns the engine, hands it questions as there is room, and tells each asker what comes.

use super::opened::{Observe, Opened, load};
use super::sequences::{Change, Sequences, Taken};
use crate::error::{Error, Result};
use crate::io::answer::Outcome;
use crate::io::codec::Codec;
use crate::io::prepare::Prepared;
use crate::io::row::{Code, RowError};
use crate::runtime::{Engine, Event, TokenLogprobs, Waker};
use std::collections::VecDeque;
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
pub(super) type Told = std::result::Result<Output, Arc<Error>>;

pub(super) enum Command {
    Ask(Box<Prepared>, Asker),
    /// No more is wanted of the question of that number.
    Cancel(u64),
    /// Nobody is left to ask.
    End,
}

/// Who waits for an answer.
pub(super) struct Asker {
    pub number: u64,
    pub tell: Sender<Told>,
}

impl Asker {
    fn tell(&self, told: Told) {
        // One that is gone has cancelled.
        drop(self.tell.send(told));
    }

    fn refuse(&self, code: Code, message: &str) {
        let (text, outcome) = (String::new(), Err(code.error(message)));
        self.tell(Ok(Output::End { text, outcome }));
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
    /// Fails as [`load`] and [`Opened::engine`] do, and where the system refuses a thread.
    pub fn start(opened: Arc<Opened>, codec: Arc<Codec>) -> Result<Self> {
        let (commands, receive) = channel();
        let (tell, started) = channel();
        let serve = move || {
            let model = load(&opened.spec);
            let started = model.and_then(|model| opened.engine(&model, &None, Observe::NOTHING));
            let engine = match started {
                Ok(started) => started.engine,
                Err(error) => return drop(tell.send(Err(error))),
            };
            drop(tell.send(Ok(engine.waker())));
            let server = Server {
                engine,
                codec,
                waiting: VecDeque::new(),
                sequences: Sequences::default(),
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
    engine: Box<dyn Engine>,
    codec: Arc<Codec>,
    /// In the order in which they were asked.
    waiting: VecDeque<(Box<Prepared>, Asker)>,
    sequences: Sequences<Asker>,
}

impl Server {
    fn serve(mut self, commands: &Receiver<Command>) {
        let Err(error) = self.until_end(commands) else {
            return;
        };
        // Answers that were done when the engine failed are served.
        while let Ok(Some(event)) = self.engine.next_event(Duration::ZERO) {
            self.take(event);
        }
        let error = Arc::new(error);
        let waiting = self.waiting.drain(..).map(|(_, asker)| asker);
        for asker in waiting.chain(self.sequences.abandon()) {
            asker.tell(Err(error.clone()));
        }
        loop {
            match commands.recv() {
                Ok(Command::Ask(_, asker)) => asker.tell(Err(error.clone())),
                Ok(Command::Cancel(_)) => {}
                Ok(Command::End) | Err(_) => return,
            }
        }
    }

    fn until_end(&mut self, commands: &Receiver<Command>) -> Result<()> {
        loop {
            let idle = self.waiting.is_empty() && self.sequences.is_empty();
            let mut next = if idle {
                Some(commands.recv().unwrap_or(Command::End))
            } else {
                commands.try_recv().ok()
            };
            while let Some(command) = next {
                match command {
                    Command::Ask(prepared, asker) => self.waiting.push_back((prepared, asker)),
                    Command::Cancel(number) => self.cancel(number),
                    Command::End => return Ok(()),
                }
                next = commands.try_recv().ok();
            }
            self.submit()?;
            let cancels_left = self.sequences.pass_cancels(&mut *self.engine);
            let wait = if cancels_left || !self.waiting.is_empty() {
                RETRY
            } else if self.sequences.is_empty() {
                continue;
            } else {
                Duration::MAX
            };
            if let Some(event) = self.engine.next_event(wait)? {
                self.take(event);
            }
        }
    }

    /// Hands questions to the engine while it has room.
    fn submit(&mut self) -> Result<()> {
        while let Some((prepared, asker)) = self.waiting.pop_front() {
            match self.engine.try_submit(&prepared.request) {
                Ok(Some(request)) => {
                    self.sequences.enter(request, &prepared, &self.codec, asker);
                }
                Err(Error::Usage(message)) => asker.refuse(Code::InvalidRequest, &message),
                full_or_failed => {
                    self.waiting.push_front((prepared, asker));
                    return full_or_failed.map(drop);
                }
            }
        }
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        let mut waiting = self.waiting.iter();
        let place = waiting.position(|(_, asker)| asker.number == number);
        match place.and_then(|place| self.waiting.remove(place)) {
            Some((_, asker)) => asker.refuse(Code::Cancelled, "cancelled before its first token"),
            None => self.sequences.cancel_where(|asker| asker.number == number),
        }
    }

    fn take(&mut self, event: Event) {
        match self.sequences.take(event) {
            None
            | Some(Change::Token {
                taken: Taken::Dropped,
                ..
            }) => {}
            Some(Change::Token { with, live, .. }) => {
                let Some(id) = live.last_id() else { return };
                let output = Output::Token {
                    id,
                    logprobs: live.last_logprobs().cloned(),
                    text: live.certain(),
                };
                with.tell(Ok(output));
            }
            Some(Change::End {
                with,
                reason,
                live,
                timing,
            }) => {
                let told = live.told_bytes();
                let outcome = live.end(reason, timing).outcome;
                let rest = outcome.iter().map(|outcome| &outcome.text[told..]);
                let text = rest.collect();
                with.tell(Ok(Output::End { text, outcome }));
            }
        }
    }
}
