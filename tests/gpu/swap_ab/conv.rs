//! A convolution layer's in-projection and convolution in one kernel, and what it prefetches.

use super::{SWAP_AB, allowed, served};
use crate::common::random::Random;
use crate::conv_layer::{ConvCase, conv_config};
use crate::rig::{TYPES, Rig, assert_same_bits, expert_matrix};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::experts::ExpertWeights;
use tailgraph::backend::cuda::families::packed;
use tailgraph::backend::cuda::matrix::Matrix;
use tailgraph::backend::cuda::tuning::variants::{Experts, Grouped, Linear, Variant};
use tailgraph::model::{ModelConfig, WeightFormat};

/// The matrices end where their memory does.
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
            let elements = packed::elements(inner, hidden);
            let matrices = [(); 2].map(|()| gpu.poisoned(experts * elements * 2));
            let [gate, up] = [0, 1].map(|i| {
                expert_matrix(matrices[i].at(0), types.weights, [inner, hidden], elements)
            });
            let down = Matrix::of_rows(0, types.weights, hidden as u32, inner as u32);
            let weights = ExpertWeights { gate, up, down };
            for bucket in [8, 31, 64, 256] {
                for prefetch_mib in [1, 256] {
                    let case = ConvCase::new(&mut random, types, bucket, hidden, 3);
                    let variant = Variant {
                        linear: Linear::SwapAb,
                        experts: Experts::Grouped(Grouped {
                            tile_rows: 16,
                            stages: 6,
                            predict: true,
                            prefetch_mib,
                        }),
                    };
                    let found = case.run(&rig, bucket, Some((variant, Some(&weights))));
                    let expected = case.run(&rig, bucket, Some((SWAP_AB, None)));
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
    is_that_of_two(
        &[64, 192, 576, 2048],
        &[1, 2, 4, 8, 16, 31, 33, 64, 100, 160, 256],
    );
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_swap_ab_conv_layers_are_those_of_two_kernels() {
    is_that_of_two(&[64, 192], &[1, 31, 100, 160]);
}

fn is_that_of_two(sizes: &[usize], buckets: &[usize]) {
    let taps = 3;
    let gpu = Gpu::new();
    let mut random = Random(83);
    for types in TYPES {
        for &hidden in sizes {
            let rig = Rig::new(&gpu, conv_config(hidden, taps), types);
            if !served(&rig) {
                continue;
            }
            for &bucket in buckets {
                let rows = 1 + random.below(bucket);
                let case = ConvCase::new(&mut random, types, rows, hidden, taps);
                let found = case.run(&rig, bucket, Some((SWAP_AB, None)));
                let expected = match types.weights {
                    WeightFormat::E4M3 => case.expected(types),
                    _ => case.run(&rig, bucket, None),
                };
                let what = format!("{types:?} H {hidden} {rows} rows of {bucket}");
                case.check(
                    &what,
                    &found,
                    &expected,
                    allowed(types.compute, types.compute),
                );
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
            let by = Some((SWAP_AB, None));
            let all = case.run(&rig, bucket, by);
            let (row, place) = (random.below(bucket), random.below(bucket));
            let there = case.moved(&mut random, types, row, place);
            let there = there.run(&rig, bucket, by);
            assert_same_bits(
                &format!("{types:?} bucket {bucket} row {row} at {place}"),
                &there[0][place * hidden..][..hidden],
                &all[0][row * hidden..][..hidden],
            );
        }
    }
}
