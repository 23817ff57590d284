//! Rows in 8 bits by weights in 8 bits: products and mixtures against f64 of what both hold, and what the rows become, to the bit.

use crate::common::random::Random;
use crate::experts::case::MixtureCase;
use crate::rig::{E4M3_ROWS, Rig, config};
use crate::routing::mixture;
use crate::support::Gpu;
use crate::tiled::{Case, EPILOGUES};
use tailgraph::backend::cuda::families::tiled::{Epilogue, Rows};
use tailgraph::backend::cuda::tuning::variants::{Experts, Variant};
use tailgraph::model::ModelConfig;

/// Where the GPU has their kernels.
fn rig(gpu: &Gpu, config: ModelConfig) -> Option<Rig<'_>> {
    let rig = Rig::new(gpu, config, E4M3_ROWS);
    rig.kernels.products.persistent.is_some().then_some(rig)
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_rows_become_8_bits_as_on_the_host() {
    let gpu = Gpu::new();
    let mut random = Random(80);
    let Some(rig) = rig(&gpu, config()) else {
        return;
    };
    for (bucket, columns) in [(300, 32), (300, 224), (260, 320)] {
        let case = Case::identity(&mut random, &rig, bucket - 9, columns);
        let by = Some(Variant::PERSISTENT);
        let y = case.run(&rig, bucket, Epilogue::StoreF32, false, Rows::Step, by);
        let expected = case.held(&rig);
        for (i, (&found, (&x, &expected))) in y.iter().zip(case.x.iter().zip(&expected)).enumerate()
        {
            let is_near = |a: f32, b: f32| (a - b).abs() <= 1e-6 * b.abs();
            // Where two are as near, either will do.
            assert!(
                is_near(found, expected) || is_near((found + expected) / 2.0, x),
                "row {} column {} of {columns}: {x} became {found}, expected {expected}",
                i / columns,
                i % columns
            );
        }
    }
}

/// Half a block of the last 128 columns, or a quarter, which is half a packed block; outputs that end in a block of 128.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_products_of_rows_in_8_bits_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(81);
    let Some(rig) = rig(&gpu, config()) else {
        return;
    };
    for (bucket, outputs, inner) in [
        (300, 264, 544),
        (512, 520, 1056),
        (260, 1024, 64),
        (700, 96, 416),
    ] {
        for epilogue in EPILOGUES {
            let case = Case::new(&mut random, &rig, bucket - bucket / 5, outputs, inner);
            let bias = epilogue == Epilogue::Store;
            case.check(&rig, bucket, epilogue, bias, Some(Variant::PERSISTENT));
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_mixtures_of_rows_in_8_bits_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(82);
    for (bucket, hidden, inner, experts, among, top_k) in [
        (300, 128, 64, 16, 3, 3),
        (512, 160, 96, 4, 4, 2),
        (640, 96, 160, 8, 8, 4),
    ] {
        let Some(rig) = rig(&gpu, mixture(hidden, inner, experts, top_k)) else {
            return;
        };
        let case = MixtureCase {
            by: Some(Experts::Persistent),
            ..MixtureCase::new(&mut random, &rig, bucket - 7, among)
        };
        let h = case.run(&rig, bucket);
        case.is_near(&rig, &h, bucket);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_in_8_bits_does_not_depend_on_its_companions() {
    let gpu = Gpu::new();
    let mut random = Random(83);
    let Some(rig) = rig(&gpu, config()) else {
        return;
    };
    for (bucket, outputs, inner) in [(1100, 2048, 2048), (2048, 6144, 544)] {
        for epilogue in [Epilogue::StoreF32, Epilogue::SiluMul] {
            let case = Case::new(&mut random, &rig, bucket, outputs, inner);
            case.check_companions(&mut random, &rig, epilogue, Variant::PERSISTENT, "");
        }
    }
}
