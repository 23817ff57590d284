//! Patterns of tokenizer.json, matched by Oniguruma as Python's tokenizers do, in bounded time.
//!
//! A backtracking engine can take ages in three ways. It may try one place over and over: a limit on retries ends
//! that. Each retry may read the whole text: the limit begins low and grows only while there is time for what it
//! allows. And every place may be tried with little success: places are tried one by one, and the clock is read in
//! between. (Oniguruma's own search of many places cannot be cut in parts: a match ends where its part ends.)

use crate::quote;
use onig::{MatchParam, Region, SearchOptions};
use std::time::{Duration, Instant};
use tokenizers::Offsets;
use tokenizers::tokenizer::pattern::Pattern;

use super::clock::Clock;

/// Oniguruma's own limit of retries at one place, which Python's tokenizers run with.
const MAX_RETRIES: u32 = 10_000_000;
/// Retries times bytes of the text at first, and retries at least and at most.
const FIRST_WORK: usize = 1 << 26;
const FIRST_RETRIES: (usize, usize) = (64, 4096);
const MORE_RETRIES: u32 = 8;
/// Alternatives that Oniguruma may remember at once, 40 bytes or so each.
const MAX_STACK: u32 = 8 << 20;
/// Bytes of a pattern: published ones have some hundreds.
const MAX_PATTERN_BYTES: usize = 1 << 16;
/// Places between two looks at the clock.
const PLACES_A_LOOK: u32 = 16;

/// Oniguruma's codes (oniguruma.h).
const STACK_LIMIT_OVER: i32 = -15;
const RETRY_LIMIT_OVER: i32 = -17;

#[derive(Debug)]
pub struct Regex {
    regex: onig::Regex,
    source: String,
}

/// Stretches of a text in order, and whether each is a match.
pub type Matches = Vec<(Offsets, bool)>;

/// Matches that are known already, as the crate's strings want them.
pub struct Found(pub Matches);

impl Pattern for Found {
    fn find_matches(&self, _: &str) -> tokenizers::Result<Matches> {
        Ok(self.0.clone())
    }
}

impl Regex {
    /// # Errors
    /// The pattern is too long or is none; the message names what Oniguruma has against it.
    pub fn new(source: &str) -> Result<Self, String> {
        if source.len() > MAX_PATTERN_BYTES {
            return Err(format!(
                "found a pattern of {} bytes, expected at most {MAX_PATTERN_BYTES}",
                source.len()
            ));
        }
        if source.contains("\\G") {
            // It is where a search begins, and there is no search here.
            return Err(format!(
                "found the pattern {source:?}, expected one without \\G"
            ));
        }
        let regex = onig::Regex::new(source)
            .map_err(|error| format!("pattern {source:?}: {}", error.description()))?;
        Ok(Self {
            regex,
            source: source.to_owned(),
        })
    }

    /// All of `text`, cut where matches begin and end: what the crate's own `find_matches` gives.
    ///
    /// # Errors
    /// Time or retries do not suffice. The crate panics there, and Python's tokenizers with it.
    pub fn matches(&self, text: &str, clock: &Clock) -> Result<Matches, String> {
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut search = Search::new(self, text, clock);
        let mut matches = Matches::new();
        let (mut done, mut from, mut last_match) = (0, 0, None);
        while from <= text.len() {
            let Some((start, end)) = search.next(from)? else {
                break;
            };
            if start == end && last_match == Some(end) {
                // An empty match right behind a match is none: go on behind the next character.
                from = end + text[end..].chars().next().map_or(1, char::len_utf8);
                continue;
            }
            (from, last_match) = (end, Some(end));
            if done != start {
                matches.push(((done, start), false));
            }
            matches.push(((start, end), true));
            done = end;
        }
        if done != text.len() {
            matches.push(((done, text.len()), false));
        }
        Ok(matches)
    }
}

struct Search<'a> {
    regex: &'a Regex,
    text: &'a str,
    clock: &'a Clock,
    region: Region,
    retries: u32,
    /// Places tried.
    places: u32,
}

impl<'a> Search<'a> {
    fn new(regex: &'a Regex, text: &'a str, clock: &'a Clock) -> Self {
        let (least, most) = FIRST_RETRIES;
        Self {
            regex,
            text,
            clock,
            region: Region::new(),
            retries: (FIRST_WORK / text.len().max(1)).clamp(least, most) as u32,
            places: 0,
        }
    }

    /// The first match that begins at `from` or behind it.
    fn next(&mut self, mut from: usize) -> Result<Option<(usize, usize)>, String> {
        loop {
            if let Some(found) = self.at(from)? {
                return Ok(Some(found));
            }
            match self.text[from..].chars().next() {
                None => return Ok(None),
                Some(c) => from += c.len_utf8(),
            }
        }
    }

    /// The match that begins at `place`.
    fn at(&mut self, place: usize) -> Result<Option<(usize, usize)>, String> {
        loop {
            self.places = self.places.wrapping_add(1);
            if self.places.is_multiple_of(PLACES_A_LOOK) {
                self.clock
                    .check(&format!("matching {}", quote::name(&self.regex.source)))?;
            }
            let mut limits = MatchParam::default();
            limits.set_retry_limit_in_match(self.retries);
            limits.set_match_stack_limit(MAX_STACK);
            self.region.clear();
            let began = Instant::now();
            let found = self.regex.regex.match_with_param(
                self.text,
                place,
                SearchOptions::SEARCH_OPTION_NONE,
                Some(&mut self.region),
                limits,
            );
            match found {
                Ok(Some(_)) => return Ok(self.region.pos(0)),
                Ok(None) => return Ok(None),
                Err(error) => self.allow_more(&error, began.elapsed())?,
            }
        }
    }

    /// More retries for the same places, if their time is there.
    fn allow_more(&mut self, error: &onig::Error, took: Duration) -> Result<(), String> {
        let pattern = &self.regex.source;
        match error.code() {
            RETRY_LIMIT_OVER if self.retries < MAX_RETRIES => {
                if took * MORE_RETRIES > self.clock.left() {
                    return Err(self.clock.over(&format!("matching {pattern:?}")));
                }
                self.retries = MAX_RETRIES.min(self.retries * MORE_RETRIES);
                Ok(())
            }
            RETRY_LIMIT_OVER => Err(format!(
                "matching {pattern:?} takes more than {MAX_RETRIES} retries at one place of the text, the limit of the tokenizers library"
            )),
            STACK_LIMIT_OVER => Err(format!(
                "matching {pattern:?} takes more than {MAX_STACK} alternatives at once, expected a shorter text"
            )),
            _ => Err(format!("matching {pattern:?}: {}", error.description())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Clock {
        Clock::of(Duration::from_secs(seconds))
    }

    /// What the crate makes of the same, with Oniguruma's search.
    fn crate_matches(source: &str, text: &str) -> Matches {
        let regex = tokenizers::utils::SysRegex::new(source).unwrap();
        (&regex).find_matches(text).unwrap()
    }

    #[test]
    fn matches_are_those_of_the_crate() {
        let text = format!(
            "a bb  ccc\n\n é漢字 x{}y 12345 {}end\r\n",
            " ".repeat(9000),
            "🎈e\u{301}".repeat(3000)
        );
        for source in [
            "",
            "a*",
            "$",
            "^",
            r"\s+(?!\S)|\s+",
            r"\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"(?m).*x",
            r"(a|b|ab)(c|bcd)?",
            r"(?=漢)|y\b",
            r"(?<=é)漢|\b",
            r"e\Kn",
            "nowhere",
            r"\X",
            r"[[:alpha:]]+",
        ] {
            let regex = Regex::new(source).unwrap();
            let expected = crate_matches(source, &text);
            assert_eq!(
                regex.matches(&text, &seconds(60)).unwrap(),
                expected,
                "{source:?}"
            );
            assert_eq!(
                regex.matches("", &seconds(1)).unwrap(),
                crate_matches(source, "")
            );
        }
    }

    #[test]
    fn patterns_that_take_ages_end_with_an_error() {
        // Oniguruma looks whether the text has a letter that a match needs: it has.
        let text = format!("{}dbc", "a".repeat(300_000));
        for source in [
            // Exponential at one place.
            r"(a+)+[bc]",
            // Every place reads to the text's end, with hardly a retry.
            r"(?>a*)(?=[bc])",
            // Each retry reads to the text's end.
            r"(?:(?>a*)[bc]|a)*[bc]",
            r"(?:a(?=a*)){1,100000}?[bc]",
        ] {
            let regex = Regex::new(source).unwrap();
            let began = Instant::now();
            let error = regex.matches(&text, &seconds(1)).unwrap_err();
            assert!(error.contains("takes"), "{error}");
            assert!(
                began.elapsed() < Duration::from_secs(5),
                "{source}: {:?}",
                began.elapsed()
            );
        }
    }

    #[test]
    fn a_long_run_of_spaces_is_no_trouble() {
        let text = format!("x{}y", " ".repeat(1 << 20));
        let regex = Regex::new(r"\s*[\r\n]+|\s+(?!\S)|\s+").unwrap();
        assert_eq!(regex.matches(&text, &seconds(20)).unwrap().len(), 4);
    }

    #[test]
    fn what_is_no_pattern_is_named() {
        for source in ["(", "[a", r"\p{nonsense}", "(?<n", r"\Ga"] {
            let error = Regex::new(source).unwrap_err();
            assert!(
                error.contains("pattern \"") && !error.contains('\n'),
                "{error}"
            );
        }
        let deep = format!("{}a{}", "(".repeat(4000), ")".repeat(4000));
        let _ = Regex::new(&deep).map(|regex| regex.matches("a", &seconds(5)));
    }
}
