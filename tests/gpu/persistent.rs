//! Dense products of many rows by each tile that they are cut into, against f64, and a row's bits among other companions.

use crate::common::random::Random;
use crate::conv_layer::{ConvCase, conv_config};
use crate::rig::{Rig, Step, TYPES, assert_same_bits, config, whole};
use crate::support::Gpu;
use crate::swap_ab::allowed;
use crate::tiled::{Case, EPILOGUES};
use std::collections::BTreeSet;
use tailgraph::backend::cuda::families::tiled::{Epilogue, Prepared, Product, Rows};
use tailgraph::backend::cuda::matrix::Matrix;
use tailgraph::backend::cuda::tuning::variants::Variant;
use tailgraph::model::{DType, WeightFormat};

/// (bucket, weight rows, inner) and the tile that serves it on a 9.0 of 114 to 132 multiprocessors (families/persistent/tile.rs):
/// ragged columns and stages of K, rings that go round.
const SHAPES: [(usize, usize, usize, &str); 6] = [
    (512, 301, 1056, "w128_split_k"),
    (512, 301, 544, "w128_split_k"),
    (512, 2601, 2080, "w192_split_k"),
    (1024, 1701, 544, "w128"),
    (512, 5001, 544, "w192"),
    (512, 6401, 544, "w256"),
];
/// f32 rows have no wide tiles.
const TILES_F32: [&str; 2] = ["w128", "w128_split_k"];

/// Rows of the bucket that are there: all, a row tile's last ones, and so few that a whole row tile has none.
fn rows(bucket: usize) -> [usize; 3] {
    [bucket, bucket - 1, bucket / 2 + 44]
}

/// Outputs of a product with this many weight rows; gate and up have half of them each, in groups of 8.
fn outputs(weight_rows: usize, epilogue: Epilogue) -> usize {
    match epilogue {
        Epilogue::SiluMul => (weight_rows / 2).next_multiple_of(8),
        Epilogue::Store | Epilogue::StoreF32 | Epilogue::Add => weight_rows,
    }
}

/// The tile that serves a product of f32 or 16-bit rows, as its kernel's name has it.
fn tile(rig: &Rig, bucket: usize, outputs: usize, inner: usize, epilogue: Epilogue) -> String {
    let step = Step::of_rows(bucket).upload(rig.gpu);
    let enqueue = rig.enqueue_by(&step, bucket, Variant::PERSISTENT).unwrap();
    let weights = rig.kernels.precision.weights;
    let w = Matrix::of_rows(0, weights, outputs as u32, inner as u32);
    let product = Product {
        y: 0,
        x: 0,
        w,
        w_pair: (epilogue == Epilogue::SiluMul).then_some(Matrix { address: 16, ..w }),
        bias: 0,
        epilogue,
        prepared: Prepared::There,
    };
    let kernels = enqueue.kernels_of(|to| to.product(&product, Rows::Step));
    let [kernel] = &kernels[..] else {
        panic!("expected one kernel, found {kernels:?}");
    };
    let suffix = if weights == WeightFormat::E4M3 {
        "_e4m3"
    } else {
        ""
    };
    let named = format!(
        "tg_persistent_{}{suffix}_",
        rig.kernels.precision.compute.name()
    );
    let tile = kernel.strip_prefix(&named);
    tile.unwrap_or_else(|| panic!("expected {named}..., found {kernel}"))
        .to_owned()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn products_by_every_tile_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(15);
    for types in TYPES {
        let rig = Rig::new(&gpu, config(), types);
        if rig.kernels.products.persistent.is_none() {
            continue;
        }
        let splits = types.compute == DType::F32;
        let mut met = BTreeSet::new();
        for (bucket, weight_rows, inner, expected) in SHAPES {
            for (i, epilogue) in EPILOGUES.into_iter().enumerate() {
                let outputs = whole(types, outputs(weight_rows, epilogue));
                let tile = tile(&rig, bucket, outputs, inner, epilogue);
                if !splits {
                    let what = format!("{bucket} rows, {outputs} x {inner} {epilogue:?}");
                    assert_eq!(tile, expected, "{what}");
                }
                met.insert(tile);
                for rows in rows(bucket) {
                    let case = Case::new(&mut random, &rig, rows, outputs, inner);
                    let bias = epilogue != Epilogue::SiluMul && i % 2 == 0;
                    case.check(&rig, bucket, epilogue, bias, Some(Variant::PERSISTENT));
                }
            }
        }
        let all: BTreeSet<String> = if splits {
            TILES_F32.map(str::to_owned).into()
        } else {
            SHAPES.map(|(.., tile)| tile.to_owned()).into()
        };
        assert_eq!(met, all, "{types:?}");
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_by_every_tile_does_not_depend_on_its_companions() {
    let gpu = Gpu::new();
    let mut random = Random(16);
    for types in TYPES {
        let rig = Rig::new(&gpu, config(), types);
        if rig.kernels.products.persistent.is_none() {
            continue;
        }
        for (bucket, weight_rows, inner, tile) in SHAPES {
            for epilogue in [Epilogue::StoreF32, Epilogue::SiluMul] {
                let outputs = whole(types, outputs(weight_rows, epilogue));
                let case = Case::new(&mut random, &rig, bucket, outputs, inner);
                let what = format!("{types:?} {tile}");
                case.check_companions(&mut random, &rig, epilogue, Variant::PERSISTENT, &what);
            }
        }
    }
}

/// Conv layers of decode steps, by bucket, rows and hidden size: row tiles without rows where blocks multicast, one tile and
/// several a block.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_persistent_conv_layers_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(17);
    for types in TYPES {
        for (bucket, rows, hidden) in [
            (512, 300, 128),
            (1024, 786, 64),
            (512, 1, 192),
            (768, 530, 128),
        ] {
            let rig = Rig::new(&gpu, conv_config(hidden, 3), types);
            if !convolves(&rig) {
                continue;
            }
            let case = ConvCase::new(&mut random, types, rows, hidden, 3);
            let by = Some((Variant::PERSISTENT, None));
            let found = case.run(&rig, bucket, by);
            let what = format!("{types:?} H {hidden} {rows} rows of {bucket}");
            let expected = case.expected(types);
            let padding = vec![f32::NAN; (bucket - rows) * hidden];
            let expected = [[&expected[0][..], &padding].concat(), expected[1].clone()];
            case.check(
                &what,
                &found,
                &expected,
                allowed(types.compute, types.compute),
            );
            let again = case.run(&rig, bucket, by);
            assert_same_bits(
                &what,
                &again[0][..rows * hidden],
                &found[0][..rows * hidden],
            );
            assert_same_bits(&what, &again[1], &found[1]);
        }
    }
}

/// f32 rows have no such kernel.
fn convolves(rig: &Rig) -> bool {
    rig.kernels.products.persistent.is_some()
        && rig.kernels.precision.compute != DType::F32
        && rig.kernels.precision.weights != WeightFormat::E4M3
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_conv_layer_of_many_rows_in_one_kernel_is_that_of_two() {
    let gpu = Gpu::new();
    let mut random = Random(18);
    for types in TYPES {
        let rig = Rig::new(&gpu, conv_config(2048, 3), types);
        if !convolves(&rig) {
            continue;
        }
        for bucket in [512, 1024] {
            let by = Some((Variant::PERSISTENT, None));
            let rows = bucket - bucket / 4 + 18;
            let case = ConvCase::new(&mut random, types, rows, 2048, 3);
            let all = case.run(&rig, bucket, by);
            let expected = case.run(&rig, bucket, None);
            let what = format!("{types:?} {rows} rows of {bucket}");
            case.check(
                &what,
                &all,
                &expected,
                allowed(types.compute, types.compute),
            );
            let (row, place) = (random.below(rows), random.below(rows));
            let there = case.moved(&mut random, types, row, place);
            let there = there.run(&rig, bucket, by);
            assert_same_bits(
                &format!("{what}: row {row} at {place}"),
                &there[0][place * 2048..][..2048],
                &all[0][row * 2048..][..2048],
            );
        }
    }
}
