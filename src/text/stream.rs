//! The text of one sequence, up to its stop string.

use super::{Detokenizer, StopMatcher, StopString, Tokenizer};

/// Takes a sequence's new ids and gives its text.
///
/// ```
/// use tailgraph::text::{Progress, TextStream, Tokenizer};
/// let tokenizer = Tokenizer::bytes();
/// let mut stream = TextStream::new(&tokenizer, &["lo".to_owned()]);
/// let ids = tokenizer.encode("hello", false).unwrap();
/// let progress: Vec<_> = ids.iter().map(|&id| stream.push(id)).collect();
/// assert_eq!(progress[3], Progress::Continue);
/// assert_eq!(progress[4], Progress::Stopped);
/// let end = stream.finish();
/// assert_eq!((end.text.as_str(), end.tokens, end.stopped), ("hel", 5, true));
/// ```
#[derive(Debug, Clone)]
pub struct TextStream {
    detokenizer: Detokenizer,
    matcher: StopMatcher,
    text: String,
    tokens: usize,
    stopped: Option<StopString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Continue,
    /// A stop string is complete: ids that still come are dropped.
    Stopped,
}

/// What a sequence came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEnd {
    /// Special tokens left out, and cut before the stop string.
    pub text: String,
    /// How many of the pushed ids belong to the output: up to the one that completed the stop string, or all.
    pub tokens: usize,
    /// Whether a stop string ended it.
    pub stopped: bool,
}

impl TextStream {
    /// `stop`: the stop strings; empty ones stop nothing.
    pub fn new(tokenizer: &Tokenizer, stop: &[String]) -> Self {
        Self {
            detokenizer: Detokenizer::new(tokenizer, true),
            matcher: StopMatcher::new(stop),
            text: String::new(),
            tokens: 0,
            stopped: None,
        }
    }

    /// Takes the next id. After `Stopped` every further id is dropped with `Stopped` again.
    pub fn push(&mut self, id: u32) -> Progress {
        if self.stopped.is_none() {
            let text = self.detokenizer.push(id);
            self.text.push_str(text);
            self.stopped = self.matcher.feed(text, self.tokens);
            self.tokens += 1;
        }
        match self.stopped {
            None => Progress::Continue,
            Some(_) => Progress::Stopped,
        }
    }

    /// The text so far that nothing can change any more; only ever grows, and is a prefix of the final text.
    pub fn safe_text(&self) -> &str {
        &self.text[..self.matcher.safe()]
    }

    /// No more ids will come: the text with what was held back, and the stop string if one is in it.
    pub fn finish(mut self) -> StreamEnd {
        let mut stop = self.stopped;
        if stop.is_none() {
            let text = self.detokenizer.finish();
            self.text.push_str(text);
            // Text held back until now is the last id's.
            self.matcher.feed(text, self.tokens.saturating_sub(1));
            stop = self.matcher.finish();
        }
        if let Some(stop) = stop {
            self.text.truncate(stop.start);
        }
        StreamEnd {
            text: self.text,
            tokens: stop.map_or(self.tokens, |stop| stop.piece + 1),
            stopped: stop.is_some(),
        }
    }
}
