//! One kernel for all of a row's experts against two.

use super::layer::{Input, Layer, SHAPES, Shape, WIDE, shape};
use super::served;
use crate::common::random::Random;
use crate::rig::{Rig, TYPES, assert_same_bits};
use crate::routing::RoutingOnGpu;
use crate::support::{Gpu, Holder};
use tailgraph::backend::cuda::families::skinny::Prediction;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::tuning::variants::{Experts, Linear, Variant};
use tailgraph::model::DType;

const ROWS: usize = 1;
/// Rows of three stages of the ring, the last of them short, and of blocks that are not whole.
const RAGGED: Shape = shape(4128, 64, 224, 17, 8, 2, false);

/// What a row's experts leave.
struct Left {
    h: Vec<f32>,
    weights: Vec<f32>,
    experts: Vec<u32>,
}

/// A layer's first kernels, then its experts as `variant` says. The prediction is made from `seen`, which is not always h; `around` comes
/// before the experts' kernels, when all before them have ended, and what it returns right behind them.
fn run<'a>(
    rig: &Rig,
    layer: &Layer,
    shape: Shape,
    (input, seen): (&Input, &[f32]),
    variant: Variant,
    around: impl FnOnce() -> Box<dyn Fn() + 'a>,
) -> Option<Left> {
    let (gpu, types) = (rig.gpu, rig.kernels.precision);
    let Shape { hidden, inner, .. } = shape;
    let step = input.step(gpu);
    let queue = rig.enqueue_by(&step, ROWS, variant).ok()?;
    let skinny = queue.skinny().expect("they are loaded");
    let routing = RoutingOnGpu::new(gpu, &rig.config, &queue);
    let parts = routing.addresses();
    let (router, experts) = (layer.router(), layer.expert_weights());
    let y = gpu.put(&vec![0; shape.top_k * inner * types.compute.bytes()]);
    let handed = (variant.experts == Experts::Fused).then(|| (y.at(0), y.bytes() as u32));
    let prediction = Prediction::of(&queue, skinny, 3, hidden as u32, &parts, &router, handed);
    let prediction = prediction.expect("any GPU has room for a few blocks");
    let x = gpu.poisoned(hidden * types.compute.bytes());
    let seen = gpu.values(DType::F32, seen);
    layer.begin(&queue, gpu, input, (&x, &seen), Some(&prediction));
    let h = gpu.values(DType::F32, &input.h);
    layer.begin(&queue, gpu, input, (&x, &h), None);
    let out = layer.out(&x);
    // SAFETY: every array has the shape that its operation asks for.
    unsafe {
        queue.run(|to| to.skinny_out(skinny, h.at(0), &out, Some((&parts, &router))));
    }
    gpu.stream.synchronize().unwrap();
    let behind = around();
    let (y, h_at, choosing) = (y.at(0), h.at(0), (&parts, &router));
    // SAFETY: as above.
    unsafe {
        queue.run(|to| match variant.experts {
            Experts::Fused => {
                to.skinny_fused_experts(skinny, h_at, choosing, &experts, &prediction)
            }
            _ => {
                to.skinny_expert_gate_up(skinny, y, h_at, choosing, &experts, Some(&prediction));
                to.skinny_down(skinny, h_at, y, &parts, &experts);
            }
        });
    }
    behind();
    Some(Left {
        h: gpu.get_values(DType::F32, &h),
        weights: gpu.get_values(DType::F32, &routing.weights),
        experts: gpu.get_u32(&routing.experts),
    })
}

fn nothing<'a>() -> Box<dyn Fn() + 'a> {
    Box::new(|| {})
}

fn variant(stages: u32, experts: Experts) -> Variant {
    Variant {
        linear: Linear::Skinny { stages },
        experts,
    }
}

fn assert_same(what: &str, found: &Left, expected: &Left) {
    assert_eq!(found.experts, expected.experts, "{what}");
    assert_same_bits(
        &format!("{what}: weights"),
        &found.weights,
        &expected.weights,
    );
    assert_same_bits(&format!("{what}: h"), &found.h, &expected.h);
}

/// With a prediction that is right and one that is wrong, less than a tile a block and several, and stages of down that are wider than
/// those of gate and up.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn fused_experts_leave_the_bits_of_two_kernels() {
    let grouped_down = shape(64, 32, 1792, 32, 4, 3, false);
    let more = [SHAPES[2], SHAPES[3], SHAPES[5], RAGGED, grouped_down];
    leave_the_bits_of_two_kernels(&more.into_iter().chain(WIDE).collect::<Vec<_>>());
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_fused_experts_leave_the_bits_of_two_kernels() {
    leave_the_bits_of_two_kernels(&[SHAPES[0], SHAPES[1], shape(96, 32, 224, 40, 3, 3, true)]);
}

fn leave_the_bits_of_two_kernels(shapes: &[Shape]) {
    let gpu = Gpu::new();
    let mut random = Random(74);
    for types in TYPES {
        for &shape in shapes.iter().filter(|shape| {
            // f32 has no such kernels of many experts, and beside more than 128 tiles there is no room for blocks that predict.
            shape.experts <= 32 || types.compute != DType::F32 && shape.hidden <= 2048
        }) {
            let rig = Rig::new(&gpu, shape.config(), types);
            if !served(&rig) {
                continue;
            }
            let layer = Layer::new(&mut random, &rig, shape, false);
            let input = Input::new(&mut random, types, shape, ROWS);
            let against: Vec<f32> = input.h.iter().map(|v| -v).collect();
            let two = variant(4, Experts::Skinny);
            let expected = run(&rig, &layer, shape, (&input, &input.h), two, nothing).unwrap();
            for stages in [2, 3, 5] {
                let one = variant(stages, Experts::Fused);
                for seen in [&input.h, &against] {
                    let found = run(&rig, &layer, shape, (&input, seen), one, nothing);
                    let what = format!("{types:?} {shape:?} {stages} stages");
                    let found = found.unwrap_or_else(|| panic!("{what}: not served"));
                    assert_same(&what, &found, &expected);
                }
            }
        }
    }
}

/// Half of the SMs are held by others: the blocks that run make what those that do not would have said, and end.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn fused_experts_do_not_wait_for_blocks_that_have_no_room() {
    const HELD_NS: u64 = 1_000_000_000;
    const UNTIL_HELD_NS: u64 = 50_000_000;
    const TRIES: usize = 40;
    let gpu = Gpu::new();
    let mut random = Random(75);
    // When it began to stand still, and when it had done so.
    let times = |noted: &Buffer| {
        let words: Vec<u64> = gpu
            .get_u32(noted)
            .chunks(2)
            .map(|w| u64::from(w[0]) | u64::from(w[1]) << 32)
            .collect();
        (words[0], words[1])
    };
    // Rows of one stage of the ring and of two.
    let shapes = [SHAPES[3], shape(4096, 64, 256, 17, 8, 2, false), RAGGED];
    for (types, shape) in TYPES
        .into_iter()
        .flat_map(|types| shapes.map(|shape| (types, shape)))
    {
        let rig = Rig::new(&gpu, shape.config(), types);
        if !served(&rig) {
            continue;
        }
        let holder = Holder::new(&gpu);
        let layer = Layer::new(&mut random, &rig, shape, false);
        let input = Input::new(&mut random, types, shape, ROWS);
        let one = variant(4, Experts::Fused);
        let what = format!("{types:?} {shape:?}");
        let alone = run(&rig, &layer, shape, (&input, &input.h), one, nothing).unwrap();
        // Held SMs may hold up the host too, where another test frees memory in between: then once more.
        let ended_first = (0..TRIES).any(|_| {
            let noted = [(); 3].map(|()| gpu.put(&[0; 16]));
            let stand = |which: usize, ns| holder.stand(&gpu.stream, &noted[which], ns);
            let found = run(&rig, &layer, shape, (&input, &input.h), one, || {
                holder.hold(|all| all / 2, &noted[0], HELD_NS);
                stand(1, UNTIL_HELD_NS);
                Box::new(|| stand(2, 0))
            });
            holder.wait();
            assert_same(&what, &found.unwrap(), &alone);
            let [(held_from, held_until), (_, begun), (ended, _)] =
                [0, 1, 2].map(|i| times(&noted[i]));
            let us = ended.saturating_sub(begun) / 1000;
            println!("{what}: {us} us with half of the SMs");
            held_from < begun && ended < held_until
        });
        assert!(ended_first, "{what}: waited for the SMs that others held");
    }
}
