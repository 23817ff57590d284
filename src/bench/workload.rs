//! What is sent to an engine: prompts that differ, so that routing spreads, and when they arrive. Both follow from the
//! seed and the repeat alone, so whatever is compared gets the same.

use super::Point;
use crate::error::{Error, Result};
use crate::quote;
use crate::runtime::{Logits, Request, Sampling};
use std::path::Path;
use std::time::Duration;

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of `seed`'s `index`-th repeat.
    pub fn new(seed: u64, index: u64) -> Self {
        let mut random = Self(seed ^ 0x5851_f42d_4c95_7f2d);
        random.0 ^= random
            .bits()
            .wrapping_add(index.wrapping_mul(0x2545_f491_4f6c_dd1d));
        random
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In (0, 1).
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
    }

    /// Exponentially distributed with mean 1.
    pub fn exponential(&mut self) -> f64 {
        -self.uniform().ln()
    }
}

/// A request and when it is due.
#[derive(Debug, Clone, PartialEq)]
pub struct Arrival {
    /// From the start of the run.
    pub due: Duration,
    pub request: Request,
}

/// A greedy request that nothing but its length ends.
pub fn request(prompt: Vec<u32>, max_new_tokens: u32, logits: Logits) -> Request {
    Request {
        prompt,
        max_new_tokens,
        unlimited: false,
        stop_ids: Vec::new(),
        min_new_tokens: 0,
        biases: Vec::new(),
        sampling: Sampling::default(),
        timeout: None,
        logits,
    }
}

fn prompt(random: &mut Random, tokens: u32, vocabulary: u32) -> Vec<u32> {
    let token = |_| (random.bits() % u64::from(vocabulary)) as u32;
    (0..tokens).map(token).collect()
}

/// Tokens of the next prompt.
fn length(point: &Point, random: &mut Random) -> u32 {
    let Some(shortest) = point.ragged_from else {
        return point.prompt_tokens;
    };
    let lengths = u64::from(point.prompt_tokens - shortest) + 1;
    shortest + (random.bits() % lengths) as u32
}

/// Tokens with a bias in a request of [`Point::penalties`].
const BIASES: u32 = 8;

/// All that changes logits before they are sampled, and the prompt as it was.
fn penalize(request: &mut Request, vocabulary: u32) {
    request.sampling.presence_penalty = 0.5;
    request.sampling.frequency_penalty = 0.25;
    let count = BIASES.min(vocabulary);
    request.biases = (0..count)
        .map(|i| (vocabulary / count * i, if i % 2 == 0 { 1.0 } else { -1.0 }))
        .collect();
}

/// `count` requests of `point`'s lengths that are all due at once.
pub fn at_once(
    point: &Point,
    count: u32,
    logits: Logits,
    vocabulary: u32,
    random: &mut Random,
) -> Vec<Arrival> {
    let arrival = |_| {
        let tokens = length(point, random);
        let prompt = prompt(random, tokens, vocabulary);
        let mut request = request(prompt, point.new_tokens, logits);
        if point.penalties {
            penalize(&mut request, vocabulary);
        }
        Arrival {
            due: Duration::ZERO,
            request,
        }
    };
    (0..count).map(arrival).collect()
}

/// Spreads `arrivals` over time as a Poisson process of `rate` requests a second; an infinite one leaves them at once.
pub fn poisson(arrivals: &mut [Arrival], rate: f64, random: &mut Random) {
    let mut at_s = 0.0;
    for arrival in arrivals {
        at_s += random.exponential() / rate;
        arrival.due = Duration::from_secs_f64(at_s);
    }
}

/// One line of a file of arrivals.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    pub due: Duration,
    /// Tokens of the prompt and to generate, where the line says.
    pub lengths: Option<(u32, u32)>,
}

/// Reads a file of arrivals: `SECONDS [PROMPT_LEN GEN_LEN]` a line, in order; empty lines and `#` are skipped.
///
/// # Errors
/// It cannot be read, or a line is none: the line is named.
pub fn read_arrivals(path: &Path) -> Result<Vec<Line>> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Error::open(path, &error, "a file of arrivals"))?;
    let mut lines: Vec<Line> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let wrong = || {
            let found = quote::text(line);
            let expected = "SECONDS or SECONDS PROMPT_LEN GEN_LEN, ascending";
            Error::file(
                path,
                format!("line {}: found '{found}', expected {expected}", index + 1),
            )
        };
        let arrival = parse_line(line).ok_or_else(wrong)?;
        if lines.last().is_some_and(|last| last.due > arrival.due) {
            return Err(wrong());
        }
        lines.push(arrival);
    }
    if lines.is_empty() {
        return Err(Error::file(path, "found no arrivals, expected one a line"));
    }
    Ok(lines)
}

fn parse_line(line: &str) -> Option<Line> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let (seconds, lengths) = match fields[..] {
        [seconds] => (seconds, None),
        [seconds, prompt, new] => (seconds, Some((prompt.parse().ok()?, new.parse().ok()?))),
        _ => return None,
    };
    let due = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
    let positive = lengths.is_none_or(|(prompt, new)| prompt > 0 && new > 0);
    positive.then_some(Line { due, lengths })
}

/// The requests of a file's lines; `point` has the lengths of lines that do not say.
pub fn from_lines(
    lines: &[Line],
    point: &Point,
    vocabulary: u32,
    random: &mut Random,
) -> Vec<Arrival> {
    let arrival = |line: &Line| {
        let (tokens, new) = line
            .lengths
            .unwrap_or_else(|| (length(point, random), point.new_tokens));
        Arrival {
            due: line.due,
            request: request(prompt(random, tokens, vocabulary), new, Logits::None),
        }
    };
    lines.iter().map(arrival).collect()
}

/// Share of the vocabulary that the prompts name, at most 1: how far they are from sending all rows the same way.
pub fn vocabulary_share(arrivals: &[Arrival], vocabulary: u32) -> f64 {
    let mut named = vec![false; vocabulary as usize];
    for &token in arrivals.iter().flat_map(|arrival| &arrival.request.prompt) {
        named[token as usize] = true;
    }
    named.iter().filter(|&&named| named).count() as f64 / f64::from(vocabulary.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Kind;

    const POINT: Point = Point::of(Kind::Serve, 4, 16, 8);

    #[test]
    fn penalties_leave_the_prompts_as_they_are() {
        let point = Point {
            penalties: true,
            ..POINT
        };
        let of = |point: &Point, vocabulary| {
            let mut random = Random::new(7, 0);
            at_once(point, 3, Logits::None, vocabulary, &mut random)
        };
        for vocabulary in [5, 300] {
            let (plain, penalized) = (of(&POINT, vocabulary), of(&point, vocabulary));
            for (plain, penalized) in plain.iter().zip(&penalized) {
                assert_eq!(plain.request.prompt, penalized.request.prompt);
                let mut ids: Vec<u32> = penalized.request.biases.iter().map(|b| b.0).collect();
                ids.dedup();
                assert_eq!(ids.len(), vocabulary.min(BIASES) as usize);
                assert!(ids.iter().all(|&id| id < vocabulary));
                assert!(penalized.request.sampling.frequency_penalty > 0.0);
            }
        }
    }

    #[test]
    fn prompts_differ_and_repeat() {
        let make = |index| at_once(&POINT, 50, Logits::None, 512, &mut Random::new(3, index));
        let (one, again, other) = (make(0), make(0), make(1));
        assert_eq!(one, again);
        assert_ne!(one, other);
        let prompts: std::collections::HashSet<_> =
            one.iter().map(|a| a.request.prompt.clone()).collect();
        assert_eq!(prompts.len(), 50);
        // 800 draws of 512 values: 1 - exp(-800 / 512) = 0.79 of them are expected to be drawn.
        let share = vocabulary_share(&one, 512);
        assert!((0.72..0.86).contains(&share), "{share}");
    }

    #[test]
    fn ragged_prompts_have_all_lengths_of_their_range() {
        let point = Point {
            ragged_from: Some(10),
            ..POINT
        };
        let lengths = |index| -> Vec<usize> {
            let made = at_once(&point, 1000, Logits::None, 512, &mut Random::new(3, index));
            made.iter().map(|a| a.request.prompt.len()).collect()
        };
        let drawn = lengths(0);
        assert_eq!(drawn, lengths(0));
        assert_ne!(drawn, lengths(1));
        // Of 7 lengths each is expected 143 times, with a standard deviation of 11.
        for length in 10..=16 {
            let count = drawn.iter().filter(|&&l| l == length).count();
            assert!((99..187).contains(&count), "{count} of {length}");
        }
        assert!(drawn.iter().all(|length| (10..=16).contains(length)));
        assert_eq!(point.mean_prompt(), 13);
    }

    #[test]
    fn poisson_arrivals_have_their_rate_and_spread() {
        let mut random = Random::new(1, 0);
        let mut arrivals = at_once(&POINT, 4000, Logits::None, 512, &mut random);
        poisson(&mut arrivals, 50.0, &mut random);
        let mut gaps_s: Vec<f64> = arrivals
            .windows(2)
            .map(|pair| (pair[1].due - pair[0].due).as_secs_f64())
            .collect();
        let mean_s = gaps_s.iter().sum::<f64>() / gaps_s.len() as f64;
        assert!((mean_s * 50.0 - 1.0).abs() < 0.06, "{mean_s}");
        // The median of an exponential is ln 2 of its mean: evenly spaced arrivals would have 1.
        gaps_s.sort_by(f64::total_cmp);
        let median = gaps_s[gaps_s.len() / 2] / mean_s;
        assert!((median - std::f64::consts::LN_2).abs() < 0.05, "{median}");
        poisson(&mut arrivals, f64::INFINITY, &mut random);
        assert!(arrivals.iter().all(|arrival| arrival.due.is_zero()));
    }

    #[test]
    fn a_file_of_arrivals_is_read_and_its_mistakes_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("arrivals");
        std::fs::write(&path, "# at, prompt, new\n0\n\n0.5 7 3\n0.5\n").unwrap();
        let lines = read_arrivals(&path).unwrap();
        let arrivals = from_lines(&lines, &POINT, 512, &mut Random::new(0, 0));
        let seen: Vec<_> = arrivals
            .iter()
            .map(|a| {
                (
                    a.due.as_millis(),
                    a.request.prompt.len(),
                    a.request.max_new_tokens,
                )
            })
            .collect();
        assert_eq!(seen, [(0, 16, 8), (500, 7, 3), (500, 16, 8)]);
        for wrong in [
            "1\n0.5\n", "x\n", "-1\n", "1 2\n", "1 0 3\n", "inf\n", "", "# none\n",
        ] {
            std::fs::write(&path, wrong).unwrap();
            let message = read_arrivals(&path).unwrap_err().to_string();
            assert!(message.contains("expected"), "{wrong:?}: {message}");
        }
    }
}
