//! The text of one sequence, up to its stop string.
//!
//! Stop strings are looked for in the bytes that tokens write, where a piece of a character is no U+FFFD. Where special
//! tokens come, they are looked for twice: with these written out, so that `<|im_end|>` and `x<|im_end|>` are found, and
//! without them, because the text that is shown leaves them out and must not hold a stop string either.

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
    /// Whether the text has special tokens too.
    special: bool,
    /// Whether each token is left out of the text, because it is special or ends the sequence.
    hidden: Vec<bool>,
    /// The bytes of the text, with those of a character that is not whole yet.
    bytes: Vec<u8>,
    /// The runs of [`Written::Byte`] in `bytes`.
    runs: Vec<Range<usize>>,
    /// The beginning of the text that [`TextStream::certain`] may still leave out.
    front: Front,
    /// What the tokens of the text write.
    shown: Line,
    /// What all tokens write. `None` until a hidden one comes, and where there are no stop strings.
    written: Option<Line>,
    stopped: Option<Found>,
    /// How many bytes of the text [`TextStream::certain`] has given.
    told: usize,
}

/// Whether more ids are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    Continue,
    /// A stop string is complete: ids that still come are dropped.
    Stopped,
}

/// The text of a sequence that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamEnd {
    /// The text up to the stop string, without special tokens.
    pub text: String,
    /// How many of the pushed ids belong to the output: those up to the one that completed the stop string, or all.
    pub tokens: usize,
    /// Whether a stop string ended the text.
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
    /// A stream that stops at one of the strings `stop`; empty ones stop nothing.
    pub fn new(tokenizer: &Tokenizer, stop: &[String]) -> Self {
        Self::matching(tokenizer, StopMatcher::new(stop))
    }

    /// A stream that stops where `matcher`, which has seen nothing, finds a stop string. The matcher's pieces are tokens.
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

    /// The stream with special tokens in its text if `special`, except those that end the sequence.
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

    /// Takes an id that ends the sequence: it is no part of the text, but may be a part of a stop string.
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
                self.add_to_run();
            }
            self.bytes.extend(bytes);
        }
        let bytes = bytes.as_deref();
        if let Some(written) = &mut self.written {
            written.push(separator, bytes);
        }
        self.shown.push(separator, bytes.filter(|_| !hidden));
        self.hidden.push(hidden);
        // A stop string that began before this one and is not complete may still come first.
        self.stopped = self
            .found()
            .filter(|found| self.lines().all(|line| line.pending() >= found.start));
        match self.stopped {
            None => Progress::Continue,
            Some(_) => Progress::Stopped,
        }
    }

    /// Notes that the next byte is one of a run.
    fn add_to_run(&mut self) {
        let at = self.bytes.len();
        match self.runs.last_mut().filter(|run| run.end == at) {
            Some(run) => run.end += 1,
            None => self.runs.push(at..at + 1),
        }
    }

    /// The text that has become certain since the last call: neither a later id nor a stop string takes it back, and
    /// [`StreamEnd::text`] begins with what all calls gave. A call costs as much as was pushed since the last.
    pub fn certain(&mut self) -> String {
        let found = self.stopped.or_else(|| self.found());
        let starts = self.lines().map(Line::pending);
        let start = starts.chain(found.map(|found| found.start)).min();
        let mut end = start.map_or(self.bytes.len(), |start| self.place_in_text(start));
        // A later byte may still make U+FFFDs of a run at the end, or complete a character there.
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

    /// Ends the stream: no more ids will come.
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

/// How many of the last bytes may be the beginning of a character.
fn incomplete(bytes: &[u8]) -> usize {
    let last = bytes.utf8_chunks().last().map(|chunk| chunk.invalid());
    let may_go_on =
        |bytes: &&[u8]| std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none());
    last.filter(may_go_on).map_or(0, <[u8]>::len)
}

/// The bytes that tokens write one after the other, and the stop strings in them.
#[derive(Debug, Clone)]
struct Line {
    matcher: StopMatcher,
    /// Where each token's bytes begin. What separates two tokens counts as the end of the first.
    starts: Vec<usize>,
    /// Whether a token has written something.
    is_begun: bool,
}

impl Line {
    /// Takes the next token's bytes; `None` where it writes nothing.
    fn push(&mut self, separator: &[u8], bytes: Option<&[u8]>) {
        let token = self.starts.len();
        if self.is_begun && bytes.is_some() {
            self.matcher.feed(separator, token);
        }
        self.is_begun |= bytes.is_some();
        self.starts.push(self.matcher.position());
        self.matcher.feed(bytes.unwrap_or_default(), token);
    }

    /// The stop string that starts first here.
    fn found(&self) -> Option<Found> {
        let StopString { start, piece, .. } = self.matcher.found()?;
        Some(Found {
            start: self.place(start),
            last: piece,
        })
    }

    /// The place from which on the bytes may still become a stop string.
    fn pending(&self) -> Place {
        match self.matcher.pending() {
            pending if pending == self.matcher.position() => (self.starts.len(), 0),
            pending => self.place(pending),
        }
    }

    /// The place of a byte, which is in the last token that begins at it or before it.
    fn place(&self, position: usize) -> Place {
        let token = self.starts.partition_point(|&start| start <= position) - 1;
        (token, position - self.starts[token])
    }
}
