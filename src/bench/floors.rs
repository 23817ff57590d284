//! The least that a device needs for what was asked: by operations, from the larger of each one's bytes' time and products' time.
//! Routing is taken as even (see [`crate::plan::cost`]).

use super::{Kind, Point};
pub use crate::backend::cuda::tuning::gpu::{Least, Rates};
use crate::plan::cost::Precision;
use crate::plan::{EngineOptions, Plan, StepKind, StepShape};

/// What `point` takes at least: one step of `decode`, half-way through its tokens; all steps of a run of `prefill` and `score`.
/// The others have no floor, as their steps depend on when requests come.
pub fn least(
    point: &Point,
    plan: &Plan,
    options: &EngineOptions,
    precision: Precision,
    rates: &Rates,
) -> Option<Least> {
    let prompts = |kind| prompts(point, (options.step_tokens, options.max_seqs), kind);
    let steps = match point.kind {
        Kind::Decode => {
            let shape = StepShape {
                kind: StepKind::Decode,
                rows: point.batch,
                context: point.prompt_tokens + point.new_tokens / 2,
            };
            vec![(1, shape)]
        }
        Kind::Prefill => prompts(StepKind::Mixed),
        Kind::Score => prompts(StepKind::Score),
        Kind::Serve => return None,
    };
    let each = |(count, shape): &(u32, StepShape)| {
        rates.least(plan.costs(shape, precision)) * f64::from(*count)
    };
    steps.iter().map(each).reduce(|sum, step| sum + step)
}

/// All prompts of `point` in as few steps as their rows allow, as counts of steps that are alike: whole prompts together where a step
/// holds one, else one prompt after the other. `most`: tokens of a step, and `max_seqs`.
fn prompts(point: &Point, (most, max_seqs): (u32, u32), kind: StepKind) -> Vec<(u32, StepShape)> {
    let tokens = point.prompt_tokens;
    let steps = |count: u32, rows: u32, context: u32| {
        let shape = StepShape {
            kind,
            rows,
            context,
        };
        (count, shape)
    };
    if tokens > most {
        let chunk = |start: u32| {
            let end = (start + most).min(tokens);
            steps(point.batch, end - start, end)
        };
        return (0..tokens).step_by(most as usize).map(chunk).collect();
    }
    let together = (most / tokens).min(max_seqs);
    let (full, rest) = (point.batch / together, point.batch % together);
    let all = [
        steps(full, together * tokens, tokens),
        steps(1, rest * tokens, tokens),
    ];
    let all = all.into_iter();
    all.filter(|(count, shape)| *count > 0 && shape.rows > 0)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::tuning::gpu::Bound;
    use crate::plan::Cost;

    /// Operations follow each other, so that one bound by memory and one bound by products take both times.
    #[test]
    fn a_floor_is_the_sum_over_operations() {
        let rates = Rates {
            bytes_per_s: 1e6,
            flops_per_s: Some(1e6),
            l2_bytes: 100.0,
            source: String::new(),
        };
        let cost = |weight_bytes, activation_bytes, flops| Cost {
            weight_bytes,
            activation_bytes,
            flops,
            ..Cost::default()
        };
        let least = rates.least([cost(30.0, 100.0, 10.0), cost(5.0, 0.0, 20.0)]);
        assert_eq!((least.us(), least.bound()), (50.0, Bound::Memory));
        assert_eq!((least.bytes, least.flops), (35.0, 30.0));
        let past_the_cache = rates.least([cost(30.0, 101.0, 10.0)]);
        assert_eq!(past_the_cache.us(), 131.0);
        assert_eq!(Rates::unlimited().least([cost(30.0, 1e9, 10.0)]).us(), 0.0);
    }

    #[test]
    fn prompts_fill_steps() {
        let steps = |batch, tokens, max_seqs| -> Vec<(u32, u32, u32)> {
            let point = Point::of(Kind::Prefill, batch, tokens, 160);
            let steps = prompts(&point, (512, max_seqs), StepKind::Mixed);
            let each = |(count, step): &(u32, StepShape)| (*count, step.rows, step.context);
            steps.iter().map(each).collect()
        };
        assert_eq!(steps(1024, 32, 16), [(64, 512, 32)]);
        assert_eq!(steps(5, 200, 16), [(2, 400, 200), (1, 200, 200)]);
        assert_eq!(steps(8, 32, 3), [(2, 96, 32), (1, 64, 32)]);
        let chunks = [(2, 512, 512), (2, 512, 1024), (2, 76, 1100)];
        assert_eq!(steps(2, 1100, 16), chunks);
    }
}
