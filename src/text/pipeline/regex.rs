//! Patterns of tokenizer.json, matched by Oniguruma as Python's tokenizers do, in bounded memory.

use onig::{MatchParam, Region, SearchOptions};
use tokenizers::Offsets;
use tokenizers::tokenizer::pattern::Pattern;

/// Oniguruma's own limit of retries at one place, which Python's tokenizers run with.
const MAX_RETRIES: u32 = 10_000_000;
/// Alternatives that Oniguruma may remember at once, 40 bytes or so each.
const MAX_STACK: u32 = 8 << 20;
/// Bytes of a pattern: published ones have some hundreds.
const MAX_PATTERN_BYTES: usize = 1 << 16;

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
    /// Retries or alternatives do not suffice. The crate panics there, and Python's tokenizers with it.
    pub fn matches(&self, text: &str) -> Result<Matches, String> {
        if text.is_empty() {
            return Ok(vec![((0, 0), false)]);
        }
        let mut matches = Matches::new();
        let (mut done, mut from, mut last_match) = (0, 0, None);
        let mut region = Region::new();
        while from <= text.len() {
            let Some((start, end)) = self.search(text, from, &mut region)? else {
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

    /// The first match that begins at `from` or behind it.
    fn search(
        &self,
        text: &str,
        from: usize,
        region: &mut Region,
    ) -> Result<Option<(usize, usize)>, String> {
        let mut limits = MatchParam::default();
        limits.set_retry_limit_in_match(MAX_RETRIES);
        limits.set_match_stack_limit(MAX_STACK);
        region.clear();
        let found = self.regex.search_with_param(
            text,
            from,
            text.len(),
            SearchOptions::SEARCH_OPTION_NONE,
            Some(region),
            limits,
        );
        match found {
            Ok(found) => Ok(found.and_then(|_| region.pos(0))),
            Err(error) => Err(format!(
                "matching {:?}: {}, expected a text that Oniguruma matches within its limits",
                self.source,
                error.description()
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            r"\G.|b",
            r"(?<=é)漢|\b",
            r"e\Kn",
            "nowhere",
            r"\X",
            r"[[:alpha:]]+",
        ] {
            let regex = Regex::new(source).unwrap();
            let expected = crate_matches(source, &text);
            assert_eq!(regex.matches(&text).unwrap(), expected, "{source:?}");
            assert_eq!(regex.matches("").unwrap(), crate_matches(source, ""));
        }
    }

    #[test]
    fn a_pattern_that_retries_without_end_is_an_error() {
        let regex = Regex::new(r"(a+)+[bc]").unwrap();
        let error = regex
            .matches(&format!("{}dbc", "a".repeat(1000)))
            .unwrap_err();
        assert!(
            error.contains("(a+)+[bc]") && error.contains("retry-limit"),
            "{error}"
        );
    }

    #[test]
    fn a_long_run_of_spaces_is_no_trouble() {
        let text = format!("x{}y", " ".repeat(1 << 20));
        let regex = Regex::new(r"\s*[\r\n]+|\s+(?!\S)|\s+").unwrap();
        assert_eq!(regex.matches(&text).unwrap().len(), 4);
    }

    #[test]
    fn what_is_no_pattern_is_named() {
        for source in ["(", "[a", r"\p{nonsense}", "(?<n"] {
            let error = Regex::new(source).unwrap_err();
            assert!(
                error.contains("pattern \"") && !error.contains('\n'),
                "{error}"
            );
        }
        let deep = format!("{}a{}", "(".repeat(4000), ")".repeat(4000));
        let _ = Regex::new(&deep).map(|regex| regex.matches("a"));
    }
}
