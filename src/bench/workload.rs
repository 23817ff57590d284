//! What is sent to an engine: prompts that differ, so that routing spreads, and when they arrive. Both follow from the
//! seed and the repeat alone, so whatever is compared gets the same.

use super::Point;
use crate::io::hash::mix64;
use crate::runtime::{Logits, Request, Sampling};
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
        mix64(self.0)
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
        borders: Vec::new(),
        followers: 0,
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

/// The requests of a run of `point`: a Poisson process of its rate, or all at once.
pub fn arrivals(
    point: &Point,
    logits: Logits,
    vocabulary: u32,
    random: &mut Random,
) -> Vec<Arrival> {
    let groups = point.shared.map_or(0, |shared| shared.groups);
    let tokens = point.shared.map_or(0, |shared| shared.tokens);
    let beginnings = (0..groups).map(|_| prompt(random, tokens, vocabulary));
    let beginnings: Vec<_> = beginnings.collect();
    let arrival = |_| {
        let length = length(point, random);
        let mut prompt = prompt(random, length, vocabulary);
        if groups > 0 {
            let group = random.bits() % u64::from(groups);
            prompt[..tokens as usize].copy_from_slice(&beginnings[group as usize]);
        }
        Arrival {
            due: Duration::ZERO,
            request: request(prompt, point.new_tokens, logits),
        }
    };
    let mut arrivals: Vec<_> = (0..point.requests).map(arrival).collect();
    // An infinite rate leaves them at once.
    if let Some(rate) = point.rate {
        let mut at_s = 0.0;
        for arrival in &mut arrivals {
            at_s += random.exponential() / rate;
            arrival.due = Duration::from_secs_f64(at_s);
        }
    }
    arrivals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Kind, Shared};

    fn made(point: Point, requests: u32, index: u64) -> Vec<Arrival> {
        let point = Point { requests, ..point };
        arrivals(&point, Logits::None, 512, &mut Random::new(3, index))
    }

    fn point() -> Point {
        Point::of(Kind::Serve, 4, 16, 8)
    }

    #[test]
    fn prompts_differ_and_repeat() {
        let (one, again, other) = (
            made(point(), 50, 0),
            made(point(), 50, 0),
            made(point(), 50, 1),
        );
        assert_eq!(one, again);
        assert_ne!(one, other);
        let prompts: std::collections::HashSet<_> =
            one.iter().map(|a| a.request.prompt.clone()).collect();
        assert_eq!(prompts.len(), 50);
    }

    #[test]
    fn ragged_prompts_have_all_lengths_of_their_range() {
        let point = Point {
            ragged_from: Some(10),
            ..point()
        };
        let lengths = |index| -> Vec<usize> {
            let made = made(point, 1000, index);
            made.iter().map(|a| a.request.prompt.len()).collect()
        };
        let drawn = lengths(0);
        assert_eq!(drawn, lengths(0));
        assert_ne!(drawn, lengths(1));
        // Each of 7 lengths is expected 143 times, with a standard deviation of 11.
        for length in 10..=16 {
            let count = drawn.iter().filter(|&&l| l == length).count();
            assert!((99..187).contains(&count), "{count} of {length}");
        }
        assert!(drawn.iter().all(|length| (10..=16).contains(length)));
        assert_eq!(point.mean_prompt(), 13);
    }

    #[test]
    fn prompts_begin_with_one_of_those_that_are_shared() {
        let shared = Some(Shared {
            tokens: 12,
            groups: 3,
        });
        let made = made(Point { shared, ..point() }, 300, 0);
        let mut counts = std::collections::HashMap::new();
        for arrival in &made {
            assert_eq!(arrival.request.prompt.len(), 16);
            *counts.entry(&arrival.request.prompt[..12]).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 3);
        // Each is expected 100 times, with a standard deviation of 8.
        assert!(counts.values().all(|count| (60..140).contains(count)));
        let ends: std::collections::HashSet<_> =
            made.iter().map(|a| &a.request.prompt[12..]).collect();
        assert_eq!(ends.len(), 300);
    }

    #[test]
    fn poisson_arrivals_have_their_rate_and_spread() {
        let at = |rate| {
            let rate = Some(rate);
            made(Point { rate, ..point() }, 4000, 0)
        };
        let arrivals = at(50.0);
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
        assert!(
            at(f64::INFINITY)
                .iter()
                .all(|arrival| arrival.due.is_zero())
        );
    }
}
