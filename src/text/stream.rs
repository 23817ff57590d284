//! The text of one sequence, up to its stop string.
//!
//! Stop strings are looked for in what tokens write, byte by byte: a piece of a character is no U+FFFD there. They are
//! looked for twice where special tokens come: with those written out, so that `<|im_end|>` and `x<|im_end|>` are found,
//! and without, because the text that is shown has none and must not hold a stop string either.

use std::ops::Range;

use super::decoder::{Front, Written, characters};
use super::{StopMatcher, StopString, Tokenizer};

/// Takes a sequence's new ids and gives its text. A token costs the same however long the text before it is.
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
    /// The text has special tokens too.
    special: bool,
    /// Each token: it is no part of the text, because it is special or ends the sequence.
    hidden: Vec<bool>,
    /// What the text is made of, a character that is not whole yet included.
    bytes: Vec<u8>,
    /// Runs of [`Written::Byte`] in it.
    runs: Vec<Range<usize>>,
    /// What [`TextStream::certain`] may still leave out.
    front: Front,
    /// What the text's tokens write.
    shown: Line,
    /// With hidden tokens written out; `None` until one comes, and where there are no stop strings.
    written: Option<Line>,
    stopped: Option<Found>,
    /// Bytes of the text that [`TextStream::certain`] has given.
    told: usize,
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
    /// For each of these ids, how many characters of the text are complete before it.
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
            special: false,
            hidden: Vec::new(),
            bytes: Vec::new(),
            runs: Vec::new(),
            front: tokenizer.front(),
            shown: Line {
                matcher,
                starts: Vec::new(),
                is_begun: false,
            },
            written: None,
            stopped: None,
            told: 0,
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
        self.take(id, hidden)
    }

    /// Takes an id that ends the sequence: it is no part of the text, but may be one of a stop string.
    pub fn push_last(&mut self, id: u32) -> Progress {
        self.take(id, true)
    }

    fn take(&mut self, id: u32, hidden: bool) -> Progress {
        if self.stopped.is_some() {
            return Progress::Stopped;
        }
        let separator = self.tokenizer.separator().as_bytes();
        let (bytes, is_run) = match self.tokenizer.written(id, !self.shown.is_begun) {
            None => (None, false),
            Some(Written::Text(bytes)) => (Some(bytes), false),
            Some(Written::Byte(byte)) => (Some(vec![byte]), true),
        };
        if hidden && self.written.is_none() && !self.shown.matcher.is_empty() {
            self.written = Some(self.shown.clone());
        }
        if let Some(bytes) = bytes.as_ref().filter(|_| !hidden) {
            if self.shown.is_begun {
                self.bytes.extend(separator);
            }
            if is_run {
                self.add_run(bytes.len());
            }
            self.bytes.extend(bytes);
        }
        let bytes = bytes.as_deref();
        if let Some(written) = &mut self.written {
            written.push(separator, bytes);
        }
        self.shown.push(separator, bytes.filter(|_| !hidden));
        self.hidden.push(hidden);
        // What began before it and is not complete may still become the stop string.
        self.stopped = self
            .found()
            .filter(|found| self.lines().all(|line| line.pending() >= found.start));
        match self.stopped {
            None => Progress::Continue,
            Some(_) => Progress::Stopped,
        }
    }

    /// The next `length` bytes are of a run.
    fn add_run(&mut self, length: usize) {
        let (start, end) = (self.bytes.len(), self.bytes.len() + length);
        match self.runs.last_mut().filter(|run| run.end == start) {
            Some(run) => run.end = end,
            None => self.runs.push(start..end),
        }
    }

    /// The text that has become certain since the last call, which neither a later id nor a stop string takes back: with
    /// what was given before, it is how [`StreamEnd::text`] begins. A call costs what has been pushed since the last.
    pub fn certain(&mut self) -> String {
        let found = self.stopped.or_else(|| self.found());
        let starts = self.lines().map(Line::pending);
        let start = starts.chain(found.map(|found| found.start)).min();
        let mut end = start.map_or(self.bytes.len(), |start| self.place_in_text(start));
        // Bytes to come may still make a run of bytes no text, or a character whole.
        let run = self.runs.iter().rfind(|run| run.start < end);
        if let Some(run) = run.filter(|run| run.end > end || run.end == self.bytes.len()) {
            end = run.start;
        } else if end == self.bytes.len() {
            end -= incomplete(&self.bytes[self.told..]);
        }
        let told = std::mem::replace(&mut self.told, end);
        let mut characters = characters(&self.bytes, &self.runs, told, end);
        self.front.strip(&mut characters);
        characters.into_iter().map(|(c, _)| c).collect()
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        std::iter::once(&self.shown).chain(&self.written)
    }

    /// The stop string that starts first.
    fn found(&self) -> Option<Found> {
        self.lines()
            .filter_map(Line::found)
            .min_by_key(|found| (found.start, found.last))
    }

    /// The byte of the text at a place.
    fn place_in_text(&self, (token, byte): Place) -> usize {
        match self.hidden.get(token) {
            None => self.bytes.len(),
            Some(true) => self.shown.starts[token],
            Some(false) => self.shown.starts[token] + byte,
        }
    }

    /// No more ids will come.
    pub fn finish(self) -> StreamEnd {
        let stop = self.stopped.or_else(|| self.found());
        let tokens = stop.map_or(self.hidden.len(), |stop| stop.last + 1);
        let end = stop.map_or(self.bytes.len(), |stop| self.place_in_text(stop.start));
        let mut characters = characters(&self.bytes, &self.runs, 0, end);
        self.tokenizer.front().strip(&mut characters);
        let starts = &self.shown.starts[..tokens];
        let offset = |&start: &usize| characters.partition_point(|&(_, end)| end <= start);
        StreamEnd {
            offsets: starts.iter().map(offset).collect(),
            text: characters.into_iter().map(|(c, _)| c).collect(),
            tokens,
            stopped: stop.is_some(),
        }
    }
}

/// How many bytes at the end may be the beginning of a character.
fn incomplete(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last().map(|chunk| chunk.invalid());
    let may_go_on =
        |bytes: &&[u8]| std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none());
    last.filter(may_go_on).map_or(0, <[u8]>::len)
}

/// What tokens write, one after the other, and the stop strings in it.
#[derive(Debug, Clone)]
struct Line {
    matcher: StopMatcher,
    /// Where each token's bytes begin: what separates two tokens is the end of the first.
    starts: Vec<usize>,
    /// Whether a token was written.
    is_begun: bool,
}

impl Line {
    /// The next token; `None` where it writes nothing.
    fn push(&mut self, separator: &[u8], bytes: Option<&[u8]>) {
        let token = self.starts.len();
        if self.is_begun && bytes.is_some() {
            self.matcher.feed(separator, token);
        }
        self.is_begun |= bytes.is_some();
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
