//! Puts requests through an engine, so many at a time, and holds every event to what was asked.

use super::load::{Ask, Fate};
use super::recorded::Recording;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tailgraph::runtime::options::EngineShape;
use tailgraph::runtime::{
    EndReason, Engine, Event, Logits, Request, Sampling, SingleEngine, Timing, TokenLogprobs,
};
use tailgraph::sys::abi::{TG_ACTION_DONE, tg_trace};
use tailgraph::{Error, Result};

/// Longer than any step or start takes; an engine that is quiet for so long has lost something.
const PATIENCE: Duration = Duration::from_secs(60);
/// A deadline ends a request with the next turn; a turn takes no longer than this.
const LATE: Duration = Duration::from_secs(1);

/// How requests ended, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Tally {
    pub requests: u64,
    pub stop: u64,
    pub length: u64,
    pub cancelled: u64,
    pub timeout: u64,
    pub refused: u64,
    pub tokens: u64,
    /// Running at once, at most.
    pub most_running: u32,
}

/// A request that has ended as it should.
#[derive(Debug, Clone)]
pub struct Ended {
    pub ask: Ask,
    pub reason: EndReason,
    pub tokens: Vec<u32>,
    pub logprobs: Vec<TokenLogprobs>,
}

struct InFlight {
    ask: Ask,
    cancelled: bool,
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
}

/// An engine of which this is the only user.
pub struct Driver {
    engine: SingleEngine,
    /// All pages.
    pages: u32,
    vocab_size: u32,
    running: HashMap<u64, InFlight>,
    /// Kept where the engine keeps its turns.
    recording: Option<Recording>,
}

fn wrong(message: String) -> Error {
    Error::Runtime(message)
}

impl Driver {
    /// Launches the engine, whose pool has `pages` pages; what it records is kept.
    pub fn new(mut engine: SingleEngine, pages: u32, vocab_size: u32) -> Result<Self> {
        let options = engine.shape().options;
        engine.watch(PATIENCE);
        engine.launch()?;
        Ok(Self {
            engine,
            pages,
            vocab_size,
            running: HashMap::new(),
            recording: options.record.then(|| Recording {
                page_tokens: options.page_tokens,
                ..Recording::default()
            }),
        })
    }

    pub fn shape(&self) -> &EngineShape {
        self.engine.shape()
    }

    /// Ends the engine, in which nothing runs; what it did since the beginning, where it was recorded.
    ///
    /// # Errors
    /// The last turn's record does not come.
    pub fn finish(mut self) -> Result<Option<Recording>> {
        self.engine.drain();
        let start = Instant::now();
        let is_last = |turn: &tg_trace| turn.outcome.action == TG_ACTION_DONE;
        loop {
            self.turns();
            let turns = self.recording.as_ref().map(|recording| &recording.turns);
            if turns.is_none_or(|turns| turns.last().is_some_and(is_last)) {
                return Ok(self.recording);
            }
            if start.elapsed() > LATE {
                return Err(wrong(format!(
                    "a drained engine left no record of its last turn for {LATE:?}"
                )));
            }
        }
    }

    /// Trace records are to be read as events are, where they are kept.
    fn turns(&mut self) {
        if let Some(recording) = &mut self.recording {
            recording
                .turns
                .extend(std::iter::from_fn(|| self.engine.next_turn()));
        }
    }

    /// Runs all of `asks`, at most `at_once` of them in the engine, waiting ones included, and gives each to `ended`.
    ///
    /// # Errors
    /// The first thing that is not as it was asked, or pages that are not free at the end.
    pub fn run(
        &mut self,
        asks: &mut dyn Iterator<Item = Ask>,
        at_once: usize,
        ended: &mut dyn FnMut(Ended) -> Result<()>,
    ) -> Result<Tally> {
        let mut tally = Tally::default();
        let mut next = asks.next();
        let mut cancels = Vec::new();
        let mut heard = Instant::now();
        while next.is_some() || !self.running.is_empty() {
            while self.running.len() < at_once
                && let Some(ask) = &next
                && let Some(request) = self.engine.try_submit(&ask.request)?
            {
                if ask.fate == (Fate::Cancel { after: 0 }) {
                    cancels.push(request);
                }
                if let Some(recording) = &mut self.recording {
                    recording.requests.push(ask.request.clone());
                }
                let ask = std::mem::replace(&mut next, asks.next());
                self.begin(request, ask)?;
            }
            cancels.retain(|&request| {
                let entry = self.running.get_mut(&request);
                entry.is_some_and(|entry| {
                    entry.cancelled = self.engine.cancel(request);
                    if let (true, Some(recording)) = (entry.cancelled, &mut self.recording) {
                        recording.cancels.push(request);
                    }
                    !entry.cancelled
                })
            });
            self.turns();
            let event = self.engine.next_event(Duration::from_millis(20))?;
            if let (Some(event), Some(recording)) = (&event, &mut self.recording) {
                recording.events.push(event.clone());
            }
            match event {
                None if heard.elapsed() > PATIENCE => {
                    return Err(wrong(format!(
                        "no event for {PATIENCE:?} with {} requests in the engine",
                        self.running.len()
                    )));
                }
                None => continue,
                Some(Event::Token {
                    request,
                    token,
                    index,
                    logprobs,
                }) => {
                    if self.token(request, token, index, logprobs)? {
                        cancels.push(request);
                    }
                }
                Some(Event::End {
                    request,
                    reason,
                    tokens,
                    timing,
                }) => {
                    let entry = self.running.remove(&request);
                    let entry = entry.ok_or_else(|| {
                        wrong(format!("request {request} ended and was not running"))
                    })?;
                    check(&entry, reason, tokens, &timing)?;
                    tally.count(reason, u64::from(tokens));
                    ended(Ended {
                        ask: entry.ask,
                        reason,
                        tokens: entry.tokens,
                        logprobs: entry.logprobs,
                    })?;
                }
            }
            heard = Instant::now();
            tally.most_running = tally.most_running.max(self.engine.status().running);
        }
        self.all_is_free()?;
        Ok(tally)
    }

    /// Has the last logits of a prompt delivered to the engine's sink.
    ///
    /// # Errors
    /// The engine's.
    pub fn score_last(&mut self, prompt: &[u32]) -> Result<()> {
        let request = Request {
            prompt: prompt.to_vec(),
            max_new_tokens: 0,
            unlimited: false,
            stop_ids: Vec::new(),
            min_new_tokens: 0,
            biases: Vec::new(),
            borders: Vec::new(),
            followers: 0,
            sampling: Sampling::default(),
            timeout: None,
            logits: Logits::Last,
        };
        let ask = Ask {
            number: 0,
            request,
            fate: Fate::Whole,
        };
        self.run(&mut std::iter::once(ask), 1, &mut |_| Ok(()))?;
        Ok(())
    }

    fn begin(&mut self, request: u64, ask: Option<Ask>) -> Result<()> {
        let ask = ask.ok_or_else(|| wrong("nothing was asked".into()))?;
        let entry = InFlight {
            ask,
            cancelled: false,
            tokens: Vec::new(),
            logprobs: Vec::new(),
        };
        match self.running.insert(request, entry) {
            None => Ok(()),
            Some(_) => Err(wrong(format!("two requests are {request}"))),
        }
    }

    /// Takes a token; whether it is the one after which the request is to be cancelled.
    fn token(
        &mut self,
        request: u64,
        token: u32,
        index: u32,
        logprobs: Option<TokenLogprobs>,
    ) -> Result<bool> {
        let entry = self.running.get_mut(&request).ok_or_else(|| {
            wrong(format!(
                "a token of request {request}, which was not running"
            ))
        })?;
        let asked = entry.ask.request.sampling.logprobs;
        let number = entry.ask.number;
        if index as usize != entry.tokens.len() {
            return Err(wrong(format!(
                "request {number}: token {index} came after {} tokens",
                entry.tokens.len()
            )));
        }
        if token >= self.vocab_size {
            return Err(wrong(format!(
                "request {number}: token {token} of a vocabulary of {}",
                self.vocab_size
            )));
        }
        if asked != logprobs.as_ref().map(|l| l.top.len() as u32) {
            return Err(wrong(format!(
                "request {number}: asked for logprobs {asked:?}, found {logprobs:?}"
            )));
        }
        entry.tokens.push(token);
        entry.logprobs.extend(logprobs);
        Ok(entry.ask.fate == (Fate::Cancel { after: index + 1 }))
    }

    /// Nothing runs, so every slot and every page is free.
    fn all_is_free(&mut self) -> Result<()> {
        let start = Instant::now();
        loop {
            let status = self.engine.status();
            self.turns();
            if (status.running, status.waiting, status.free_pages) == (0, 0, self.pages) {
                return Ok(());
            }
            if start.elapsed() > LATE {
                return Err(wrong(format!(
                    "all requests have ended, and the engine says {status:?}, expected {} free pages",
                    self.pages
                )));
            }
            if let Some(event) = self.engine.next_event(Duration::from_millis(1))? {
                return Err(wrong(format!(
                    "all requests have ended, and here is {event:?}"
                )));
            }
        }
    }
}

/// Whether the end is one that was asked for.
fn check(entry: &InFlight, reason: EndReason, tokens: u32, timing: &Timing) -> Result<()> {
    let request = &entry.ask.request;
    let all = request.max_new_tokens;
    let stops = |token: &u32| request.stop_ids.contains(token);
    let stopped = entry.tokens.last().is_some_and(stops);
    let before = &entry.tokens[..entry.tokens.len().saturating_sub(1)];
    let right = tokens as usize == entry.tokens.len()
        && !before.iter().any(stops)
        && match (reason, entry.ask.fate) {
            (EndReason::Refused, fate) => fate == Fate::TooLarge && tokens == 0,
            (_, Fate::TooLarge) => false,
            (EndReason::Cancelled, fate) => {
                let Fate::Cancel { after } = fate else {
                    return Err(unasked(entry, reason, tokens, timing));
                };
                entry.cancelled && tokens >= after && tokens < all && !stopped
            }
            (EndReason::Timeout, Fate::Deadline(timeout)) => {
                timing.total >= timeout && tokens < all && !stopped
            }
            (EndReason::Stop | EndReason::Length, fate) => {
                let in_time = match fate {
                    Fate::Deadline(timeout) => timing.total < timeout + LATE,
                    _ => true,
                };
                let by_length = tokens == all && !stopped;
                in_time
                    && (if reason == EndReason::Stop {
                        stopped
                    } else {
                        by_length
                    })
            }
            _ => false,
        };
    if right {
        Ok(())
    } else {
        Err(unasked(entry, reason, tokens, timing))
    }
}

fn unasked(entry: &InFlight, reason: EndReason, tokens: u32, timing: &Timing) -> Error {
    let Ask {
        number,
        request,
        fate,
    } = &entry.ask;
    wrong(format!(
        "request {number} ended with {reason:?} and {tokens} tokens after {timing:?}; asked: {fate:?}, {} new tokens, stop ids {:?}; \
         cancel sent: {}, tokens {:?}",
        request.max_new_tokens, request.stop_ids, entry.cancelled, entry.tokens
    ))
}

impl Tally {
    pub(super) fn count(&mut self, reason: EndReason, tokens: u64) {
        self.requests += 1;
        self.tokens += tokens;
        match reason {
            EndReason::Stop => self.stop += 1,
            EndReason::Length => self.length += 1,
            EndReason::Cancelled => self.cancelled += 1,
            EndReason::Timeout => self.timeout += 1,
            EndReason::Refused | EndReason::NotFinite => self.refused += 1,
        }
    }

    /// Every way to end was there, so that none went untested.
    pub fn has_every_end(&self) -> bool {
        [
            self.stop,
            self.length,
            self.cancelled,
            self.timeout,
            self.refused,
        ]
        .iter()
        .all(|&count| count > 0)
    }
}
