//! A codec and a device whose output is easy to foretell.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tailgraph::Result;
use tailgraph::io::{Codec, TextEnd, TextProgress, TextStream};
use tailgraph::runtime::{
    EndReason, Engine, EngineStatus, Event, Request, Timing, TokenLogprobs, Waker,
};
use tailgraph::text::{Chat, Doubt, StopMatcher, Unrendered};

/// Token = byte; 256 is BOS. Templates join the contents.
pub struct Bytes;

impl Codec for Bytes {
    fn encode(&self, text: &str, special: bool) -> std::result::Result<Vec<u32>, String> {
        let bos = special.then_some(256);
        Ok(bos.into_iter().chain(text.bytes().map(u32::from)).collect())
    }

    fn render(&self, chat: &Chat) -> std::result::Result<String, Unrendered> {
        let mut text = String::new();
        for message in chat.messages.as_array().unwrap() {
            let content = message["content"].as_str();
            text.push_str(content.ok_or_else(|| "content is no string".to_owned())?);
        }
        if let Some(tools) = &chat.tools {
            text.push_str(&tools.to_string());
        }
        Ok(text)
    }

    fn doubts(&self, chat: &Chat) -> Vec<Doubt> {
        let doubt = |name: &String| Doubt {
            name: name.clone(),
            why: "the chat template does not read it",
        };
        chat.kwargs.keys().map(doubt).collect()
    }

    fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        char::from_u32(id).map(|c| c.to_string().into_bytes())
    }

    fn stream(&self, stop: StopMatcher, _: bool) -> Box<dyn TextStream> {
        Box::new(Stream {
            text: String::new(),
            tokens: 0,
            stopped: false,
            stop,
        })
    }
}

struct Stream {
    text: String,
    tokens: usize,
    stopped: bool,
    stop: StopMatcher,
}

impl TextStream for Stream {
    fn push(&mut self, id: u32) -> TextProgress {
        let character = char::from_u32(id).unwrap();
        self.text.push(character);
        let written = character.to_string();
        let found = self.stop.feed(written.as_bytes(), self.tokens);
        self.tokens += 1;
        match found {
            Some(found) => {
                self.text.truncate(found.start);
                self.stopped = true;
                TextProgress::Stopped
            }
            None => TextProgress::Continue,
        }
    }

    fn push_last(&mut self, _: u32) {
        self.tokens += 1;
    }

    fn certain(&mut self) -> String {
        // Jobs ask for the whole text at the end.
        String::new()
    }

    fn finish(self: Box<Self>) -> TextEnd {
        TextEnd {
            text: self.text,
            stop_tokens: self.stopped.then_some(self.tokens),
            // Each token is a character.
            offsets: (0..self.tokens).collect(),
        }
    }
}

struct Running {
    number: u64,
    request: Request,
    tokens: u32,
    cancelled: bool,
}

/// Says the prompt again and again, one token of each running request a round, the newest first.
#[derive(Default)]
pub struct Echo {
    pub slots: usize,
    running: Vec<Running>,
    events: VecDeque<Event>,
    submitted: u64,
    /// Fails once this many tokens are out.
    pub fail_after: Option<u64>,
    /// Sets the flag once this many tokens are out.
    pub interrupt_after: Option<(u64, Arc<AtomicBool>)>,
    tokens: u64,
    pub most_running: usize,
}

impl Echo {
    pub fn new(slots: usize) -> Self {
        Self {
            slots,
            ..Self::default()
        }
    }

    fn round(&mut self) {
        for running in self.running.iter_mut().rev() {
            let mut end = None;
            if running.cancelled {
                end = Some(EndReason::Cancelled);
            } else if running.request.timeout.is_some() && running.tokens == 2 {
                end = Some(EndReason::Timeout);
            } else {
                let prompt = &running.request.prompt;
                let token = prompt[running.tokens as usize % prompt.len()];
                let logprobs = running.request.sampling.logprobs.map(|n| TokenLogprobs {
                    logprob: -0.5,
                    top: (0..n).map(|i| (i + 65, -1.0 - i as f32)).collect(),
                });
                self.events.push_back(Event::Token {
                    request: running.number,
                    token,
                    index: running.tokens,
                    logprobs,
                });
                running.tokens += 1;
                self.tokens += 1;
                if running.request.stop_ids.contains(&token) {
                    end = Some(EndReason::Stop);
                } else if running.tokens == running.request.max_new_tokens {
                    end = Some(EndReason::Length);
                }
            }
            if let Some(reason) = end {
                self.events.push_back(Event::End {
                    request: running.number,
                    reason,
                    tokens: running.tokens,
                    timing: Timing::default(),
                });
                running.tokens = u32::MAX;
            }
        }
        self.running.retain(|running| running.tokens != u32::MAX);
    }
}

impl Engine for Echo {
    fn try_submit_all(
        &mut self,
        requests: &mut dyn Iterator<Item = &Request>,
    ) -> Result<Range<u64>> {
        let first = self.submitted;
        for request in requests.take(self.slots - self.running.len()) {
            self.running.push(Running {
                number: self.submitted,
                request: request.clone(),
                tokens: 0,
                cancelled: false,
            });
            self.submitted += 1;
        }
        self.most_running = self.most_running.max(self.running.len());
        Ok(first..self.submitted)
    }

    fn cancel(&mut self, request: u64) -> bool {
        for running in &mut self.running {
            running.cancelled |= running.number == request;
        }
        true
    }

    fn next_stamped(&mut self, _: Duration) -> Result<Option<(u64, Event)>> {
        if self.fail_after.is_some_and(|n| self.tokens >= n) {
            return Err(tailgraph::Error::Runtime("stage 0 caught fire".into()));
        }
        if self.events.is_empty() {
            self.round();
        }
        if let Some((tokens, flag)) = &self.interrupt_after
            && self.tokens >= *tokens
        {
            flag.store(true, Ordering::SeqCst);
        }
        Ok(self.events.pop_front().map(|event| (0, event)))
    }

    fn drain(&mut self) {}

    fn waker(&self) -> Waker {
        Waker::default()
    }

    fn status(&self) -> EngineStatus {
        EngineStatus::default()
    }
}

/// A codec that only knows what tokens are made of, for answers whose text is there already.
pub struct Tokens(pub fn(u32) -> Option<Vec<u8>>);

impl Codec for Tokens {
    fn encode(&self, _: &str, _: bool) -> std::result::Result<Vec<u32>, String> {
        unreachable!("answers encode nothing")
    }

    fn render(&self, _: &Chat) -> std::result::Result<String, Unrendered> {
        unreachable!("answers render nothing")
    }

    fn doubts(&self, _: &Chat) -> Vec<Doubt> {
        Vec::new()
    }

    fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.0(id)
    }

    fn stream(&self, _: StopMatcher, _: bool) -> Box<dyn TextStream> {
        unreachable!("the text is there already")
    }
}
