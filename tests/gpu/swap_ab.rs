//! The kernels for dense products of decode steps against those for any step, which other tests hold to f64: both on the
//! same input, over random shapes.

mod conv;

use crate::common::random::Random;
use crate::rig::{
    Rig, Step, TYPES, assert_rows_close, assert_same_bits, config, encode, held, rounded, whole,
};
use crate::support::Gpu;
use tailgraph::backend::cuda::families::tiled::{Epilogue, Prepared, Product, Rows};
use tailgraph::backend::cuda::tuning::variants::{Experts, Linear, Variant};
use tailgraph::model::DType;
use tailgraph::plan::Precision;
use tailgraph::plan::StepKind;

const EPILOGUES: [Epilogue; 4] = [
    Epilogue::Store,
    Epilogue::StoreF32,
    Epilogue::Add,
    Epilogue::SiluMul,
];

/// (bucket, outputs, inner): ragged outputs and rows, stages of K that a cluster shares.
const RAGGED: [(usize, usize, usize); 6] = [
    (1, 32, 32),
    (16, 65, 544),
    (20, 65, 96),
    (40, 200, 288),
    (70, 96, 256),
    (200, 96, 160),
];

/// Every tile and cluster, one stage and many, more tiles than a GPU has SMs.
const SHAPES: [(usize, usize, usize); 16] = [
    (1, 2048, 7168),
    (2, 3072, 2048),
    (4, 301, 544),
    (8, 33_000, 256),
    (9, 301, 7168),
    (16, 2048, 2048),
    (32, 3072, 544),
    (64, 512, 1792),
    (70, 1792, 256),
    (128, 96, 1056),
    (256, 2048, 288),
    (256, 33_000, 64),
    // Wide tiles of many rows: a long run of K, an eighth of a tile's rows, and so many outputs that they are wider still.
    (100, 130, 4224),
    (72, 256, 2048),
    (200, 2202, 96),
    // Many tiles, whose blocks do not all find room at once.
    (24, 33_030, 64),
];

const SWAP_AB: Variant = Variant {
    linear: Linear::SwapAb,
    experts: Experts::Tiled,
};

fn served(rig: &Rig) -> bool {
    rig.serves(rig.kernels.products.swap_ab.is_some(), |(major, _)| {
        major == 9
    })
}

/// How far a row of these kernels may be from the same row of the others: what is rounded may round the other way, and
/// the matrix units truncate as they add, in another order.
pub fn allowed(stored: DType, operand: DType) -> f64 {
    match (stored, operand) {
        (DType::F32, DType::F32) => 3e-6,
        (DType::F32, _) => 3e-5,
        (_, DType::F16) => 1e-3,
        _ => 8e-3,
    }
}

struct Case {
    outputs: usize,
    inner: usize,
    /// `[rows, inner]`
    x: Vec<f32>,
    /// `[outputs, inner]` each
    w: [Vec<f32>; 2],
    bias: Option<Vec<f32>>,
    /// `[rows, outputs]`: what is added to
    h: Vec<f32>,
}

impl Case {
    fn new(
        random: &mut Random,
        types: Precision,
        rows: usize,
        outputs: usize,
        inner: usize,
    ) -> Self {
        let scale = 1.7 / (inner as f32).sqrt();
        let w =
            [(); 2].map(|()| held(types.weights, &random.values(outputs * inner, scale), inner));
        Self {
            outputs,
            inner,
            x: rounded(types.compute, &random.values(rows * inner, 2.0)),
            w,
            bias: (random.below(2) == 0).then(|| random.values(outputs, 1.0)),
            h: random.values(rows * outputs, 3.0),
        }
    }

    /// y `[bucket, outputs]`; rows past the case's are poison. `Decode` takes the kernels that this is about.
    fn run(&self, rig: &Rig, bucket: usize, epilogue: Epilogue, kind: StepKind) -> Vec<f32> {
        let (gpu, types) = (rig.gpu, rig.kernels.precision);
        let y_type = y_type(types.compute, epilogue);
        let rows = self.x.len() / self.inner;
        let step = Step::of_rows(rows).upload(gpu);
        let y = gpu.poisoned(bucket * self.outputs * y_type.bytes());
        if epilogue == Epilogue::Add {
            y.write(&gpu.stream, 0, &encode(DType::F32, &self.h))
                .unwrap();
        }
        // rows past the step's are there, and hold anything
        let x = gpu.poisoned(bucket * self.inner * types.compute.bytes());
        x.write(&gpu.stream, 0, &encode(types.compute, &self.x))
            .unwrap();
        let paired = epilogue == Epilogue::SiluMul;
        let shape = [self.outputs, self.inner];
        let [w, pair] = [0, 1].map(|i| gpu.weights(types.weights, &self.w[i], shape));
        let bias = self.bias.as_ref().filter(|_| !paired);
        let bias = bias.map(|bias| gpu.values(DType::F32, bias));
        let product = Product {
            y: y.at(0),
            x: x.at(0),
            w: w.matrix,
            w_pair: paired.then_some(pair.matrix),
            bias: bias.as_ref().map_or(0, |bias| bias.at(0)),
            epilogue,
            prepared: Prepared::Scratch(0),
        };
        let enqueue = match kind {
            StepKind::Decode => rig.enqueue_by(&step, bucket, SWAP_AB).unwrap(),
            _ => rig.enqueue_by(&step, bucket, Variant::TILED).unwrap(),
        };
        // SAFETY: the arrays have the shapes that `Product` asks for.
        unsafe { enqueue.run(|to| to.product(&product, Rows::Step)) };
        gpu.get_values(y_type, &y)
    }
}

fn y_type(operand: DType, epilogue: Epilogue) -> DType {
    match epilogue {
        Epilogue::Store | Epilogue::SiluMul => operand,
        Epilogue::StoreF32 | Epilogue::Add => DType::F32,
    }
}

/// Tries every type and epilogue on these shapes.
fn for_every_product(
    shapes: &[(usize, usize, usize)],
    mut test: impl FnMut(&Rig, (usize, usize, usize), Epilogue),
) {
    let gpu = Gpu::new();
    for types in TYPES {
        let rig = Rig::new(&gpu, config(), types);
        if !served(&rig) {
            continue;
        }
        for &(bucket, outputs, inner) in shapes {
            for epilogue in EPILOGUES {
                test(&rig, (bucket, whole(types, outputs), inner), epilogue);
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn swap_ab_products_are_those_of_the_other_kernels() {
    are_those_of_the_other_kernels(&SHAPES);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_swap_ab_products_are_those_of_the_other_kernels() {
    are_those_of_the_other_kernels(&RAGGED);
}

fn are_those_of_the_other_kernels(shapes: &[(usize, usize, usize)]) {
    let mut random = Random(81);
    for_every_product(shapes, |rig, (bucket, outputs, inner), epilogue| {
        let types = rig.kernels.precision;
        let rows = match random.below(2) {
            0 => bucket,
            _ => 1 + random.below(bucket),
        };
        let case = Case::new(&mut random, types, rows, outputs, inner);
        let what = format!("{types:?} {epilogue:?} {rows} rows of {bucket}, {outputs} x {inner}");
        let [found, expected] =
            [StepKind::Decode, StepKind::Mixed].map(|kind| case.run(rig, bucket, epilogue, kind));
        let limit = allowed(y_type(types.compute, epilogue), types.compute);
        assert_rows_close(&what, [&found, &expected], outputs, rows, limit);
    });
}

/// A row alone, among others, and elsewhere among them: the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_of_a_swap_ab_product_does_not_depend_on_its_companions() {
    let mut random = Random(82);
    let all = [&RAGGED[..], &SHAPES].concat();
    for_every_product(&all, |rig, (bucket, outputs, inner), epilogue| {
        let types = rig.kernels.precision;
        let case = Case::new(&mut random, types, bucket, outputs, inner);
        let all = case.run(rig, bucket, epilogue, StepKind::Decode);
        let row = random.below(bucket);
        let place = random.below(bucket);
        let mut x = rounded(types.compute, &random.values(place * inner, 2.0));
        x.extend(&case.x[row * inner..][..inner]);
        let mut h = random.values(place * outputs, 1.0);
        h.extend(&case.h[row * outputs..][..outputs]);
        let moved = Case {
            x,
            h,
            w: case.w.clone(),
            bias: case.bias.clone(),
            ..case
        };
        let y = moved.run(rig, bucket, epilogue, StepKind::Decode);
        assert_same_bits(
            &format!("{types:?} {epilogue:?} bucket {bucket} row {row} at {place}"),
            &y[place * outputs..][..outputs],
            &all[row * outputs..][..outputs],
        );
    });
}
