//! Stop strings in the bytes of a text that arrives in pieces.

/// Finds the stop string that starts first in a text, whatever the pieces the text arrives in.
///
/// Of two that start at the same place the shorter one is found: it is complete first. A stop string inside
/// a longer one that has begun but is not complete yet has to wait: only the text that follows tells which
/// of them starts first. A byte costs one comparison per stop string (amortized; Knuth, Morris and Pratt).
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    /// Bytes seen.
    position: usize,
    /// The first piece that may complete a match.
    first_piece: usize,
    /// The best match so far.
    found: Option<StopString>,
}

/// A stop string in a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StopString {
    /// Where it starts: the text ends here, in bytes.
    pub start: usize,
    /// Where it ends, in bytes.
    pub end: usize,
    /// Which piece completed it, counted from 0.
    pub piece: usize,
}

#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// `border[n]`: length of the longest proper prefix of the first n bytes that is also their suffix.
    border: Vec<usize>,
    /// Length of the longest prefix of the pattern that the text ends with.
    matched: usize,
}

impl StopMatcher {
    /// An empty string stops nothing.
    pub fn new(stop: &[String]) -> Self {
        Self {
            patterns: stop
                .iter()
                .filter(|stop| !stop.is_empty())
                .map(|stop| Pattern::new(stop.as_bytes()))
                .collect(),
            position: 0,
            first_piece: 0,
            found: None,
        }
    }

    /// Finds only what piece `first`, counted from 0, or a later one completes.
    #[must_use]
    pub fn from_piece(mut self, first: usize) -> Self {
        self.first_piece = first;
        self
    }

    /// Takes the next bytes, piece number `piece`. `Some` once it is settled where the text stops; what is
    /// fed after that changes nothing.
    pub fn feed(&mut self, bytes: &[u8], piece: usize) -> Option<StopString> {
        for &byte in bytes {
            if self.settled().is_some() {
                break;
            }
            self.position += 1;
            for pattern in &mut self.patterns {
                if !pattern.feed(byte) || piece < self.first_piece {
                    continue;
                }
                let start = self.position - pattern.bytes.len();
                // Of two with the same start the one found before is the shorter, or the same string.
                if self.found.is_none_or(|found| start < found.start) {
                    self.found = Some(StopString {
                        start,
                        end: self.position,
                        piece,
                    });
                }
            }
        }
        self.settled()
    }

    /// The stop string that starts first of those that are complete.
    pub fn found(&self) -> Option<StopString> {
        self.found
    }

    /// Bytes taken; no more once it is settled where the text stops.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Where the earliest unfinished match starts; the end of the text where there is none.
    pub fn pending(&self) -> usize {
        let longest = self.patterns.iter().map(|pattern| pattern.matched).max();
        self.position - longest.unwrap_or(0)
    }

    /// The match, if nothing that started before it can still become one.
    fn settled(&self) -> Option<StopString> {
        self.found.filter(|found| self.pending() >= found.start)
    }
}

impl Pattern {
    fn new(bytes: &[u8]) -> Self {
        let mut border = vec![0; bytes.len() + 1];
        let mut length = 0;
        for end in 1..bytes.len() {
            while length > 0 && bytes[end] != bytes[length] {
                length = border[length];
            }
            if bytes[end] == bytes[length] {
                length += 1;
            }
            border[end + 1] = length;
        }
        Self {
            bytes: bytes.to_vec(),
            border,
            matched: 0,
        }
    }

    /// Whether the pattern ends at this byte.
    fn feed(&mut self, byte: u8) -> bool {
        while self.matched > 0 && self.bytes[self.matched] != byte {
            self.matched = self.border[self.matched];
        }
        if self.bytes[self.matched] == byte {
            self.matched += 1;
        }
        let complete = self.matched == self.bytes.len();
        if complete {
            self.matched = self.border[self.matched];
        }
        complete
    }
}
