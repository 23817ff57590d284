//! How long a job would take: some steps of its first sequences, timed on a started engine, and its schedule.
//!
//! Each token of a prompt takes what it took in a step of prompts alone, and a decode step what one of as many rows took, its rows being
//! as many sequences as run at once. What a longer context takes follows from [`crate::plan::cost`]: for decode rows from the bytes
//! that they read, for prompts from their products.

use super::opened::{Observe, Opened, load};
use crate::backend::SharedSink;
use crate::error::Result;
use crate::plan::{StepKind, StepShape};
use crate::runtime::{Engine, Event, Request};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

const EVENT_POLL: Duration = Duration::from_millis(20);
/// Tokens of each sequence where steps run for the first time, which touches memory, and where they are timed, at most.
const TOKENS: [u32; 2] = [4, 128];
/// Seconds of decode steps that are enough.
const ENOUGH: f64 = 0.5;

/// What a job would run.
#[derive(Debug, Default)]
pub struct Planned {
    /// Tokens of each sequence: of its prompt, and new ones at most (0 where the prompt is scored).
    pub sequences: Vec<(u32, u32)>,
    /// The first of them, as many as run at once.
    first: Vec<Request>,
}

/// What a job would take, and what that is known by.
#[derive(Debug, Clone, PartialEq)]
pub struct Forecast {
    pub seconds: f64,
    /// Sequences of each decode step that was timed.
    pub decoded: Vec<u32>,
    /// Tokens of prompts that were timed.
    pub prompt_tokens: u64,
}

impl Opened {
    /// Sequences that run at once, at most.
    fn most_at_once(&self) -> usize {
        self.options.max_seqs as usize * self.targets().count()
    }

    /// Plans one more sequence.
    pub fn plan_to_run(&self, planned: &mut Planned, request: &Request) {
        let new = request.max_new_tokens;
        planned.sequences.push((request.prompt.len() as u32, new));
        if planned.first.len() < self.most_at_once() {
            planned.first.push(request.clone());
        }
    }

    /// Loads the model, runs some of `planned`, in which there is a sequence, and tells how long all of it would take from there
    /// on. `sink`: takes the logits of prompts that are scored.
    ///
    /// # Errors
    /// Fails as [`load`] and [`Opened::engine`] do; the engine's.
    pub fn forecast(&self, planned: &Planned, sink: &SharedSink) -> Result<Forecast> {
        let model = load(&self.spec.model)?;
        let mut engine = self.engine(&model, sink, Observe::NOTHING)?.engine;
        let precision = self.precision()?;
        let cost = |kind, rows: f64, context: f64| {
            let (rows, context) = (rows as u32, context as u32);
            let shape = StepShape {
                kind,
                rows,
                context,
            };
            self.plan.cost(&shape, precision)
        };
        // Means over the tokens of prompts, and over new ones.
        let (mut prompts, mut squares, mut new, mut contexts) = (0.0, 0.0, 0.0, 0.0);
        for &(of_prompt, of_answer) in &planned.sequences {
            let (of_prompt, of_answer) = (f64::from(of_prompt), f64::from(of_answer));
            (prompts, squares) = (prompts + of_prompt, squares + of_prompt * of_prompt);
            (new, contexts) = (
                new + of_answer,
                contexts + of_answer * (of_prompt + of_answer / 2.0),
            );
        }
        let context = contexts / f64::max(new, 1.0);

        let most = planned.first.len();
        let step_tokens = self.options.step_tokens as usize * self.targets().count();
        // All prompts are read in one step.
        let share = (step_tokens / most).max(1);
        let decodes = planned.sequences.iter().any(|&(_, new)| new > 1);
        let (mut decode, mut prompt_tokens, mut seconds) = (Vec::new(), 0, 0.0);
        let fewer = [1, 4, 16, 64, 256].into_iter();
        for rows in fewer.filter(|&rows| decodes && rows < most).chain([most]) {
            let requests = |tokens: u32| -> Vec<Request> {
                let first = planned.first[..rows].iter();
                let timed = first.map(|request| {
                    let mut timed = request.clone();
                    timed.prompt.truncate(share);
                    let room = self.max_context() - timed.prompt.len() as u32;
                    timed.max_new_tokens = request.max_new_tokens.min(1) * tokens.min(room);
                    (timed.unlimited, timed.min_new_tokens) = (false, 0);
                    (timed.stop_ids, timed.timeout) = (Vec::new(), None);
                    timed
                });
                timed.collect()
            };
            let (_, step) = time(&mut *engine, &requests(TOKENS[0]))?;
            let enough = (ENOUGH / step.max(1e-6)) as u32;
            let requests = requests(enough.clamp(TOKENS[0], TOKENS[1]));
            let (read, step) = time(&mut *engine, &requests)?;
            prompt_tokens = requests
                .iter()
                .map(|request| request.prompt.len() as u64)
                .sum();
            let mean = prompt_tokens as f64 / rows as f64;
            let flops = |tokens: f64| cost(StepKind::Mixed, tokens, tokens).flops / tokens.floor();
            seconds =
                prompts * read / prompt_tokens as f64 * flops(squares / prompts) / flops(mean);
            if decodes {
                let bytes = |context| cost(StepKind::Decode, rows as f64, context).floor_bytes();
                decode.push((rows as u32, step * bytes(context) / bytes(mean)));
            }
        }
        let steps = planned
            .sequences
            .iter()
            .map(|&(_, new)| new.saturating_sub(1));
        Ok(Forecast {
            seconds: seconds + decode_seconds(steps, self.most_at_once(), &decode),
            decoded: decode.iter().map(|&(rows, _)| rows).collect(),
            prompt_tokens,
        })
    }
}

/// Seconds until each of `requests`, which run at once, had its first token or had ended, and those of each step from then on.
fn time(engine: &mut dyn Engine, requests: &[Request]) -> Result<(f64, f64)> {
    let start = Instant::now();
    let mut left = requests.iter().peekable();
    let (mut read, mut first_ns, mut last_ns) = (0.0, 0, 0);
    let (mut ended, mut steps) = (0, 0);
    while ended < requests.len() {
        while let Some(request) = left.peek()
            && engine.try_submit(request)?.is_some()
        {
            left.next();
        }
        match engine.next_stamped(EVENT_POLL)? {
            Some((at_ns, Event::Token { index, .. })) => {
                if index == 0 {
                    (read, first_ns) = (start.elapsed().as_secs_f64(), at_ns);
                }
                (last_ns, steps) = (at_ns, steps.max(index));
            }
            Some((_, Event::End { tokens, .. })) => {
                if tokens == 0 {
                    read = start.elapsed().as_secs_f64();
                }
                ended += 1;
            }
            None => {}
        }
    }
    let seconds = last_ns.saturating_sub(first_ns) as f64 / 1e9;
    Ok((read, seconds / f64::from(steps.max(1))))
}

/// The time of sequences with so many decode steps each, in order, `most` at once. `timed`: rows of a step and its seconds,
/// ascending; between them it goes in a straight line.
fn decode_seconds(steps: impl Iterator<Item = u32>, most: usize, timed: &[(u32, f64)]) -> f64 {
    let step = |rows: u32| {
        let at = timed.partition_point(|&(of, _)| of < rows);
        match (at.checked_sub(1).map(|below| timed[below]), timed.get(at)) {
            (Some((low, fast)), Some(&(high, slow))) => {
                fast + (slow - fast) * f64::from(rows - low) / f64::from(high - low)
            }
            (Some((_, time)), None) | (None, Some(&(_, time))) => time,
            (None, None) => 0.0,
        }
    };
    let mut steps = steps.filter(|&steps| steps > 0);
    let mut ends = BinaryHeap::new();
    let (mut now, mut seconds) = (0_u64, 0.0);
    loop {
        let room = most - ends.len();
        ends.extend(
            steps
                .by_ref()
                .take(room)
                .map(|steps| Reverse(now + u64::from(steps))),
        );
        let rows = ends.len() as u32;
        let Some(Reverse(end)) = ends.pop() else {
            return seconds;
        };
        seconds += (end - now) as f64 * step(rows);
        now = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_takes_the_place_of_one_that_ends() {
        let of = |steps: &[u32]| decode_seconds(steps.iter().copied(), 3, &[(1, 1.0), (3, 5.0)]);
        assert_eq!(of(&[]), 0.0);
        assert_eq!(of(&[0, 4]), 4.0);
        assert_eq!(of(&[4, 4]), 4.0 * 3.0);
        // The last one begins where the second ends, and goes on alone.
        assert_eq!(of(&[4, 2, 4, 5]), 4.0 * 5.0 + 3.0 * 1.0);
    }
}
