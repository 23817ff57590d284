//! The skinny kernels against those for any number, which other tests hold to f64: each operation of both on the
//! same input, over random shapes.

mod fused;
mod layer;
mod prediction;

use self::layer::{Input, Layer, SHAPES, SLOTS, Shape, WIDE, qkv_outputs};
use crate::common::random::Random;
use crate::rig::{Rig, SKINNY, TYPES, assert_rows_close, assert_same_bits, grouped};
use crate::routing::RoutingOnGpu;
use crate::support::Gpu;
use tailgraph::backend::cuda::families::experts::ExpertRows;
use tailgraph::backend::cuda::families::head::LogitsPart;
use tailgraph::backend::cuda::families::skinny::{Prediction, Residual};
use tailgraph::backend::cuda::families::tiled::{Epilogue, Prepared, Product, Rows};
use tailgraph::backend::cuda::matrix::Matrix;
use tailgraph::backend::cuda::memory::arena::best_words;
use tailgraph::backend::cuda::memory::buffer::Buffer;
use tailgraph::backend::cuda::tuning::variants::{Experts, Linear, Variant};
use tailgraph::model::DType;
use tailgraph::plan::{Op, OpKind};

/// What the operations leave, in order: by name, rows first.
struct Output {
    arrays: Vec<(&'static str, DType, Vec<f32>)>,
    experts: Vec<u32>,
}

/// One layer's operations both ways. Each pair has the same input: what the skinny kernels left before.
fn run(rig: &Rig, layer: &Layer, shape: Shape, input: &Input, bucket: usize) -> [Output; 2] {
    let (gpu, types, config) = (rig.gpu, rig.kernels.precision, &rig.config);
    let Shape { hidden, inner, .. } = shape;
    let (rows, top_k) = (input.rows.len(), shape.top_k);
    let step = input.step(gpu);
    let by = |linear, experts| rig.enqueue_by(&step, bucket, Variant { linear, experts });
    let queue = by(SKINNY, Experts::Skinny).expect("these kernels serve the bucket");
    let skinny = queue.skinny().expect("they are loaded");
    let plain = by(Linear::SwapAb, grouped(32)).or_else(|_| by(Linear::Tiled, Experts::Tiled));
    let plain = plain.expect("these serve any bucket");
    let operand = |elements: usize| gpu.poisoned(bucket * elements * types.compute.bytes());
    let f32s = |elements: usize| gpu.poisoned(bucket * elements * 4);
    let (routing, other_routing) = (
        RoutingOnGpu::new(gpu, config, &queue),
        RoutingOnGpu::new(gpu, config, &plain),
    );
    let states = [(); 2].map(|()| gpu.values(types.compute, &input.state));
    let residual = |values: &[f32]| {
        let h = f32s(hidden);
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        h.write(&gpu.stream, 0, &bytes).unwrap();
        h
    };
    let h0 = residual(&input.h);
    let (normed, bcx) = (operand(hidden), operand(3 * hidden));
    let product = |y: u64, x: u64, w: Matrix, bias: u64, epilogue| {
        let product = Product {
            y,
            x,
            w,
            w_pair: None,
            bias,
            epilogue,
            prepared: Prepared::Scratch(0),
        };
        // SAFETY: the arrays have these shapes.
        unsafe { plain.run(|to| to.product(&product, Rows::Step)) };
    };
    let conv = |x: &Buffer, state: &Buffer| layer.short_conv(x, bcx.at(0), state);
    let conv_in = layer.conv_in();
    let mut found = Vec::new();
    let mut expected = Vec::new();
    let mut keep = |name, dtype, a: &Buffer, b: &Buffer| {
        found.push((name, dtype, gpu.get_values(dtype, a)));
        expected.push((name, dtype, gpu.get_values(dtype, b)));
    };
    let xs = [(); 2].map(|()| operand(hidden));
    let (router, experts) = (layer.router(), layer.expert_weights());
    let parts = routing.addresses();
    let prediction = Prediction::of(&queue, skinny, 3, hidden as u32, &parts, &router, None);
    // SAFETY: every array has the shape that its operation asks for.
    unsafe {
        queue.run(|to| {
            to.skinny_conv(
                skinny,
                &conv(&xs[0], &states[0]),
                &conv_in,
                h0.at(0),
                prediction.as_ref(),
            )
        });
        queue.run(|to| to.norm(normed.at(0), h0.at(0), layer.norm.at(0)));
        product(
            bcx.at(0),
            normed.at(0),
            conv_in.in_proj,
            conv_in.bias,
            Epilogue::Store,
        );
        queue.run(|to| to.short_conv(&conv(&xs[1], &states[1])));
        keep("conv", types.compute, &xs[0], &xs[1]);
        keep("conv state", types.compute, &states[0], &states[1]);

        let hs = [(); 2].map(|()| residual(&input.h));
        let out = layer.out(&xs[0]);
        queue.run(|to| to.skinny_out(skinny, hs[0].at(0), &out, Some((&parts, &router))));
        product(hs[1].at(0), out.x, out.w, out.bias, Epilogue::Add);
        keep("out", DType::F32, &hs[0], &hs[1]);

        let after_out = residual(&gpu.get_values(DType::F32, &hs[0])[..rows * hidden]);
        let y = operand(top_k * inner);
        let sorted = operand(top_k * inner);
        let partial = f32s(top_k * hidden);
        queue.run(|to| {
            to.skinny_expert_gate_up(
                skinny,
                y.at(0),
                hs[0].at(0),
                (&parts, &router),
                &experts,
                prediction.as_ref(),
            )
        });
        queue.run(|to| to.skinny_down(skinny, hs[0].at(0), y.at(0), &parts, &experts));
        let other = other_routing.addresses();
        plain.run(|to| to.router(&other, normed.at(0), after_out.at(0), &router));
        let rows = ExpertRows {
            x: normed.at(0),
            prepared: 0,
            y: sorted.at(0),
            partial: partial.at(0),
        };
        plain.run(|to| {
            to.expert_products(&other, &experts, &rows, &[]);
            to.combine_experts(&other, after_out.at(0), &rows, None);
        });
        keep(
            "expert weights",
            DType::F32,
            &routing.weights,
            &other_routing.weights,
        );
        keep("experts", DType::F32, &hs[0], &after_out);

        let swap_ab = [(); 2].map(|()| operand(shape.swap_ab));
        let h = h0.at(0);
        let [w1, w3, w2] = layer.dense();
        queue.run(|to| {
            to.skinny_gate_up(skinny, swap_ab[0].at(0), h, layer.ffn_norm.at(0), (w1, w3))
        });
        queue.run(|to| to.norm(normed.at(0), h, layer.ffn_norm.at(0)));
        let gate_up = Product {
            y: swap_ab[1].at(0),
            x: normed.at(0),
            w: w1,
            w_pair: Some(w3),
            bias: 0,
            epilogue: Epilogue::SiluMul,
            prepared: Prepared::Scratch(0),
        };
        plain.run(|to| to.product(&gate_up, Rows::Step));
        keep("dense gate and up", types.compute, &swap_ab[0], &swap_ab[1]);
        let hs = [(); 2].map(|()| residual(&input.h));
        let down = Residual {
            x: swap_ab[0].at(0),
            w: w2,
            bias: 0,
        };
        queue.run(|to| to.skinny_out(skinny, hs[0].at(0), &down, None));
        product(hs[1].at(0), down.x, w2, 0, Epilogue::Add);
        keep("dense down", DType::F32, &hs[0], &hs[1]);

        let outputs = qkv_outputs(config);
        let qkv = [(); 2].map(|()| operand(outputs));
        let w = layer.qkv.matrix;
        queue.run(|to| to.skinny_project(skinny, (qkv[0].at(0), 0), h, layer.norm.at(0), &w, None));
        queue.run(|to| to.norm(normed.at(0), h, layer.norm.at(0)));
        product(qkv[1].at(0), normed.at(0), w, 0, Epilogue::Store);
        keep("q, k, v", types.compute, &qkv[0], &qkv[1]);

        let logits = [(); 2].map(|()| f32s(config.vocab_size));
        let head = layer.lm_head.matrix;
        let best = gpu.poisoned(best_words(bucket) * 8);
        let to_head = (logits[0].at(0), best.at(0));
        let of_head = [Op {
            kind: OpKind::LmHead,
            layer: None,
        }];
        queue.run(|to| {
            to.doing(&of_head);
            let skinny = to.skinny().expect("they are loaded");
            to.skinny_project(skinny, to_head, h, layer.norm.at(0), &head, None)
        });
        queue.run(|to| to.final_norm(normed.at(0), h, layer.norm.at(0)));
        plain.run(|to| {
            to.doing(&of_head);
            to.lm_head(
                LogitsPart::Sampled,
                true,
                logits[1].at(0),
                best.at(0),
                (normed.at(0), 0),
                head,
            )
        });
        keep("logits", DType::F32, &logits[0], &logits[1]);
    }
    let outputs = [(found, &routing), (expected, &other_routing)];
    outputs.map(|(arrays, routing)| Output {
        arrays,
        experts: gpu.get_u32(&routing.experts),
    })
}

fn served(rig: &Rig) -> bool {
    rig.serves(rig.kernels.products.skinny.is_some(), |capability| {
        capability >= (9, 0)
    })
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn few_rows_are_those_of_the_other_kernels() {
    let rows = [(1, 1), (2, 2), (2, 1), (4, 3), (8, 8), (8, 5), (3, 1)];
    are_those_of_the_other_kernels(&[SHAPES, WIDE].concat(), &rows);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_few_rows_are_those_of_the_other_kernels() {
    are_those_of_the_other_kernels(&[SHAPES[1], WIDE[0]], &[(1, 1), (2, 1), (8, 5)]);
}

/// In buckets of so many rows, with so many there.
fn are_those_of_the_other_kernels(shapes: &[Shape], buckets: &[(usize, usize)]) {
    let gpu = Gpu::new();
    let mut random = Random(71);
    for types in TYPES {
        for (index, &shape) in shapes.iter().enumerate() {
            let rig = Rig::new(&gpu, shape.config(), types);
            if !served(&rig) {
                continue;
            }
            let layer = Layer::new(&mut random, &rig, shape, index % 3 == 1);
            for &(bucket, rows) in buckets {
                let input = Input::new(&mut random, types, shape, rows);
                let [found, expected] = run(&rig, &layer, shape, &input, bucket);
                let what = format!("{types:?} {shape:?} {rows} rows of {bucket}");
                assert_eq!(found.experts, expected.experts, "{what}: experts");
                for ((name, dtype, a), (_, _, b)) in found.arrays.iter().zip(&expected.arrays) {
                    let (width, rows) = match *name {
                        "conv state" => ((shape.taps - 1) * shape.hidden, SLOTS),
                        _ => (a.len() / bucket, rows),
                    };
                    // What is rounded may round the other way, and the sums are in another order.
                    let limit = match (dtype, types.compute) {
                        (DType::F32, DType::F32) => 1e-5,
                        (DType::F32, _) => 2e-3,
                        (_, DType::F16) => 1e-3,
                        _ => 8e-3,
                    };
                    let what = format!("{what}: {name}");
                    assert_rows_close(&what, [a, b], width.max(1), rows, limit);
                }
            }
        }
    }
}

/// A row among others, and with other companions elsewhere in the bucket: the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_of_skinny_does_not_depend_on_its_companions() {
    let gpu = Gpu::new();
    let mut random = Random(72);
    for (types, shape) in TYPES
        .into_iter()
        .flat_map(|types| [(types, SHAPES[2]), (types, WIDE[3])])
    {
        let rig = Rig::new(&gpu, shape.config(), types);
        if !served(&rig) {
            continue;
        }
        let layer = Layer::new(&mut random, &rig, shape, false);
        for bucket in [2, 4, 8] {
            let all = Input::new(&mut random, types, shape, bucket);
            let whole = run(&rig, &layer, shape, &all, bucket);
            for (row, place) in [(0, bucket - 1), (bucket - 1, 0), (bucket / 2, 0)] {
                let mut moved = Input::new(&mut random, types, shape, place + 1);
                let hidden = shape.hidden;
                moved.h[place * hidden..].copy_from_slice(&all.h[row * hidden..][..hidden]);
                moved.state.clone_from(&all.state);
                let slot = all.rows[row].0;
                for (r, other) in moved.rows.iter_mut().enumerate() {
                    other.0 = (slot + SLOTS + r - place) % SLOTS;
                }
                moved.rows[place] = all.rows[row];
                let there = run(&rig, &layer, shape, &moved, bucket);
                for ((name, _, a), (_, _, b)) in there[0].arrays.iter().zip(&whole[0].arrays) {
                    if *name == "conv state" {
                        continue;
                    }
                    let width = a.len() / bucket;
                    let what = format!("{types:?} bucket {bucket} row {row} at {place}: {name}");
                    assert_same_bits(
                        &what,
                        &a[place * width..][..width],
                        &b[row * width..][..width],
                    );
                }
            }
        }
    }
}
