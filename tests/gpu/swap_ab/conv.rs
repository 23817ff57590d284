//! A convolution layer's in-projection and convolution in one kernel, and what it prefetches.

use super::{SWAP_AB, allowed, served};
use crate::common::random::Random;
use crate::rig::{
    Rig, Step, StepOnGpu, TYPES, assert_rows_close, assert_same_bits, config, encode, rounded,
};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::conv::ShortConv;
use tailgraph::backend::cuda::families::experts::ExpertWeights;
use tailgraph::backend::cuda::families::tiled::{Epilogue, Parts, Product, Rows};
use tailgraph::backend::cuda::families::{Types, packed};
use tailgraph::backend::cuda::tuning::variants::{Experts, Grouped, Products, Variant};
use tailgraph::model::{DType, ModelConfig};

/// A conv layer's input: normed rows, every slot's state, weights.
struct ConvCase {
    hidden: usize,
    x: Vec<f32>,
    state: Vec<f32>,
    w: Vec<f32>,
    of_taps: Vec<f32>,
    biases: Option<[Vec<f32>; 2]>,
    /// Slot and position of each row.
    rows: Vec<(usize, usize)>,
}

const SLOTS: usize = 260;

impl ConvCase {
    fn new(random: &mut Random, types: Types, rows: usize, hidden: usize, taps: usize) -> Self {
        let first = random.below(SLOTS);
        let values =
            |random: &mut Random, n, scale| rounded(types.operand, &random.values(n, scale));
        let scale = 1.7 / (hidden as f32).sqrt();
        Self {
            hidden,
            x: values(random, rows * hidden, 2.0),
            state: values(random, SLOTS * (taps - 1) * hidden, 1.0),
            w: rounded(types.weights, &random.values(3 * hidden * hidden, scale)),
            of_taps: random.values(hidden * taps, 1.0),
            biases: (random.below(2) == 0)
                .then(|| [3 * hidden, hidden].map(|n| random.values(n, 1.0))),
            rows: (0..rows)
                .map(|r| ((first + r) % SLOTS, random.below(12)))
                .collect(),
        }
    }

    fn step(&self, gpu: &Gpu) -> StepOnGpu {
        let mut step = Step::with_slots(&mut Random(5), SLOTS, 16, 4);
        for &(slot, position) in &self.rows {
            step.chunk(slot, position as u32, 1);
        }
        step.upload(gpu)
    }

    /// y `[bucket, H]` and the state after it: in one kernel, or in-projection and short convolution.
    fn run(&self, rig: &Rig, bucket: usize, fused: bool) -> [Vec<f32>; 2] {
        self.run_before(rig, bucket, fused, SWAP_AB, None)
    }

    /// As [`Self::run`], before a layer's `experts`.
    fn run_before(
        &self,
        rig: &Rig,
        bucket: usize,
        fused: bool,
        variant: Variant,
        experts: Option<&ExpertWeights>,
    ) -> [Vec<f32>; 2] {
        let (gpu, types, hidden) = (rig.gpu, rig.kernels.types, self.hidden);
        let step = self.step(gpu);
        let operand = |n: usize| gpu.poisoned(bucket * n * types.operand.bytes());
        let (x, grouped) = (operand(hidden), operand(3 * hidden));
        x.write(&gpu.stream, 0, &encode(types.operand, &self.x))
            .unwrap();
        let w = gpu.values(types.weights, &self.w);
        let state = gpu.values(types.operand, &self.state);
        let taps = gpu.values(DType::F32, &self.of_taps);
        let biases = self.biases.as_ref();
        let biases = biases.map(|biases| [0, 1].map(|i| gpu.values(DType::F32, &biases[i])));
        let [bias, taps_bias] = biases
            .as_ref()
            .map_or([0; 2], |biases| [0, 1].map(|i| biases[i].at(0)));
        let conv = ShortConv {
            x: x.at(0),
            bcx: grouped.at(0),
            state: state.at(0),
            taps: taps.at(0),
            bias: taps_bias,
        };
        let queue = rig.enqueue_by(&step, bucket, variant).unwrap();
        let out = if fused {
            let swap_ab = queue.swap_ab_convolves().expect("this hidden size");
            // SAFETY: the arrays have the shapes that the operation asks for.
            unsafe { queue.run(|to| to.swap_ab_conv(swap_ab, &conv, w.at(0), bias, experts)) };
            grouped
        } else {
            let product = Product {
                y: grouped.at(0),
                x: x.at(0),
                w: w.at(0),
                w_pair: 0,
                bias,
                outputs: 3 * hidden as u32,
                inner: hidden as u32,
                epilogue: Epilogue::Store,
                parts: Parts::Scratch(0),
            };
            let tiled = rig.enqueue_by(&step, bucket, Variant::TILED).unwrap();
            // SAFETY: as above.
            unsafe {
                tiled.run(|to| to.product(&product, Rows::Step));
                queue.run(|to| to.short_conv(&conv));
            }
            x
        };
        let mut y = gpu.get_values(types.operand, &out);
        y.truncate(bucket * hidden);
        [y, gpu.get_values(types.operand, &state)]
    }
}

fn conv_config(hidden: usize, taps: usize) -> ModelConfig {
    ModelConfig {
        hidden_size: hidden,
        conv_l_cache: taps,
        ..config()
    }
}

/// Of matrices that end where their memory does.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn weights_that_are_prefetched_change_nothing() {
    let gpu = Gpu::new();
    let mut random = Random(89);
    for types in TYPES {
        for (hidden, inner, experts) in [(64, 32, 3), (192, 96, 8), (2048, 128, 32)] {
            let config = ModelConfig {
                moe_intermediate_size: inner,
                num_experts: experts,
                ..conv_config(hidden, 3)
            };
            let rig = Rig::new(&gpu, config, types);
            if !served(&rig) {
                continue;
            }
            let matrix = packed::elements(inner, hidden);
            let matrices = [(); 2].map(|()| gpu.poisoned(experts * matrix * 2));
            let [gate, up] = [0, 1].map(|i| matrices[i].at(0));
            let weights = ExpertWeights {
                gate,
                up,
                gate_up_stride: matrix as u64,
                down: 0,
                down_stride: 0,
            };
            for bucket in [8, 31, 64, 256] {
                for prefetch_mib in [1, 256] {
                    let case = ConvCase::new(&mut random, types, bucket, hidden, 3);
                    let variant = Variant {
                        products: Products::SwapAb,
                        experts: Experts::Grouped(Grouped {
                            tile_rows: 16,
                            stages: 6,
                            guess: true,
                            prefetch_mib,
                        }),
                    };
                    let found = case.run_before(&rig, bucket, true, variant, Some(&weights));
                    let expected = case.run(&rig, bucket, true);
                    let what = format!("{types:?} H {hidden} {bucket} rows {prefetch_mib} MiB");
                    for of in [0, 1] {
                        assert_same_bits(&what, &found[of], &expected[of]);
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_conv_layer_in_one_kernel_is_that_of_two() {
    let gpu = Gpu::new();
    let mut random = Random(83);
    for types in TYPES {
        for (hidden, taps) in [(64, 1), (192, 3), (576, 8), (2048, 3)] {
            let rig = Rig::new(&gpu, conv_config(hidden, taps), types);
            if !served(&rig) {
                continue;
            }
            for bucket in [1, 2, 4, 8, 16, 31, 33, 64, 100, 160, 256] {
                let rows = 1 + random.below(bucket);
                let case = ConvCase::new(&mut random, types, rows, hidden, taps);
                let found = case.run(&rig, bucket, true);
                let expected = case.run(&rig, bucket, false);
                let what = format!("{types:?} H {hidden} L {taps} {rows} rows of {bucket}");
                let limit = allowed(types.operand, types.operand);
                let [y, state] = [0, 1].map(|of| [&found[of][..], &expected[of][..]]);
                assert_rows_close(&what, y, hidden, rows, limit);
                if taps > 1 {
                    let (what, width) = (format!("{what}: state"), (taps - 1) * hidden);
                    assert_rows_close(&what, state, width, SLOTS, limit);
                }
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_of_a_conv_layer_does_not_depend_on_its_companions() {
    let gpu = Gpu::new();
    let mut random = Random(84);
    let taps = 3;
    // From 33 rows on the kernels with batch rows first, from 65 on those whose blocks share weights.
    let cases = [
        (192, 16),
        (192, 32),
        (192, 64),
        (192, 100),
        (192, 256),
        (2048, 128),
        (2048, 256),
    ];
    for types in TYPES {
        for (hidden, bucket) in cases {
            let rig = Rig::new(&gpu, conv_config(hidden, taps), types);
            if !served(&rig) {
                continue;
            }
            let case = ConvCase::new(&mut random, types, bucket, hidden, taps);
            let all = case.run(&rig, bucket, true);
            let (row, place) = (random.below(bucket), random.below(bucket));
            let mut moved = ConvCase::new(&mut random, types, place + 1, hidden, taps);
            moved.x[place * hidden..].copy_from_slice(&case.x[row * hidden..][..hidden]);
            moved.w.clone_from(&case.w);
            moved.state.clone_from(&case.state);
            moved.of_taps.clone_from(&case.of_taps);
            moved.biases.clone_from(&case.biases);
            let slot = case.rows[row].0;
            for (r, other) in moved.rows.iter_mut().enumerate() {
                other.0 = (slot + SLOTS + r - place) % SLOTS;
            }
            moved.rows[place] = case.rows[row];
            let there = moved.run(&rig, bucket, true);
            assert_same_bits(
                &format!("{types:?} bucket {bucket} row {row} at {place}"),
                &there[0][place * hidden..][..hidden],
                &all[0][row * hidden..][..hidden],
            );
        }
    }
}
