//! What the skinny kernels predict of a step's experts.

use super::layer::{Input, Layer, SHAPES, Shape, WIDE, shape};
use super::served;
use crate::common::random::Random;
use crate::rig::{Rig, TYPES, assert_same_bits};
use crate::routing::RoutingOnGpu;
use crate::support::Gpu;
use tailgraph::backend::cuda::families::skinny::Prediction;
use tailgraph::backend::cuda::tuning::limits::{SKINNY_EXPERTS, skinny_predicted_experts};
use tailgraph::backend::cuda::tuning::variants::{Experts, Linear, Variant};
use tailgraph::model::DType;

/// The best two of so many experts that a kernel has left as its prediction in `routing`.
fn predicted(gpu: &Gpu, routing: &RoutingOnGpu, experts: usize) -> Vec<u32> {
    let words = gpu.get_u32(&routing.score_parts);
    // The mark of step and layer lies above 32 bits of score and 6 of the expert.
    let last = SKINNY_EXPERTS as u64 - 1;
    let mut words: Vec<u64> = words
        .chunks(2)
        .take(2 * experts.div_ceil(skinny_predicted_experts(experts)))
        .map(|word| u64::from(word[0]) | (u64::from(word[1]) & last) << 32)
        .collect();
    words.sort_unstable_by(|a, b| b.cmp(a));
    words
        .iter()
        .take(2)
        .map(|word| (last - (word & last)) as u32)
        .collect()
}

/// Which tiles a block of gate and up has follows from what was predicted; what comes of them does not. With several tiles for each
/// block, and less than one.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_prediction_changes_no_bits() {
    let gpu = Gpu::new();
    let mut random = Random(73);
    let (mut wrong, mut all) = (0, 0);
    for types in TYPES {
        for shape in [
            shape(64, 32, 1792, 32, 4, 3, false),
            SHAPES[2],
            WIDE[0],
            WIDE[2],
            WIDE[5],
        ] {
            let rig = Rig::new(&gpu, shape.config(), types);
            if !served(&rig) {
                continue;
            }
            let layer = Layer::new(&mut random, &rig, shape, false);
            for rows in [1, 2] {
                let input = Input::new(&mut random, types, shape, rows);
                // Rings of whole tiles, and such that end in the middle of one.
                for stages in [2, 3, 4, 5] {
                    wrong += usize::from(prediction_by_prediction(
                        &rig, &layer, shape, &input, stages,
                    ));
                    all += 1;
                }
            }
        }
    }
    assert!(
        wrong * 10 >= all * 9,
        "{wrong} of {all} predictions were wrong that were to be"
    );
}

/// Computes gate and up by a right prediction, and by one of the opposite activations. Returns whether that one was wrong: where rows go
/// to many experts, it may be right by accident.
fn prediction_by_prediction(
    rig: &Rig,
    layer: &Layer,
    shape: Shape,
    input: &Input,
    stages: u32,
) -> bool {
    let (gpu, types) = (rig.gpu, rig.kernels.precision);
    let (rows, hidden) = (input.rows.len(), shape.hidden);
    let step = input.step(gpu);
    let variant = Variant {
        linear: Linear::Skinny { stages },
        experts: Experts::Skinny,
    };
    let queue = rig
        .enqueue_by(&step, rows, variant)
        .expect("these kernels serve the bucket");
    let skinny = queue.skinny().expect("they are loaded");
    let routing = RoutingOnGpu::new(gpu, &rig.config, &queue);
    let parts = routing.addresses();
    let (router, experts) = (layer.router(), layer.expert_weights());
    let prediction = Prediction::of(&queue, skinny, 3, hidden as u32, &parts, &router, None);
    let prediction = prediction.expect("any GPU has room for a few blocks");
    let x = gpu.poisoned(rows * hidden * types.compute.bytes());
    let begin = |h: &[f32], prediction: Option<&Prediction>| {
        layer.begin(
            &queue,
            gpu,
            input,
            (&x, &gpu.values(DType::F32, h)),
            prediction,
        );
    };
    begin(&input.h, None);
    let h = gpu.values(DType::F32, &input.h);
    let out = layer.out(&x);
    // SAFETY: every array has the shape that its operation asks for.
    unsafe {
        queue.run(|to| to.skinny_out(skinny, h.at(0), &out, Some((&parts, &router))));
    }
    let behind = gpu.get_values(DType::F32, &h);
    let against: Vec<f32> = behind.iter().map(|v| -v).collect();
    let gate_up = |prediction: Option<&Prediction>| {
        let y = gpu.poisoned(rows * shape.top_k * shape.inner * types.compute.bytes());
        // SAFETY: as above.
        unsafe {
            let choosing = (&parts, &router);
            queue.run(|to| {
                to.skinny_expert_gate_up(skinny, y.at(0), h.at(0), choosing, &experts, prediction);
            });
        }
        let chosen = gpu.get_u32(&routing.experts);
        (chosen, gpu.get_values(types.compute, &y))
    };
    let (chosen, expected) = gate_up(None);
    let mut right = true;
    for (what, seen) in [("right", &behind), ("wrong", &against)] {
        begin(seen, Some(&prediction));
        let best = predicted(gpu, &routing, shape.experts);
        right = best.iter().all(|expert| chosen.contains(expert));
        assert!(
            right || what == "wrong",
            "{types:?} {shape:?}: {best:?} of {chosen:?}"
        );
        let (again, found) = gate_up(Some(&prediction));
        assert_eq!(again, chosen, "{types:?} {shape:?}");
        let what = format!("{types:?} {shape:?} {rows} rows, a {what} prediction");
        assert_same_bits(&what, &found, &expected);
    }
    !right
}
