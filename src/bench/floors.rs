//! The least that a device needs for what was asked: weights, keys and values once across its memory bus, or the
//! multiplications at its peak, whichever takes longer. Routing is taken as even (see [`crate::plan::cost`]), or as counted.

use super::{Kind, Point};
use crate::backend::cuda::tuning::gpu::{Bound, Gpu};
use crate::plan::cost::Precision;
use crate::plan::{Cost, EngineOptions, Plan, StepKind, StepShape};

/// How fast the device is at its best.
#[derive(Debug, Clone, PartialEq)]
pub struct Rates {
    pub bytes_per_s: f64,
    /// Unknown: bytes alone make the floor.
    pub flops_per_s: Option<f64>,
    pub source: String,
}

impl Rates {
    /// What the user gave, else what is known of this GPU, else nothing.
    pub fn new(
        bandwidth_gb_s: Option<f64>,
        tflops: Option<f64>,
        gpu: Option<&Gpu>,
        precision: Precision,
    ) -> Option<Self> {
        if let Some(gb_s) = bandwidth_gb_s {
            return Some(Self {
                bytes_per_s: gb_s * 1e9,
                flops_per_s: tflops.map(|tflops| tflops * 1e12),
                source: "given".to_owned(),
            });
        }
        let gpu = gpu?;
        Some(Self {
            bytes_per_s: gpu.bytes_per_s,
            flops_per_s: Some(tflops.map_or_else(|| gpu.flops_per_s(precision), |t| t * 1e12)),
            source: format!("{}, {}", gpu.title, gpu.source),
        })
    }
}

/// The least time, and why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Floor {
    pub ms: f64,
    pub bound: Bound,
}

/// What `point` moves and computes at least: one step of `decode`, half-way through its tokens; all steps of a run of
/// `prefill` and `score`. None of the others, whose steps depend on when requests come. `experts_hit`: experts of a layer that
/// a step's rows go to, where they were counted.
pub fn cost(
    point: &Point,
    plan: &Plan,
    options: &EngineOptions,
    precision: Precision,
    experts_hit: Option<f64>,
) -> Option<Cost> {
    let shape = |kind, rows, context| {
        let shape = StepShape {
            kind,
            rows,
            context,
        };
        match experts_hit {
            None => plan.cost(&shape, precision),
            Some(hit) => plan.cost_of_experts(&shape, precision, hit),
        }
    };
    match point.kind {
        Kind::Decode => {
            let context = point.prompt_tokens + point.new_tokens / 2;
            Some(shape(StepKind::Decode, point.batch, context))
        }
        Kind::Prefill => Some(prompts(point, options, |rows, context| {
            shape(StepKind::Mixed, rows, context)
        })),
        Kind::Score => Some(prompts(point, options, |rows, context| {
            shape(StepKind::Score, rows, context)
        })),
        Kind::Serve => None,
    }
}

/// All prompts of `point` in as few steps as their rows allow: whole prompts together where a step holds one, else
/// one prompt after the other.
fn prompts(point: &Point, options: &EngineOptions, cost: impl Fn(u32, u32) -> Cost) -> Cost {
    let (most, tokens) = (options.step_tokens, point.prompt_tokens);
    if tokens > most {
        let steps = tokens.div_ceil(most);
        let step = |step: u32| {
            let (start, end) = (step * most, ((step + 1) * most).min(tokens));
            cost(end - start, end)
        };
        return (0..steps).map(step).sum::<Cost>() * f64::from(point.batch);
    }
    let together = (most / tokens).min(options.max_seqs);
    let (full, rest) = (point.batch / together, point.batch % together);
    let last = match rest {
        0 => Cost::default(),
        rest => cost(rest * tokens, tokens),
    };
    cost(together * tokens, tokens) * f64::from(full) + last
}

impl Rates {
    pub fn floor(&self, cost: &Cost) -> Floor {
        let memory_ms = cost.floor_bytes() / self.bytes_per_s * 1e3;
        let compute_ms = self.flops_per_s.map_or(0.0, |rate| cost.flops / rate * 1e3);
        match compute_ms > memory_ms {
            true => Floor {
                ms: compute_ms,
                bound: Bound::Compute,
            },
            false => Floor {
                ms: memory_ms,
                bound: Bound::Memory,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DType, ModelSource};
    use crate::plan::{GraphFile, Limits};
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

    /// The byte floors at full size that profiles/log/first-versions.md has.
    #[test]
    fn decode_floors_are_the_known_ones() {
        let source = ModelSource::parse("random:lfm2-8b-a1b").unwrap();
        let config = Arc::new(source.config().unwrap().0);
        let graphs = GraphFile::open(None).unwrap();
        let plan = graphs.plan(config, &Limits::default()).unwrap();
        let precision = Precision::new(DType::BF16, DType::BF16);
        let rates = Rates::new(None, None, Gpu::of_driver("NVIDIA H200"), precision).unwrap();
        for (batch, expected_ms) in [(1, 0.69), (8, 2.50), (32, 3.63), (256, 3.70)] {
            let cost = cost(
                &point(Kind::Decode, batch, 32),
                &plan,
                &options(256),
                precision,
                None,
            );
            let floor = rates.floor(&cost.unwrap());
            assert!(
                (floor.ms / expected_ms - 1.0).abs() < 0.03,
                "{batch}: {}",
                floor.ms
            );
            assert_eq!(floor.bound, Bound::Memory);
        }
        assert_eq!(Rates::new(None, None, None, precision), None);
        let given = Rates::new(Some(100.0), None, None, precision).unwrap();
        assert_eq!(given.bytes_per_s, 1e11);
    }

    #[test]
    fn prompts_fill_steps() {
        let count = |batch, tokens, max_seqs| {
            let shapes = std::cell::RefCell::new(Vec::new());
            let point = point(Kind::Prefill, batch, tokens);
            let cost = prompts(&point, &options(max_seqs), |rows, context| {
                shapes.borrow_mut().push((rows, context));
                Cost {
                    flops: f64::from(rows),
                    ..Cost::default()
                }
            });
            (shapes.into_inner(), cost.flops)
        };
        assert_eq!(count(1024, 32, 16), (vec![(512, 32)], 1024.0 * 32.0));
        assert_eq!(count(5, 200, 16), (vec![(200, 200), (400, 200)], 1000.0));
        assert_eq!(count(8, 32, 3), (vec![(64, 32), (96, 32)], 256.0));
        assert_eq!(
            count(2, 1100, 16),
            (vec![(512, 512), (512, 1024), (76, 1100)], 2200.0)
        );
    }
}
