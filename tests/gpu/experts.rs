//! The experts' feed-forwards against f64.

pub mod case;

use self::case::MixtureCase;
use crate::common::random::Random;
use crate::rig::{OPERANDS, Rig, TYPES, assert_same_bits, grouped, operand};
use crate::routing::mixture;
use crate::support::{Gpu, Holder};
use std::collections::BTreeMap;
use tailgraph::backend::cuda::tuning::variants::{
    Architecture, Experts, GROUPED_STAGES, GROUPED_TILE_ROWS, Grouped, Linear, Variant,
};
use tailgraph::model::DType;
use tailgraph::sys::abi;

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn mixtures_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(43);
    for types in TYPES {
        // (bucket, H, M, E, of which chosen, K): one expert with every row, experts with none, every tile
        for (bucket, hidden, inner, experts, among, top_k) in [
            (1, 128, 64, 8, 8, 2),
            (8, 96, 224, 8, 1, 1),
            (64, 256, 96, 32, 32, 4),
            (300, 128, 64, 16, 3, 3),
            (512, 128, 96, 4, 4, 2),
            (1500, 64, 160, 8, 8, 4),
        ] {
            let rig = Rig::new(&gpu, mixture(hidden, inner, experts, top_k), types);
            let rows = bucket - random.below(bucket.min(7));
            let case = MixtureCase::new(&mut random, &rig, rows, among);
            let h = case.run(&rig, bucket);
            case.is_near(&rig, &h, bucket);
        }
    }
}

/// The kernel for wide steps against those for any number, which the test above holds to f64 where that serves none: pipelines
/// that go round, ragged columns, outputs and rows, experts of several tiles and without any, predictions; and tiles of every size
/// and pipelines of every length to the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn grouped_steps_agree_with_the_kernels_for_any_number() {
    let gpu = Gpu::new();
    let mut random = Random(45);
    for types in TYPES {
        for (bucket, hidden, inner, experts, among, top_k) in [
            (1, 2048, 1792, 4, 4, 4),
            (2, 1056, 544, 8, 8, 2),
            (4, 544, 1056, 32, 32, 4),
            (8, 2048, 1792, 5, 5, 4),
            (8, 96, 224, 5, 1, 1),
            (9, 2048, 1792, 6, 6, 4),
            (12, 1056, 544, 7, 7, 3),
            (40, 544, 1056, 32, 20, 4),
            (100, 512, 1024, 40, 40, 8),
            (200, 96, 32, 128, 128, 8),
            (256, 256, 320, 5, 2, 2),
            (256, 576, 96, 4, 4, 1),
            // One tile of more than 64 rows, as it is and in part.
            (72, 576, 96, 4, 1, 1),
            (80, 96, 160, 3, 1, 1),
            (88, 160, 96, 2, 1, 1),
            (96, 544, 32, 3, 1, 1),
            (103, 64, 96, 2, 1, 1),
            // The same of more than 96.
            (104, 96, 64, 2, 1, 1),
            (120, 160, 96, 1, 1, 1),
        ] {
            let rig = Rig::new(&gpu, mixture(hidden, inner, experts, top_k), types);
            if !rig.serves(rig.kernels.products.grouped.is_some(), |(major, _)| {
                major == 9
            }) {
                continue;
            }
            let rows = bucket - random.below(bucket.min(7));
            let case = MixtureCase::new(&mut random, &rig, rows, among);
            every_grouped_shape_agrees(&rig, case, bucket);
        }
    }
}

/// The same of more rows than have a thread each to sort them, where the type has kernels for them: a step of few rows and of as many
/// as there is room for, all rows with one expert, experts without any, and of one row and of tiles of every height.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn grouped_steps_of_many_rows_agree_with_the_kernels_for_any_number() {
    let gpu = Gpu::new();
    let mut random = Random(47);
    for types in TYPES {
        for (bucket, rows, hidden, inner, experts, among, top_k) in [
            (257, 257, 96, 160, 4, 4, 2),
            (300, 297, 2048, 1792, 12, 12, 3),
            (512, 1, 128, 96, 8, 8, 4),
            (512, 512, 544, 96, 5, 1, 1),
            (512, 510, 256, 1056, 64, 64, 4),
            (512, 512, 96, 64, 128, 128, 8),
            (513, 513, 160, 96, 3, 2, 1),
            (1024, 1024, 256, 320, 32, 32, 4),
            (1024, 1024, 64, 96, 4, 4, 4),
            (1024, 1019, 576, 96, 64, 40, 4),
            (1024, 300, 96, 544, 32, 7, 4),
        ] {
            let rig = Rig::new(&gpu, mixture(hidden, inner, experts, top_k), types);
            let serves = |(major, _)| major == 9 && types.compute != DType::F32;
            let able = rig
                .kernels
                .can(&rig.config, of_linear(grouped(64)), bucket as u32);
            if !rig.serves(able.is_ok(), serves) {
                continue;
            }
            let case = MixtureCase::new(&mut random, &rig, rows, among);
            every_grouped_shape_agrees(&rig, case, bucket);
        }
        // An expert for all rows, and beside it one of one row, of two, and so on: all tiles that a height of 128 can have, and more.
        let (experts, rows, top_k) = (45, 1024, 2);
        let rig = Rig::new(&gpu, mixture(96, 64, experts, top_k), types);
        let able = rig
            .kernels
            .can(&rig.config, of_linear(grouped(64)), rows as u32);
        if able.is_err() {
            continue;
        }
        let mut case = MixtureCase::new(&mut random, &rig, rows, experts);
        let mut others = (1..experts as u32).flat_map(|e| std::iter::repeat_n(e, e as usize));
        for row in case.experts.chunks_mut(top_k) {
            row.copy_from_slice(&[0, others.next().unwrap_or(experts as u32 - 1)]);
        }
        every_grouped_shape_agrees(&rig, case, rows);
    }
}

/// To the same bits by every shape of a launch whose sums have the same type, and near those for any number.
fn every_grouped_shape_agrees(rig: &Rig, mut case: MixtureCase, bucket: usize) {
    let (types, config) = (rig.kernels.precision, &rig.config);
    let what = format!(
        "{types:?} {} of {bucket} rows, {} by {}",
        case.x.len() / config.hidden_size,
        config.hidden_size,
        config.moe_intermediate_size
    );
    let weights = case.upload(rig);
    let run = |case: &MixtureCase| case.run_with(rig, bucket, &weights, || ());
    case.by = Some(Experts::Tiled);
    let of_others = run(&case);
    let mut firsts: BTreeMap<bool, Vec<f32>> = BTreeMap::new();
    for shape in grouped_shapes(rig, bucket) {
        case.by = Some(Experts::Grouped(shape));
        let found = run(&case);
        let first = firsts.entry(case.rounds(rig, bucket));
        let first = first.or_insert_with(|| found.clone());
        assert_same_bits(&format!("{what}, {shape:?}"), &found, first);
    }
    for (rounds, found) in firsts {
        let what = format!("{what}, sums rounded: {rounds}");
        case.is_near_others(&what, rig, rounds, &found, &of_others);
    }
}

/// Experts by these, whatever does the products.
fn of_linear(experts: Experts) -> Variant {
    Variant {
        linear: Linear::Tiled,
        experts,
    }
}

/// The kernels for many rows against those for any number, which a test above holds to f64 where these serve none: experts of
/// several tiles, with half of one and without any; ragged columns, outputs and rows.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn persistent_steps_agree_with_the_kernels_for_any_number() {
    let gpu = Gpu::new();
    let mut random = Random(46);
    for types in TYPES {
        for (bucket, hidden, inner, experts, among, top_k) in [
            (1, 128, 96, 4, 4, 4),
            (64, 96, 224, 5, 1, 1),
            (65, 544, 1056, 8, 7, 1),
            (300, 2048, 1792, 32, 32, 4),
            (700, 160, 96, 128, 128, 8),
            (1000, 288, 1536, 64, 40, 4),
        ] {
            let rig = Rig::new(&gpu, mixture(hidden, inner, experts, top_k), types);
            if rig.kernels.products.persistent.is_none() {
                continue;
            }
            let rows = bucket - random.below(bucket.min(7));
            let mut case = MixtureCase::new(&mut random, &rig, rows, among);
            let weights = case.upload(&rig);
            let run = |case: &MixtureCase| case.run_with(&rig, bucket, &weights, || ());
            case.by = Some(Experts::Persistent);
            let found = run(&case);
            let rounds = case.rounds(&rig, bucket);
            case.by = Some(Experts::Tiled);
            let others = run(&case);
            let what = format!("{types:?} {rows} of {bucket} rows, {hidden} by {inner}");
            case.is_near_others(&what, &rig, rounds, &found, &others);
        }
    }
}

/// Steps of few rows, and of more than have a thread each to sort them: experts without rows, with some of a tile and with more than
/// one. Outputs that are not a whole slice, and rows that are not a whole eight.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_grouped_steps_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(48);
    for types in TYPES {
        for (bucket, rows, hidden, inner, experts, among, top_k, tile_rows) in [
            (9, 8, 96, 224, 5, 5, 2, 8),
            (64, 61, 288, 160, 8, 6, 3, 16),
            (90, 89, 160, 96, 4, 3, 2, 32),
            (96, 95, 96, 64, 2, 2, 1, 96),
            (120, 113, 96, 64, 2, 1, 1, 128),
            (257, 257, 160, 96, 5, 4, 2, 96),
            (512, 509, 288, 224, 8, 7, 3, 128),
            (1024, 1021, 96, 160, 16, 16, 4, 96),
            (1024, 1023, 544, 96, 32, 32, 5, 128),
        ] {
            let rig = Rig::new(&gpu, mixture(hidden, inner, experts, top_k), types);
            let splits = types.compute == DType::F32;
            if !rig.serves(rig.kernels.products.grouped.is_some(), |(major, _)| {
                major == 9
            }) || splits && tile_rows > abi::TG_GROUPED_BF16X3_ROWS
            {
                continue;
            }
            let mut case = MixtureCase::new(&mut random, &rig, rows, among);
            case.by = Some(Experts::Grouped(Grouped {
                tile_rows,
                stages: 5,
                predict: true,
                prefetch_mib: 0,
            }));
            let h = case.run(&rig, bucket);
            let rounds = bucket > 256 || tile_rows > 96;
            let what = format!("{types:?} {rows} of {bucket} rows");
            assert_eq!(case.rounds(&rig, bucket), rounds, "{what}");
            case.is_near(&rig, &h, bucket);
        }
    }
}

/// Experts without rows, with some of a tile and with more than one; several tiles a block where a GPU has few multiprocessors.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_persistent_steps_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(47);
    for types in TYPES {
        for (bucket, rows, hidden, inner, experts, among, top_k) in [
            (64, 61, 96, 224, 5, 1, 1),
            (65, 65, 544, 160, 8, 7, 2),
            (300, 299, 128, 288, 8, 5, 3),
        ] {
            let rig = Rig::new(&gpu, mixture(hidden, inner, experts, top_k), types);
            if !rig.serves(rig.kernels.products.persistent.is_some(), |(major, _)| {
                major == 9
            }) {
                continue;
            }
            let mut case = MixtureCase::new(&mut random, &rig, rows, among);
            case.by = Some(Experts::Persistent);
            let h = case.run(&rig, bucket);
            case.is_near(&rig, &h, bucket);
        }
    }
}

/// The shortest and the longest pipelines of tiles of every size, with and without predictions.
fn grouped_shapes(rig: &Rig, bucket: usize) -> Vec<Grouped> {
    let mut shapes = Vec::new();
    for tile_rows in GROUPED_TILE_ROWS {
        for predict in [false, true] {
            let variant = |stages| {
                of_linear(Experts::Grouped(Grouped {
                    tile_rows,
                    stages,
                    predict,
                    prefetch_mib: 0,
                }))
            };
            let fits = |&stages: &u32| {
                let variant = variant(stages);
                let rows = bucket as u32;
                let able = rig.kernels.can(&rig.config, variant, rows);
                let known = variant.check(Architecture::Sm90, rig.kernels.precision.compute, rows);
                able.is_ok() && known.is_ok()
            };
            let served: Vec<u32> = GROUPED_STAGES.filter(fits).collect();
            for stages in served.first().into_iter().chain(served.last()) {
                let Experts::Grouped(shape) = variant(*stages).experts else {
                    unreachable!("made above")
                };
                shapes.push(shape);
            }
        }
    }
    assert!(shapes.len() >= 6, "{shapes:?}");
    shapes
}

/// All but 16 SMs are held by others until long after the blocks on these have done what there is to do: the predictions of all
/// other blocks too, and to the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn grouped_steps_do_not_wait_for_blocks_that_have_no_room() {
    const HELD_NS: u64 = 200_000_000;
    let gpu = Gpu::new();
    let mut random = Random(46);
    let noted = gpu.put(&[0; 16]);
    for types in TYPES {
        let rig = Rig::new(&gpu, mixture(512, 256, 16, 4), types);
        if !rig.serves(rig.kernels.products.grouped.is_some(), |(major, _)| {
            major == 9
        }) {
            continue;
        }
        let holder = Holder::new(&gpu);
        let mut cases = [64, 400, 1024].map(|rows| MixtureCase::new(&mut random, &rig, rows, 13));
        for (case, tile_rows) in [(0, 32), (0, 96), (1, 128), (2, 96)] {
            // f32 rows have no higher ones, nor more rows.
            if tile_rows > abi::TG_GROUPED_BF16X3_ROWS && types.compute == DType::F32 {
                continue;
            }
            let case = &mut cases[case];
            let rows = case.x.len() / rig.config.hidden_size;
            case.by = Some(Experts::Grouped(Grouped {
                tile_rows,
                stages: 6,
                predict: true,
                prefetch_mib: 0,
            }));
            let alone = case.run(&rig, rows);
            let beside_others = case.run_with(&rig, rows, &case.upload(&rig), || {
                holder.hold(|all| all - 16, &noted, HELD_NS);
            });
            holder.wait();
            let what = format!("{types:?} {rows} rows, tiles of {tile_rows}");
            assert_same_bits(&what, &beside_others, &alone);
        }
    }
}

/// A row with other companions, elsewhere, in the same bucket: the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_of_a_mixture_does_not_depend_on_its_companions() {
    let gpu = Gpu::new();
    let mut random = Random(44);
    for dtype in OPERANDS {
        for bucket in [8, 64, 256, 512, 1024, 2048] {
            let (hidden, top_k) = (128, 4);
            let rig = Rig::new(&gpu, mixture(hidden, 96, 8, top_k), operand(dtype));
            let many = MixtureCase::new(&mut random, &rig, bucket, 8);
            let all = many.run(&rig, bucket);
            for row in [0, bucket / 3, bucket - 1] {
                let place = random.below(bucket / 2);
                let mut moved = MixtureCase::new(&mut random, &rig, place + 1, 5);
                moved.x[place * hidden..].copy_from_slice(&many.x[row * hidden..][..hidden]);
                moved.h[place * hidden..].copy_from_slice(&many.h[row * hidden..][..hidden]);
                moved.experts[place * top_k..]
                    .copy_from_slice(&many.experts[row * top_k..][..top_k]);
                moved.weights[place * top_k..]
                    .copy_from_slice(&many.weights[row * top_k..][..top_k]);
                moved.gate.clone_from(&many.gate);
                moved.up.clone_from(&many.up);
                moved.down.clone_from(&many.down);
                moved.up_first = many.up_first;
                assert_same_bits(
                    &format!("{dtype:?} bucket {bucket} row {row} at {place}"),
                    &moved.run(&rig, bucket)[place * hidden..][..hidden],
                    &all[row * hidden..][..hidden],
                );
            }
        }
    }
}
