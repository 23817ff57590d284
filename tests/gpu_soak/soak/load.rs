//! What a soak asks of an engine: requests that follow from a seed and their number alone, and what may become of each.

#[path = "../../common/random.rs"]
#[allow(dead_code, reason = "each program uses its part")]
mod random;

pub use random::Random;
use std::time::Duration;
use tailgraph::runtime::{Logits, Request, Sampling};
use tailgraph::sys::abi::{TG_MAX_BIASES, TG_MAX_STOP_IDS};

/// What is done to a request on its way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fate {
    /// Nothing: it ends at a stop id or at its length.
    Whole,
    /// A cancel once it has given this many tokens; 0: as soon as it is queued, mostly before it has a slot.
    Cancel { after: u32 },
    /// Its timeout, which it may or may not reach.
    Deadline(Duration),
    /// It does not fit the context.
    TooLarge,
}

/// A request and its fate.
#[derive(Debug, Clone)]
pub struct Ask {
    pub number: u64,
    pub request: Request,
    pub fate: Fate,
}

/// Sizes of what is asked.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub vocab_size: u32,
    pub max_context: u32,
    pub longest_prompt: u32,
    pub most_new_tokens: u32,
    /// Longer than a request without a timeout takes.
    pub longest_timeout: Duration,
}

/// 1 to `most`, the logarithm evenly spread: short ones and long ones alike.
pub fn length(random: &mut Random, most: u32) -> u32 {
    let share = f64::from(random.below(1u32 << 20)) / f64::from(1 << 20);
    (f64::from(most).powf(share).round() as u32).clamp(1, most)
}

/// Request `number` of the soak with this seed.
pub fn ask(seed: u64, number: u64, shape: &Shape) -> Ask {
    let mut random = Random(seed ^ number.wrapping_mul(0xd134_2543_de82_ef95));
    let mut prompt = length(&mut random, shape.longest_prompt);
    let mut max_new_tokens = length(&mut random, shape.most_new_tokens);
    let fate = match random.below(20) {
        0 => Fate::Cancel { after: 0 },
        1 | 2 => Fate::Cancel {
            after: 1 + random.below(max_new_tokens),
        },
        3 | 4 => {
            let longest = shape.longest_timeout.as_micros() as u32;
            Fate::Deadline(Duration::from_micros(u64::from(length(
                &mut random,
                longest,
            ))))
        }
        5 if random.below(4) == 0 => {
            prompt = shape.longest_prompt;
            max_new_tokens = shape.max_context;
            Fate::TooLarge
        }
        _ => Fate::Whole,
    };
    // Half of them name no limit. That is what the context leaves, but not so much that they are all that runs.
    let unlimited = fate == Fate::Whole && random.below(2) == 0;
    if unlimited {
        let rest = shape.max_context - prompt;
        max_new_tokens = rest.min(4 * shape.most_new_tokens);
    }
    let timeout = match fate {
        Fate::Deadline(timeout) => Some(timeout),
        _ => None,
    };
    // Some requests end early by these: a random model takes each token now and then, and more often with a bias.
    let every = shape.vocab_size / TG_MAX_BIASES;
    let most_stop_ids = random.pick(&[0, TG_MAX_STOP_IDS]);
    let stop_ids = (0..random.below(most_stop_ids + 1))
        .map(|_| every * random.below(TG_MAX_BIASES))
        .collect();
    let request = Request {
        prompt: (0..prompt)
            .map(|_| random.below(shape.vocab_size))
            .collect(),
        max_new_tokens,
        unlimited,
        stop_ids,
        min_new_tokens: random.below(max_new_tokens.min(20) + 1),
        biases: (0..random.pick(&[0, 0, 0, 1, TG_MAX_BIASES]))
            .map(|i| (every * i, random.pick(&[-1.5, 4.0])))
            .collect(),
        sampling: sampling(&mut random),
        timeout,
        logits: Logits::None,
        borders: vec![],
        followers: 0,
    };
    Ask {
        number,
        request,
        fate,
    }
}

fn sampling(random: &mut Random) -> Sampling {
    let key = random.next();
    let logprobs = random.pick(&[None, None, Some(0), Some(5), Some(20)]);
    let repetition_penalty = random.pick(&[1.0, 1.0, 1.1, 1.3]);
    let presence_penalty = random.pick(&[0.0, 0.0, 0.5, -0.5]);
    let frequency_penalty = random.pick(&[0.0, 0.0, 0.3, -0.1]);
    if random.below(3) == 0 {
        return Sampling {
            repetition_penalty,
            presence_penalty,
            frequency_penalty,
            logprobs,
            ..Sampling::default()
        };
    }
    Sampling {
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        temperature: random.pick(&[0.5, 0.8, 1.0, 1.5]),
        top_k: random.pick(&[0, 0, 1, 40, 200]),
        top_p: random.pick(&[1.0, 1.0, 0.95, 0.5]),
        min_p: random.pick(&[0.0, 0.0, 0.05]),
        key,
        logprobs,
    }
}
