//! Matrix products against f64.

use crate::common::random::Random;
use crate::rig::{
    Rig, Step, TYPES, assert_close, assert_same_bits, config, decode_rows, encode, exact_rows,
    held, held_rows, rounded, rounding, whole,
};
use crate::support::Gpu;
use rayon::prelude::*;
use tailgraph::backend::cuda::families::persistent::e4m3_row_bytes;
use tailgraph::backend::cuda::families::tiled::{Epilogue, Prepared, Product, Rows};
use tailgraph::backend::cuda::tuning::variants::Variant;
use tailgraph::model::{DType, e4m3};
use tailgraph::plan::{Activations, StepKind};

/// Outputs compared in one product, at most; the others are still checked to be numbers.
const COMPARED: usize = 20_000;

pub struct Case {
    outputs: usize,
    inner: usize,
    /// `[rows, inner]`, as the operand type holds it
    pub x: Vec<f32>,
    /// `[outputs, inner]`, as the weights' type holds it
    w: Vec<f32>,
    w_pair: Vec<f32>,
    bias: Vec<f32>,
    /// `[rows, outputs]`: what is added to
    h: Vec<f32>,
}

impl Case {
    pub fn new(random: &mut Random, rig: &Rig, rows: usize, outputs: usize, inner: usize) -> Self {
        let types = rig.kernels.precision;
        let scale = 1.7 / (inner as f32).sqrt();
        Self {
            outputs,
            inner,
            x: exact_rows(types, &random.values(rows * inner, 2.0), inner),
            w: held(types.weights, &random.values(outputs * inner, scale), inner),
            w_pair: held(types.weights, &random.values(outputs * inner, scale), inner),
            bias: random.values(outputs, 1.0),
            h: random.values(rows * outputs, 3.0),
        }
    }

    /// Rows times one: what they are multiplied as. `columns`: whole packed blocks.
    pub fn identity(random: &mut Random, rig: &Rig, rows: usize, columns: usize) -> Self {
        let types = rig.kernels.precision;
        let one = (0..columns * columns).map(|i| f32::from(u8::from(i % (columns + 1) == 0)));
        Self {
            x: rounded(types.compute, &random.values(rows * columns, 2.0)),
            w: one.collect(),
            ..Self::new(random, rig, rows, columns, columns)
        }
    }

    /// What its rows are multiplied as.
    pub fn held(&self, rig: &Rig) -> Vec<f32> {
        held_rows(rig.kernels.precision, &self.x, self.inner)
    }

    fn rows(&self) -> usize {
        self.x.len() / self.inner
    }

    /// A row of this case behind `place` others, which are not this case's.
    pub fn moved(&self, random: &mut Random, rig: &Rig, row: usize, place: usize) -> Self {
        let others = random.values(place * self.inner, 2.0);
        let x = &self.x[row * self.inner..][..self.inner];
        Self {
            x: [&exact_rows(rig.kernels.precision, &others, self.inner), x].concat(),
            w: self.w.clone(),
            w_pair: self.w_pair.clone(),
            bias: self.bias.clone(),
            h: Vec::new(),
            ..*self
        }
    }

    /// y `[bucket, outputs]`, by what serves as many rows of prompts, or a variant; rows past the case's are poison.
    pub fn run(
        &self,
        rig: &Rig,
        bucket: usize,
        epilogue: Epilogue,
        bias: bool,
        rows: Rows,
        by: Option<Variant>,
    ) -> Vec<f32> {
        let types = rig.kernels.precision;
        let gpu = rig.gpu;
        let y_type = y_type(types.compute, epilogue);
        let step = Step::of_rows(self.rows()).upload(gpu);
        let enqueue = match by {
            None => rig.enqueue(&step, StepKind::Mixed, bucket),
            Some(variant) => rig.enqueue_by(&step, bucket, variant).unwrap(),
        };
        let most = match rows {
            Rows::Tile { rows, .. } => rows as usize,
            Rows::Step | Rows::Sampled => bucket,
        };
        let by_bf16x3 = enqueue.multiplies_bf16x3(most as u32);
        let in_8_bits = enqueue.multiplies_e4m3_rows();
        let leaves_bf16x3 = by_bf16x3 && epilogue == Epilogue::SiluMul;
        let leaves_8_bits = in_8_bits && epilogue == Epilogue::SiluMul;
        let y = gpu.poisoned(if leaves_bf16x3 {
            3 * bucket * self.outputs * DType::BF16.bytes()
        } else if leaves_8_bits {
            bucket * e4m3_row_bytes(self.outputs)
        } else {
            bucket * self.outputs * y_type.bytes()
        });
        let parts = gpu.poisoned(if by_bf16x3 {
            6 * most * self.inner
        } else if in_8_bits {
            most * e4m3_row_bytes(self.inner)
        } else {
            4
        });
        if epilogue == Epilogue::Add {
            y.write(&gpu.stream, 0, &encode(DType::F32, &self.h))
                .unwrap();
        }
        let x = gpu.poisoned(bucket * self.inner * types.compute.bytes());
        x.write(&gpu.stream, 0, &encode(types.compute, &self.x))
            .unwrap();
        let bias_values = gpu.values(DType::F32, &self.bias);
        let paired = epilogue == Epilogue::SiluMul;
        let shape = [self.outputs, self.inner];
        let w = gpu.weights(types.weights, &self.w, shape);
        let pair = gpu.weights(types.weights, &self.w_pair, shape);
        let mut product = Product {
            y: y.at(0),
            x: x.at(0),
            w: w.matrix,
            w_pair: paired.then_some(pair.matrix),
            bias: if bias { bias_values.at(0) } else { 0 },
            epilogue,
            prepared: Prepared::Scratch(parts.at(0)),
        };
        if let Rows::Tile { first, .. } = rows {
            product.x = x.at(first as usize * self.inner * types.compute.bytes());
            product.y = y.at(first as usize * self.outputs * y_type.bytes());
        }
        // SAFETY: the arrays have the shapes that `Product` asks for.
        unsafe { enqueue.run(|to| to.product(&product, rows)) };
        if leaves_bf16x3 {
            let parts = gpu.get_values(DType::BF16, &y);
            let [high, middle, low] = [0, 1, 2].map(|part| &parts[part * parts.len() / 3..]);
            let values = high.iter().zip(middle).zip(low);
            let values = values.take(parts.len() / 3);
            values
                .map(|((high, middle), low)| high + (middle + low))
                .collect()
        } else if leaves_8_bits {
            decode_rows(&gpu.get(&y), bucket, self.outputs)
        } else {
            gpu.get_values(y_type, &y)
        }
    }

    /// Fails where a row of a full bucket has other bits behind other rows, as [`Case::moved`] has it.
    pub fn check_companions(
        &self,
        random: &mut Random,
        rig: &Rig,
        epilogue: Epilogue,
        by: Variant,
        what: &str,
    ) {
        let (bucket, outputs, by) = (self.rows(), self.outputs, Some(by));
        let all = self.run(rig, bucket, epilogue, false, Rows::Step, by);
        let row = random.below(bucket);
        for place in [0, 70, bucket / 2 + 130, bucket - 1] {
            let moved = self.moved(random, rig, row, place);
            let y = moved.run(rig, bucket, epilogue, false, Rows::Step, by);
            assert_same_bits(
                &format!("{what} {epilogue:?}: row {row} of {bucket} at {place}"),
                &y[place * outputs..][..outputs],
                &all[row * outputs..][..outputs],
            );
        }
    }

    /// (expected, sum of the magnitudes that were added) of one output.
    fn expected(&self, r: usize, n: usize, epilogue: Epilogue, bias: bool) -> (f64, f64) {
        let dot = |w: &[f32]| {
            let products = self.x[r * self.inner..][..self.inner]
                .iter()
                .zip(&w[n * self.inner..][..self.inner])
                .map(|(&x, &w)| f64::from(x) * f64::from(w));
            products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()))
        };
        let (mut sum, mut size) = dot(&self.w);
        if bias {
            sum += f64::from(self.bias[n]);
            size += f64::from(self.bias[n]).abs();
        }
        match epilogue {
            Epilogue::Store | Epilogue::StoreF32 => (sum, size),
            Epilogue::Add => {
                let h = f64::from(self.h[r * self.outputs + n]);
                (h + sum, size + h.abs())
            }
            Epilogue::SiluMul => {
                let (up, up_size) = dot(&self.w_pair);
                let silu = sum / (1.0 + (-sum).exp());
                (silu * up, 1.2 * size * up.abs() + silu.abs() * up_size)
            }
        }
    }

    /// Compares with as many rows of f64, to rounding; rows past the case's are untouched.
    pub fn check(
        &self,
        rig: &Rig,
        bucket: usize,
        epilogue: Epilogue,
        bias: bool,
        by: Option<Variant>,
    ) {
        let y = self.run(rig, bucket, epilogue, bias, Rows::Step, by);
        let types = rig.kernels.precision;
        let (rows, outputs) = (self.rows(), self.outputs);
        let what = format!(
            "{types:?} {epilogue:?} bias {bias} rows {rows} of {bucket}, {outputs} x {}, {by:?}",
            self.inner
        );
        let (written, padding) = y.split_at(rows * outputs);
        assert!(written.iter().all(|v| v.is_finite()), "{what}: unwritten");
        assert!(
            padding.iter().all(|v| v.is_nan()),
            "{what}: padding written"
        );
        let stride = written.len().div_ceil(COMPARED);
        let compared: Vec<usize> = (0..written.len()).step_by(stride).collect();
        let expected: Vec<(f64, f64)> = compared
            .par_iter()
            .map(|&i| self.expected(i / outputs, i % outputs, epilogue, bias))
            .collect();
        let found: Vec<f32> = compared.iter().map(|&i| written[i]).collect();
        let sums: Vec<f64> = expected.iter().map(|e| e.0).collect();
        let stored = rounding(y_type(types.compute, epilogue));
        let in_8_bits = types.activations == Activations::FP8;
        // Tensor cores keep some 14 bits of the products of 128 columns.
        let kept = if in_8_bits { 2e-4 } else { 1e-6 };
        assert_close(&what, &found, &sums, |i, sum| {
            let by_sizes = kept * expected[i].1 + 1e-7;
            if in_8_bits && epilogue == Epilogue::SiluMul {
                // Half of what neighbours are apart: of those of 8 bits, and of the least of them.
                let (row, n) = (compared[i] / outputs, compared[i] % outputs);
                let from = row * outputs + n / 128 * 128;
                let block = &written[from..from + 128.min(outputs - n / 128 * 128)];
                let most = block.iter().fold(0.0, |most: f32, v| most.max(v.abs()));
                let scale = f64::from(most / e4m3::MAX);
                return sum.abs() / 16.0 + scale / 1024.0 + by_sizes;
            }
            stored * sum.abs() + by_sizes
        });
        if types.compute == DType::F32 {
            let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
            let off = norm(&mut found.iter().zip(&sums).map(|(&f, &s)| f64::from(f) - s));
            let relative = (off / norm(&mut sums.iter().copied())).sqrt();
            assert!(relative <= 2e-6, "{what}: relative error {relative:e}");
        }
    }
}

fn y_type(operand: DType, epilogue: Epilogue) -> DType {
    match epilogue {
        Epilogue::Store | Epilogue::SiluMul => operand,
        Epilogue::StoreF32 | Epilogue::Add => DType::F32,
    }
}

pub const EPILOGUES: [Epilogue; 4] = [
    Epilogue::Store,
    Epilogue::StoreF32,
    Epilogue::Add,
    Epilogue::SiluMul,
];

/// (bucket, outputs, inner): every variant, ragged outputs, one stage of the pipeline and many.
const SHAPES: [(usize, usize, usize); 10] = [
    (1, 32, 32),
    (8, 2048, 2048),
    (8, 301, 7168),
    (32, 96, 1056),
    (32, 1792, 256),
    (64, 65, 96),
    (64, 512, 1792),
    (256, 1536, 544),
    (512, 8200, 160),
    (1024, 4096, 2048),
];

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn products_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(11);
    for types in TYPES {
        let rig = Rig::new(&gpu, config(), types);
        for (bucket, outputs, inner) in SHAPES {
            let outputs = whole(types, outputs);
            for (i, epilogue) in EPILOGUES.into_iter().enumerate() {
                let rows = match i {
                    0 => bucket,
                    _ => 1 + random.below(bucket),
                };
                let case = Case::new(&mut random, &rig, rows, outputs, inner);
                let bias = epilogue != Epilogue::SiluMul && i % 2 == 0;
                for by in [None, Some(Variant::TILED)] {
                    case.check(&rig, bucket, epilogue, bias, by);
                }
            }
        }
    }
}

/// Tiles without rows for one warpgroup or both, beside blocks of their cluster that have some; pipelines that go round, and one
/// stage; several tiles a block, where a GPU has few multiprocessors. Twice to the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn ragged_persistent_products_are_those_of_f64() {
    let gpu = Gpu::new();
    let mut random = Random(14);
    let by = Some(Variant::PERSISTENT);
    for types in TYPES {
        let rig = Rig::new(&gpu, config(), types);
        if !rig.serves(rig.kernels.products.persistent.is_some(), |(major, _)| {
            major == 9
        }) {
            continue;
        }
        for (bucket, rows, outputs, inner) in [
            (1024, 786, 264, 448),
            (2048, 1214, 128, 320),
            (512, 130, 136, 576),
            (300, 1, 301, 32),
            (512, 257, 72, 1056),
        ] {
            let outputs = whole(types, outputs);
            let case = Case::new(&mut random, &rig, rows, outputs, inner);
            for epilogue in EPILOGUES {
                // Gate and up come by eights.
                if epilogue == Epilogue::SiluMul && !outputs.is_multiple_of(8) {
                    continue;
                }
                let bias = epilogue == Epilogue::Add;
                case.check(&rig, bucket, epilogue, bias, by);
                let [first, second] =
                    [(); 2].map(|()| case.run(&rig, bucket, epilogue, bias, Rows::Step, by));
                let what =
                    format!("{types:?} {epilogue:?} {rows} of {bucket}, {outputs} x {inner}");
                assert_same_bits(&what, &second[..rows * outputs], &first[..rows * outputs]);
            }
        }
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn tiles_of_a_score_step_are_the_whole() {
    let gpu = Gpu::new();
    let mut random = Random(12);
    for types in TYPES {
        let rig = Rig::new(&gpu, config(), types);
        let outputs = whole(types, 301);
        let case = Case::new(&mut random, &rig, 700, outputs, 128);
        for first in [0, 512] {
            let rows = Rows::Tile { first, rows: 512 };
            let y = case.run(&rig, 1024, Epilogue::StoreF32, false, rows, None);
            for r in 0..1024 {
                let inside = r >= first as usize && r < 700.min(first as usize + 512);
                let row = &y[r * outputs..][..outputs];
                assert!(row.iter().all(|v| v.is_nan() != inside), "row {r}");
            }
            let from = first as usize * outputs;
            let (sum, size) = case.expected(first as usize, 0, Epilogue::StoreF32, false);
            assert!((f64::from(y[from]) - sum).abs() <= 1e-6 * size + 1e-7);
        }
    }
}

/// A row alone, among others, and elsewhere among them: the same bits.
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_of_a_product_does_not_depend_on_its_companions() {
    let gpu = Gpu::new();
    let mut random = Random(13);
    for types in TYPES {
        let rig = Rig::new(&gpu, config(), types);
        for (bucket, outputs, inner) in SHAPES {
            let outputs = whole(types, outputs);
            let case = Case::new(&mut random, &rig, bucket, outputs, inner);
            let by = [None, Some(Variant::TILED)][random.below(2)];
            let all = case.run(&rig, bucket, Epilogue::SiluMul, false, Rows::Step, by);
            let row = random.below(bucket);
            for place in [0, bucket / 2] {
                let moved = case.moved(&mut random, &rig, row, place);
                let y = moved.run(&rig, bucket, Epilogue::SiluMul, false, Rows::Step, by);
                assert_same_bits(
                    &format!("{types:?} bucket {bucket} row {row} at {place}, {by:?}"),
                    &y[place * outputs..][..outputs],
                    &all[row * outputs..][..outputs],
                );
            }
        }
    }
}
