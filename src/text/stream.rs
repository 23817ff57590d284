//! The text of one sequence, up to its stop string.
//!
//! Stop strings are looked for in what tokens write, byte by byte: a piece of a character is no U+FFFD there. They are
//! looked for twice where special tokens come: with those written out, so that `<|im_end|>` and `x<|im_end|>` are found,
//! and without, because the text that is shown has none and must not hold a stop string either.

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
    tokenizer: Tokenizer,
    tokens: Vec<Token>,
    /// `None` where there are no stop strings.
    written: Option<Line>,
    /// Without special tokens; `None` until one comes.
    shown: Option<Line>,
    stopped: Option<Found>,
    told: Told,
    /// The text has special tokens too.
    special: bool,
}

/// What [`TextStream::certain`] has given.
#[derive(Debug, Clone, Default)]
struct Told {
    /// `None` until somebody asks.
    text: Option<Detokenizer>,
    /// Tokens that went into it.
    tokens: usize,
}

#[derive(Debug, Clone, Copy)]
struct Token {
    id: u32,
    /// No part of the text: a special token, or one that ends the sequence.
    hidden: bool,
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
    /// For each of these ids, how many characters of the text come before it: see [`Detokenizer::offsets`].
    pub offsets: Vec<usize>,
}

/// A place in what tokens write: a token, counted from 0, and a byte of it.
type Place = (usize, usize);

/// A stop string between two places.
#[derive(Debug, Clone, Copy)]
struct Found {
    start: Place,
    /// The token that completed it.
    last: usize,
}

impl TextStream {
    /// `stop`: the stop strings; empty ones stop nothing.
    pub fn new(tokenizer: &Tokenizer, stop: &[String]) -> Self {
        Self::matching(tokenizer, StopMatcher::new(stop))
    }

    /// The same, with a matcher that has seen nothing; its pieces are tokens.
    pub fn matching(tokenizer: &Tokenizer, matcher: StopMatcher) -> Self {
        Self {
            tokenizer: tokenizer.clone(),
            tokens: Vec::new(),
            written: (!matcher.is_empty()).then(|| Line {
                matcher,
                starts: Vec::new(),
                begun: false,
            }),
            shown: None,
            stopped: None,
            told: Told::default(),
            special: false,
        }
    }

    /// With special tokens in the text, other than those that end it.
    #[must_use]
    pub fn with_special(mut self, special: bool) -> Self {
        self.special = special;
        self
    }

    /// Takes the next id. After `Stopped` every further id is dropped with `Stopped` again.
    pub fn push(&mut self, id: u32) -> Progress {
        let hidden = !self.special && self.tokenizer.is_special(id);
        self.take(Token { id, hidden })
    }

    /// Takes an id that ends the sequence: it is no part of the text, but may be one of a stop string.
    pub fn push_last(&mut self, id: u32) -> Progress {
        self.take(Token { id, hidden: true })
    }

    fn take(&mut self, token: Token) -> Progress {
        if self.stopped.is_some() {
            return Progress::Stopped;
        }
        self.tokens.push(token);
        if let Some(written) = &mut self.written {
            let bytes = self.tokenizer.token_bytes(token.id);
            let separator = self.tokenizer.separator();
            if token.hidden && self.shown.is_none() {
                self.shown = Some(written.clone());
            }
            written.push(separator, bytes.as_deref());
            if let Some(shown) = &mut self.shown {
                shown.push(separator, bytes.as_deref().filter(|_| !token.hidden));
            }
            // What began before it and is not complete may still become the stop string.
            self.stopped = self
                .found()
                .filter(|found| self.lines().all(|line| line.pending() >= found.start));
        }
        match self.stopped {
            None => Progress::Continue,
            Some(_) => Progress::Stopped,
        }
    }

    /// The text that has become certain since the last call, which neither a later id nor a stop string takes back: with
    /// what was given before, it is how [`StreamEnd::text`] begins. A call costs what has been pushed since the last.
    pub fn certain(&mut self) -> String {
        // A stop string may begin with the token at which one is pending, but with none before it.
        let pending = self.lines().map(|line| line.pending().0).min();
        let found = self.stopped.or_else(|| self.found());
        let ends = [pending, found.map(|found| found.start.0)];
        let end = ends.into_iter().flatten().min();
        let end = end.map_or(self.tokens.len(), |end| end.min(self.tokens.len()));
        let text = self
            .told
            .text
            .get_or_insert_with(|| Detokenizer::new(&self.tokenizer, !self.special));
        let mut certain = String::new();
        while self.told.tokens < end {
            let token = self.tokens[self.told.tokens];
            match token.hidden {
                true => text.skip(),
                false => certain.push_str(text.push(token.id)),
            }
            self.told.tokens += 1;
        }
        certain
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.written.iter().chain(&self.shown)
    }

    /// The stop string that starts first.
    fn found(&self) -> Option<Found> {
        self.lines()
            .filter_map(Line::found)
            .min_by_key(|found| (found.start, found.last))
    }

    /// No more ids will come.
    pub fn finish(self) -> StreamEnd {
        let stop = self.stopped.or_else(|| self.found());
        let tokens = stop.map_or(self.tokens.len(), |stop| stop.last + 1);
        let (end, bytes) = stop.map_or((tokens, 0), |stop| stop.start);
        let mut detokenizer = Detokenizer::new(&self.tokenizer, !self.special);
        let mut text = String::new();
        let mut offsets = Vec::new();
        // The stop string may begin inside a token: the text has that token's first bytes, and what separates it from
        // the one before.
        let begins = bytes > 0 || stop.is_some() && !self.tokenizer.separator().is_empty();
        let shown = end + usize::from(begins && !self.tokens[end].hidden);
        for (place, token) in self.tokens[..tokens].iter().enumerate() {
            if place < shown && !token.hidden {
                text.push_str(detokenizer.push(token.id));
            } else {
                detokenizer.skip();
            }
        }
        text.push_str(detokenizer.finish());
        offsets.extend(detokenizer.offsets());
        if shown > end {
            let written = self.tokenizer.token_bytes(self.tokens[end].id);
            let behind = written.as_deref().unwrap_or_default().get(bytes..);
            // A stop string begins with a character, so what is behind does not depend on what is before.
            let cut = String::from_utf8_lossy(behind.unwrap_or_default())
                .chars()
                .count();
            let kept = text.chars().count().saturating_sub(cut);
            let length = text
                .char_indices()
                .nth(kept)
                .map_or(text.len(), |(at, _)| at);
            text.truncate(length);
            offsets.iter_mut().for_each(|at| *at = kept.min(*at));
        }
        StreamEnd {
            text,
            tokens,
            stopped: stop.is_some(),
            offsets,
        }
    }
}

/// What tokens write, one after the other, and the stop strings in it.
#[derive(Debug, Clone)]
struct Line {
    matcher: StopMatcher,
    /// Where each token's bytes begin: what separates two tokens is the end of the first.
    starts: Vec<usize>,
    /// Whether a token was written.
    begun: bool,
}

impl Line {
    /// The next token; `None` where it writes nothing.
    fn push(&mut self, separator: &str, bytes: Option<&[u8]>) {
        let token = self.starts.len();
        if self.begun && bytes.is_some() {
            self.matcher.feed(separator.as_bytes(), token);
        }
        self.begun |= bytes.is_some();
        self.starts.push(self.matcher.position());
        self.matcher.feed(bytes.unwrap_or_default(), token);
    }

    fn found(&self) -> Option<Found> {
        let StopString { start, piece, .. } = self.matcher.found()?;
        Some(Found {
            start: self.place(start),
            last: piece,
        })
    }

    /// Where what may still become a stop string begins.
    fn pending(&self) -> Place {
        match self.matcher.pending() {
            pending if pending == self.matcher.position() => (self.starts.len(), 0),
            pending => self.place(pending),
        }
    }

    /// The place of a byte: in the last token that begins at it or before it.
    fn place(&self, position: usize) -> Place {
        let token = self.starts.partition_point(|&start| start <= position) - 1;
        (token, position - self.starts[token])
    }
}
