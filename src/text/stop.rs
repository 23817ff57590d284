//! Stop strings in the bytes of a text that arrives in pieces.

use std::sync::Arc;

/// Finds the stop string that starts first in a text, whatever the pieces the text arrives in.
///
/// If two start at the same place, the shorter one is found, since it is complete first. A stop string inside
/// a longer one that has begun but is not complete yet has to wait: only the text that follows tells which
/// of them starts first. A byte costs one comparison per stop string (amortized; Knuth, Morris and Pratt).
/// A clone is small: all clones share the stop strings.
#[derive(Debug, Clone, PartialEq)]
pub struct StopMatcher {
    patterns: Arc<[Pattern]>,
    /// For each pattern, the length of its longest prefix that the text ends with.
    matched: Box<[u32]>,
    /// How many bytes were taken.
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

#[derive(Debug, PartialEq)]
struct Pattern {
    bytes: Box<[u8]>,
    /// `border[n]` is the length of the longest proper prefix of the first n bytes that is also their suffix.
    border: Box<[u32]>,
}

impl StopMatcher {
    /// A matcher that has seen nothing. An empty string stops nothing.
    pub fn new(stop: &[String]) -> Self {
        let stop = stop.iter().filter(|stop| !stop.is_empty());
        let patterns: Arc<[Pattern]> = stop.map(|stop| Pattern::new(stop.as_bytes())).collect();
        Self {
            matched: vec![0; patterns.len()].into(),
            patterns,
            position: 0,
            first_piece: 0,
            found: None,
        }
    }

    /// Whether there is no stop string to find.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// The matcher that finds only what piece `first`, counted from 0, or a later one completes.
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
            for (pattern, matched) in self.patterns.iter().zip(&mut self.matched) {
                if !pattern.feed(matched, byte) || piece < self.first_piece {
                    continue;
                }
                let start = self.position - pattern.bytes.len();
                // If two have the same start, the one found before is the shorter, or the same string.
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

    /// How many bytes were taken. Once it is settled where the text stops, none are.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Where the earliest unfinished match starts; the end of the text where there is none.
    pub fn pending(&self) -> usize {
        let longest = self.matched.iter().max();
        self.position - longest.map_or(0, |&longest| longest as usize)
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
                length = border[length] as usize;
            }
            if bytes[end] == bytes[length] {
                length += 1;
            }
            border[end + 1] = length as u32;
        }
        Self {
            bytes: bytes.into(),
            border: border.into(),
        }
    }

    /// Whether the pattern ends at this byte, before which the text ended with its first `matched` bytes.
    fn feed(&self, matched: &mut u32, byte: u8) -> bool {
        while *matched > 0 && self.bytes[*matched as usize] != byte {
            *matched = self.border[*matched as usize];
        }
        if self.bytes[*matched as usize] == byte {
            *matched += 1;
        }
        let complete = *matched as usize == self.bytes.len();
        if complete {
            *matched = self.border[*matched as usize];
        }
        complete
    }
}
