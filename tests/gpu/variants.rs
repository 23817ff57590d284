//! Decode steps by every combination of kernels that this GPU has: right, and to the same bits whoever launches.

use crate::common::golden;
use crate::engine::{Setup, run};
use crate::goldens;
use crate::rig::{SKINNY, grouped};
use crate::ways::{assert_same, requests};
use std::path::Path;
use tailgraph::backend::LaunchWay;
use tailgraph::backend::cuda::driver::gpu::OpenGpu;
use tailgraph::backend::cuda::tuning::limits::FUSED_ROWS;
use tailgraph::backend::cuda::tuning::variants::{
    Architecture, Entry, Experts, Grouped, Linear, Variant,
};
use tailgraph::backend::cuda::tuning::{KernelChoice, KernelFile, Shape};
use tailgraph::model::DType;

const DTYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];
/// Rows of a decode bucket here, at most.
const ROWS: u32 = 8;

fn every() -> Vec<Variant> {
    let predicting = Experts::Grouped(Grouped {
        tile_rows: 8,
        stages: 8,
        predict: true,
        prefetch_mib: 0,
    });
    let prefetching = Experts::Grouped(Grouped {
        tile_rows: 16,
        stages: 6,
        predict: true,
        prefetch_mib: 1,
    });
    let of = |linear, experts| Variant { linear, experts };
    vec![
        of(SKINNY, Experts::Skinny),
        of(Linear::Skinny { stages: 2 }, Experts::Skinny),
        of(SKINNY, Experts::Fused),
        of(Linear::Skinny { stages: 5 }, Experts::Fused),
        of(SKINNY, grouped(16)),
        of(SKINNY, predicting),
        of(SKINNY, Experts::Tiled),
        of(Linear::SwapAb, grouped(8)),
        of(Linear::SwapAb, predicting),
        of(Linear::SwapAb, prefetching),
        of(Linear::SwapAb, Experts::Tiled),
        of(Linear::Persistent, grouped(16)),
        of(Linear::Tiled, grouped(32)),
        Variant::TILED,
    ]
}

/// One variant for all types and buckets, or for those that it serves.
fn choice(architecture: Architecture, variant: Variant) -> KernelChoice {
    let mut file = KernelFile::new(Path::new("made by a test"), architecture);
    let mut set = |rows, variant| {
        for dtype in DTYPES {
            let ms = None;
            file.set(Shape::BASE, dtype, Entry { rows, variant, ms });
        }
    };
    set(rows_of(variant), variant);
    if variant.experts == Experts::Fused {
        let experts = Experts::Skinny;
        set(ROWS, Variant { experts, ..variant });
    }
    KernelChoice::from(file)
}

/// Rows of a bucket of this variant, at most.
fn rows_of(variant: Variant) -> u32 {
    match variant.experts {
        Experts::Fused => FUSED_ROWS as u32,
        _ => ROWS,
    }
}

/// Those that this GPU has.
fn choices(gpu: &OpenGpu) -> Vec<(Variant, KernelChoice)> {
    let architecture = Architecture::of(gpu.info.compute_capability).unwrap();
    let has = |variant: &Variant| {
        let checked = DTYPES.map(|dtype| variant.check(architecture, dtype, rows_of(*variant)));
        checked.iter().all(Result::is_ok)
    };
    let had: Vec<Variant> = every().into_iter().filter(has).collect();
    let least = match architecture {
        Architecture::Sm80 => 1,
        Architecture::Sm90 => every().len(),
        Architecture::Sm100 => 6,
    };
    assert_eq!(had.len(), least, "{had:?}");
    had.into_iter()
        .map(|variant| (variant, choice(architecture, variant)))
        .collect()
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn f32_is_what_transformers_computes_by_every_variant() {
    let gpu = OpenGpu::new(0).unwrap();
    for (variant, choice) in choices(&gpu) {
        // Model c has 64 experts, for which there are no fused ones of f32 rows.
        let mut served = goldens::VARIANTS.to_vec();
        served.retain(|&golden| variant.experts != Experts::Fused || golden != "c");
        goldens::f32_on(&gpu.served_by(choice), &variant.to_string(), &served);
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn all_ways_give_the_same_bits_by_every_variant() {
    let gpu = OpenGpu::new(0).unwrap();
    let golden = golden::load("b");
    let requests = requests(&golden.prompts());
    for (what, choice) in choices(&gpu) {
        let gpu = gpu.served_by(choice);
        for dtype in [DType::F32, DType::BF16] {
            let by = |launch| {
                let stages = 1;
                let setup = Setup {
                    dtype,
                    launch,
                    stages,
                };
                run(&gpu, &golden.model, setup, &requests)
            };
            let reference = by(LaunchWay::HostKernels);
            for launch in [LaunchWay::HostGraphAhead, LaunchWay::DeviceGraph] {
                assert_same(
                    &by(launch),
                    &reference,
                    &format!("{what} {dtype:?} {launch:?}"),
                );
            }
        }
    }
}
