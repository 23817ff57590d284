//! [`Echoing`]: an engine whose requests may ask for their prompts' logprobs beside an answer. They come as tokens, those of the
//! prompt, before the answer's.
//!
//! A scheduler scores a prompt or answers it. A request for both is scored first, and then answered under the same number.

use super::opened::Opened;
use super::recording::{Keep, Recorded};
use super::scoring;
use crate::backend::LogitsSink;
use crate::error::Result;
use crate::io::logprobs::beside_best;
use crate::runtime::{
    EndReason, Engine, EngineStatus, Event, Logits, Request, Timing, TokenLogprobs, Waker,
};
use crate::trace::About;
use parking_lot::Mutex;
use rayon::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// When the engine had no room for a request that is scored: the scheduler's next turn makes some.
const RETRY: Duration = Duration::from_millis(1);

/// An engine that requests with [`Logits::All`] may ask for new tokens too, with as many logprobs for each token as for the new ones.
pub struct Echoing {
    engine: Recorded,
    sink: Option<Arc<PromptSink>>,
    /// Requests whose prompts are being scored; `None` for one that was cancelled.
    scoring: HashMap<u64, Option<Request>>,
    /// Requests that the engine is yet to answer, and when their prompts were scored.
    scored: VecDeque<(u64, Request, Timing)>,
    /// The same for those that it answers, by its own numbers.
    answering: HashMap<u64, (u64, Timing)>,
    /// Events that are out.
    events: VecDeque<(u64, Event)>,
}

/// Makes logprobs of logits.
struct PromptSink {
    vocab_size: usize,
    prompts: Mutex<HashMap<u64, Arc<Prompt>>>,
}

/// A prompt, and what is known of it.
struct Prompt {
    tokens: Vec<u32>,
    /// The best tokens beside each.
    top: usize,
    logprobs: Mutex<Vec<TokenLogprobs>>,
}

impl LogitsSink for PromptSink {
    /// Logits that nobody asked for are those of a prompt without logprobs.
    fn rows(&self, request: u64, first_position: u32, logits: &[f32]) -> Result<()> {
        let Some(prompt) = self.prompts.lock().get(&request).cloned() else {
            return Ok(());
        };
        let first = first_position as usize + 1;
        let next = prompt.tokens.get(first..).unwrap_or_default();
        let rows = logits.par_chunks_exact(self.vocab_size).zip(next);
        let found: Vec<TokenLogprobs> = rows
            .map(|(logits, &token)| beside_best(logits, token, prompt.top))
            .collect();
        for (to, found) in prompt.logprobs.lock().iter_mut().skip(first).zip(found) {
            *to = found;
        }
        Ok(())
    }
}

impl Echoing {
    /// The engine of `opened`, whose run is kept as `keep` says.
    ///
    /// # Errors
    /// Fails as [`Opened::start`] does.
    pub fn start(opened: &Opened, keep: Keep) -> Result<Self> {
        let sink = opened.delivers.then(|| {
            Arc::new(PromptSink {
                vocab_size: opened.config.vocab_size,
                prompts: Mutex::default(),
            })
        });
        let shared = sink.clone().map(|sink| sink as Arc<dyn LogitsSink>);
        Ok(Self {
            engine: opened.start(&shared, keep)?,
            sink,
            scoring: HashMap::new(),
            scored: VecDeque::new(),
            answering: HashMap::new(),
            events: VecDeque::new(),
        })
    }

    /// Ends the run as [`Recorded::finish`] does.
    ///
    /// # Errors
    /// Fails as that does.
    pub fn finish(self, whole: bool) -> Result<Option<About>> {
        self.engine.finish(whole)
    }

    /// Hands over what is scored, as far as there is room.
    fn answer(&mut self) -> Result<()> {
        while let Some((number, request, timing)) = self.scored.front() {
            let Some(own) = self.engine.try_submit(request)? else {
                break;
            };
            self.answering.insert(own, (*number, *timing));
            self.scored.pop_front();
        }
        Ok(())
    }

    fn take(&mut self, at_ns: u64, mut event: Event) {
        let number = event.request();
        if let Event::End { reason, timing, .. } = &mut event
            && let Some(wanted) = self.scoring.remove(&number)
        {
            let sink = self.sink.as_ref();
            let prompt = sink.and_then(|sink| sink.prompts.lock().remove(&number));
            let logprobs = prompt.map(|prompt| std::mem::take(&mut *prompt.logprobs.lock()));
            let logprobs = logprobs.unwrap_or_default();
            let known = logprobs.iter().skip(1);
            match wanted {
                _ if *reason != EndReason::Length => {}
                None => *reason = EndReason::Cancelled,
                Some(_) if !known.map(|known| known.logprob).all(f32::is_finite) => {
                    *reason = EndReason::NotFinite;
                }
                Some(mut wanted) => {
                    let tokens = (0..).zip(&wanted.prompt).zip(logprobs);
                    let tokens = tokens.map(|((index, &token), logprobs)| Event::Token {
                        request: number,
                        token,
                        index,
                        logprobs: Some(logprobs),
                    });
                    self.events.extend(tokens.map(|event| (at_ns, event)));
                    if wanted.max_new_tokens > 0 {
                        wanted.logits = Logits::None;
                        let left = |limit: Duration| limit.saturating_sub(timing.total);
                        wanted.timeout = wanted.timeout.map(left);
                        return self.scored.push_back((number, wanted, *timing));
                    }
                }
            }
        } else if let Some(&(of, scored)) = self.answering.get(&number) {
            match &mut event {
                Event::Token { request, .. } => *request = of,
                Event::End {
                    request, timing, ..
                } => {
                    *request = of;
                    timing.queue += scored.queue;
                    timing.first_token += scored.total;
                    timing.total += scored.total;
                    self.answering.remove(&number);
                }
            }
        }
        self.events.push_back((at_ns, event));
    }
}

impl Engine for Echoing {
    /// They are handed over one by one.
    fn try_submit_all(
        &mut self,
        requests: &mut dyn Iterator<Item = &Request>,
    ) -> Result<Range<u64>> {
        self.answer()?;
        let Some(request) = requests.next().filter(|_| self.scored.is_empty()) else {
            return Ok(0..0);
        };
        let top = request.sampling.logprobs;
        let top = top.filter(|_| request.logits == Logits::All);
        let (Some(sink), Some(top)) = (&self.sink, top) else {
            return self.engine.try_submit_all(&mut std::iter::once(request));
        };
        let score = Request {
            timeout: request.timeout,
            ..scoring::request(&request.prompt, Logits::All)
        };
        // Logits that come before the prompt is there wait for it.
        let mut prompts = sink.prompts.lock();
        let Some(number) = self.engine.try_submit(&score)? else {
            return Ok(0..0);
        };
        let prompt = Prompt {
            tokens: score.prompt,
            top: top as usize,
            logprobs: Mutex::new(vec![TokenLogprobs::UNKNOWN; request.prompt.len()]),
        };
        prompts.insert(number, Arc::new(prompt));
        self.scoring.insert(number, Some(request.clone()));
        Ok(number..number + 1)
    }

    fn cancel(&mut self, request: u64) -> bool {
        if self.scored.iter().any(|(number, ..)| *number == request) {
            return false;
        }
        if let Some(wanted) = self.scoring.get_mut(&request) {
            *wanted = None;
        }
        let mut answering = self.answering.iter();
        let own = answering.find(|(_, (number, _))| *number == request);
        self.engine.cancel(own.map_or(request, |(own, _)| *own))
    }

    fn next_stamped(&mut self, wait: Duration) -> Result<Option<(u64, Event)>> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        self.answer()?;
        let wait = if self.scored.is_empty() {
            wait
        } else {
            wait.min(RETRY)
        };
        let Some((at_ns, event)) = self.engine.next_stamped(wait)? else {
            return Ok(None);
        };
        self.take(at_ns, event);
        self.answer()?;
        Ok(self.events.pop_front())
    }

    fn drain(&mut self) {
        self.engine.drain();
    }

    fn status(&self) -> EngineStatus {
        self.engine.status()
    }

    fn waker(&self) -> Waker {
        self.engine.waker()
    }

    fn replicas(&self) -> usize {
        self.engine.replicas()
    }

    fn traces_lost(&self) -> u64 {
        self.engine.traces_lost()
    }
}
