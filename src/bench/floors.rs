//! The least that a device needs for what was asked: by operations, from the larger of each one's bytes' time and products' time.
//! Routing is taken as even (see [`crate::plan::cost`]), or as counted.

use super::{Kind, Point};
pub use crate::backend::cuda::tuning::gpu::{Least, Rates};
use crate::plan::cost::Precision;
use crate::plan::{EngineOptions, Plan, StepKind, StepShape};

/// What `point` takes at least: one step of `decode`, half-way through its tokens; all steps of a run of `prefill` and `score`.
/// The others have no floor, as their steps depend on when requests come. `experts_hit`: experts of a layer that a step's rows go
/// to, where they were counted.
pub fn least(
    point: &Point,
    plan: &Plan,
    options: &EngineOptions,
    precision: Precision,
    experts_hit: Option<f64>,
    rates: &Rates,
) -> Option<Least> {
    let steps = match point.kind {
        Kind::Decode => {
            let context = point.prompt_tokens + point.new_tokens / 2;
            vec![(1, shape(StepKind::Decode, point.batch, context))]
        }
        Kind::Prefill => prompts(point, options, StepKind::Mixed),
        Kind::Score => prompts(point, options, StepKind::Score),
        Kind::Serve => return None,
    };
    let each = |(count, shape): &(u32, StepShape)| {
        rates.least(plan.costs(shape, precision, experts_hit)) * f64::from(*count)
    };
    steps.iter().map(each).reduce(|sum, step| sum + step)
}

fn shape(kind: StepKind, rows: u32, context: u32) -> StepShape {
    StepShape {
        kind,
        rows,
        context,
    }
}

/// All prompts of `point` in as few steps as their rows allow, as counts of steps that are alike: whole prompts together where a step
/// holds one, else one prompt after the other.
fn prompts(point: &Point, options: &EngineOptions, kind: StepKind) -> Vec<(u32, StepShape)> {
    let (most, tokens) = (options.step_tokens, point.prompt_tokens);
    if tokens > most {
        let step = |start: u32| {
            let end = (start + most).min(tokens);
            (point.batch, shape(kind, end - start, end))
        };
        return (0..tokens).step_by(most as usize).map(step).collect();
    }
    let together = (most / tokens).min(options.max_seqs);
    let (full, rest) = (point.batch / together, point.batch % together);
    let steps = [(full, together), (u32::from(rest > 0), rest)];
    let steps = steps.into_iter().filter(|(count, _)| *count > 0);
    steps
        .map(|(count, prompts)| (count, shape(kind, prompts * tokens, tokens)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::tuning::gpu::{Bound, Gpu};
    use crate::model::{DType, ModelSource};
    use crate::plan::{Cost, GraphFile, Limits};
    use std::sync::Arc;

    fn point(kind: Kind, batch: u32, prompt_tokens: u32) -> Point {
        Point::of(kind, batch, prompt_tokens, 160)
    }

    fn options(max_seqs: u32) -> EngineOptions {
        EngineOptions {
            max_seqs,
            max_context: 4096,
            page_tokens: 64,
            pages: 4096,
            step_tokens: 512,
            chunk_tokens: 512,
            chunk_share: 0,
            chunk_align: 64,
            steps_in_flight: 1,
            record: false,
        }
    }

    /// The floors of bytes alone are those of profiles/log/first-versions.md, where the one of 256 rows is 3.70: at that many rows
    /// products bound the matrices that every row meets.
    #[test]
    fn decode_floors_are_the_known_ones() {
        let source = ModelSource::parse("random:lfm2-8b-a1b").unwrap();
        let config = Arc::new(source.config().unwrap().0);
        let graphs = GraphFile::open(None).unwrap();
        let plan = graphs.plan(config, &Limits::default()).unwrap();
        let precision = Precision::new(DType::BF16, DType::BF16);
        let rates = Rates::new(None, None, Gpu::of_driver("NVIDIA H200"), precision).unwrap();
        for (batch, expected_ms) in [(1, 0.69), (8, 2.50), (32, 3.63), (256, 3.91)] {
            let point = point(Kind::Decode, batch, 32);
            let least = least(&point, &plan, &options(256), precision, None, &rates).unwrap();
            let ms = least.us() / 1e3;
            assert!((ms / expected_ms - 1.0).abs() < 0.02, "{batch}: {ms}");
            assert_eq!(least.bound(), Bound::Memory);
        }
        assert_eq!(Rates::new(None, None, None, precision), None);
        let given = Rates::new(Some(100.0), None, None, precision).unwrap();
        assert_eq!(given.bytes_per_s, 1e11);
    }

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
            let point = point(Kind::Prefill, batch, tokens);
            let steps = prompts(&point, &options(max_seqs), StepKind::Mixed);
            let each = |(count, step): &(u32, StepShape)| (*count, step.rows, step.context);
            steps.iter().map(each).collect()
        };
        assert_eq!(steps(1024, 32, 16), [(64, 512, 32)]);
        assert_eq!(steps(5, 200, 16), [(2, 400, 200), (1, 200, 200)]);
        assert_eq!(steps(8, 32, 3), [(2, 96, 32), (1, 64, 32)]);
        assert_eq!(
            steps(2, 1100, 16),
            [(2, 512, 512), (2, 512, 1024), (2, 76, 1100)]
        );
    }
}
