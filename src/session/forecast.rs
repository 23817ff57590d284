//! How long a job would take: some steps of its first sequences, timed on a started engine, and its schedule.
//!
//! Each token of a prompt takes what it took where prompts alone were read. A decode step takes what one of as many sequences took,
//! at the mean context of the job's new tokens. Where prompts of such lengths take too long to read, they are cut, and
//! [`crate::plan::cost`] says what the rest adds: products for prompts, bytes for decode steps.

use super::opened::{Observe, Opened, load};
use crate::backend::SharedSink;
use crate::error::Result;
use crate::plan::{StepKind, StepShape};
use crate::runtime::{Engine, Event, Logits, Request};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

const EVENT_POLL: Duration = Duration::from_millis(20);
/// Decode steps that are not timed, since they touch memory for the first time; and all of them, at most.
const WARM: u32 = 4;
const STEPS: u32 = 128;
/// Seconds of prompts, and of decode steps, that are enough.
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
        let (prompt, new) = (request.prompt.len() as u32, request.max_new_tokens);
        planned.sequences.push((prompt, new));
        if request.logits != Logits::None && new > 0 {
            // Its prompt is scored, too.
            planned.sequences.push((prompt, 0));
        }
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
        let model = load(&self.spec)?;
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

        // A sequence that is timed: so many tokens of its prompt, which begins anew where it is shorter, and so many new ones.
        let cut = |request: &Request, prompt: usize, new: u32| {
            let mut timed = request.clone();
            timed.max_new_tokens = new.min(self.max_context() - 1);
            let room = (self.max_context() - timed.max_new_tokens) as usize;
            let tokens = request.prompt.iter().cycle();
            timed.prompt = tokens.take(prompt.clamp(1, room)).copied().collect();
            (timed.unlimited, timed.min_new_tokens) = (false, 0);
            if new > 0 {
                timed.logits = Logits::None;
            }
            (timed.stop_ids, timed.timeout) = (Vec::new(), None);
            timed
        };
        let tokens = |requests: &[Request]| -> usize {
            let prompts = requests.iter().map(|request| request.prompt.len());
            prompts.sum()
        };
        let most = planned.first.len();
        let step_tokens = self.options.step_tokens as usize * self.targets().count();
        // Prompts that all are read in one step say how many are enough.
        let mut enough = step_tokens;
        let (mut whole, mut read) = (Vec::new(), 0.0);
        let share = (step_tokens / most).max(1);
        for share in [share, share, usize::MAX] {
            let mut left = enough;
            let first = planned.first.iter().map_while(|request| {
                let prompt = request.prompt.len().min(share).min(left);
                left -= prompt;
                (prompt > 0).then(|| cut(request, prompt, request.max_new_tokens.min(1)))
            });
            whole = first.collect();
            read = time(&mut *engine, &whole)?.read;
            let of_a_token = read.max(1e-6) / tokens(&whole) as f64;
            enough = ((ENOUGH / of_a_token) as usize).max(step_tokens);
        }
        let prompt_tokens = tokens(&whole) as f64;
        let squared: usize = whole
            .iter()
            .map(|request| request.prompt.len().pow(2))
            .sum();
        let flops = |tokens: f64| cost(StepKind::Mixed, tokens, tokens).flops / tokens.floor();
        let longer = flops(squares / prompts) / flops(squared as f64 / prompt_tokens);

        let decodes = planned.sequences.iter().any(|&(_, new)| new > 1);
        let fewer = [1, 4, 16, 64, 256].into_iter().filter(|&rows| rows < most);
        let mut decode = Vec::new();
        for rows in fewer.chain([most]).filter(|_| decodes) {
            // Most steps are of as many as run at once: these are timed at longer contexts.
            let enough = if rows == most { 4 * enough } else { enough };
            let prompt = (context as usize).saturating_sub(STEPS as usize / 2);
            let prompt = prompt.min(enough / rows);
            // Sequences whose prompts are read first decode beside the prompts of others.
            let ahead = (rows * prompt) as u32 / self.options.chunk_tokens;
            let first = planned.first[..rows].iter();
            let requests: Vec<Request> = first
                .map(|request| cut(request, prompt, ahead + STEPS + 1))
                .collect();
            let timed = time(&mut *engine, &requests)?;
            let bytes = |context| cost(StepKind::Decode, rows as f64, context).floor_bytes();
            let mean = tokens(&requests) as f64 / rows as f64 + timed.middle;
            let longer = bytes(context) / bytes(mean);
            decode.push((rows as u32, timed.step * longer));
        }
        let steps = planned
            .sequences
            .iter()
            .map(|&(_, new)| new.saturating_sub(1));
        Ok(Forecast {
            seconds: prompts * read / prompt_tokens * longer
                + decode_seconds(steps, self.most_at_once(), &decode),
            decoded: decode.iter().map(|&(rows, _)| rows).collect(),
            prompt_tokens: prompt_tokens as u64,
        })
    }
}

/// What some requests took.
#[derive(Default)]
struct Timed {
    /// Seconds until each had its first token or had ended.
    read: f64,
    /// Seconds of a step from then on, and the mean of the tokens that the last of them to begin had in these.
    step: f64,
    middle: f64,
}

/// Times `requests`, which run at once, and ends them once enough steps are timed.
fn time(engine: &mut dyn Engine, requests: &[Request]) -> Result<Timed> {
    let start = Instant::now();
    let mut timed = Timed::default();
    let (mut numbers, mut to_end) = (Vec::new(), Vec::new());
    let (mut begun, mut last, mut ended) = (0, 0, 0);
    let (mut from, mut from_ns, mut is_ending) = (0, 0, false);
    while ended < requests.len() {
        if numbers.len() < requests.len() {
            numbers.extend(engine.try_submit_all(&mut requests[numbers.len()..].iter())?);
        }
        to_end.retain(|&request| !engine.cancel(request));
        match engine.next_stamped(EVENT_POLL)? {
            Some((at_ns, Event::Token { request, index, .. })) => {
                if index == 0 {
                    timed.read = start.elapsed().as_secs_f64();
                    (begun, last) = (begun + 1, request);
                }
                if begun < requests.len() || request != last {
                    continue;
                }
                if index > from {
                    let seconds = at_ns.saturating_sub(from_ns) as f64 / 1e9;
                    timed.step = seconds / f64::from(index - from);
                    timed.middle = f64::from(index + from) / 2.0;
                    let is_enough = index == STEPS || index >= 2 * WARM && seconds > ENOUGH;
                    if is_enough && !is_ending {
                        is_ending = true;
                        to_end.clone_from(&numbers);
                    }
                }
                if index <= WARM {
                    (from, from_ns) = (index, at_ns);
                }
            }
            Some((_, Event::End { tokens, .. })) => {
                if tokens == 0 {
                    timed.read = start.elapsed().as_secs_f64();
                }
                ended += 1;
            }
            None => {}
        }
    }
    Ok(timed)
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
