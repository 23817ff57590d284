//! RMSNorm against f64.

use crate::common::random::Random;
use crate::support::{BF16, Element, F16, F32, Gpu, HIDDEN, ROWS, State};
use tailgraph::backend::cuda::driver::launch::Argument;

const EPS: f32 = 1e-5;

struct Case {
    hidden: usize,
    /// `[rows, hidden]`
    h: Vec<f32>,
    /// `[hidden]`
    weight: Vec<f32>,
}

impl Case {
    fn new(random: &mut Random, rows: usize, hidden: usize) -> Self {
        Self {
            hidden,
            h: random.values(rows * hidden, 3.0),
            weight: random.values(hidden, 1.5),
        }
    }

    /// Runs the kernel over a bucket of `blocks` rows of which the step has `rows`; where `sampled` is
    /// given, over those. Untouched elements keep the bits of `untouched`.
    fn run<T: Element>(
        &self,
        gpu: &Gpu,
        rows: usize,
        blocks: usize,
        sampled: Option<&[u32]>,
        untouched: T::Bits,
    ) -> Vec<T::Bits> {
        let state = State::with_rows(gpu, rows, sampled.unwrap_or(&[]));
        let h = gpu.upload(&self.h);
        let weight = gpu.upload(&self.weight);
        let x = gpu.upload(&vec![untouched; blocks * self.hidden]);
        let mut arguments = vec![gpu.address(&x), gpu.address(&h), gpu.address(&weight)];
        let infix = if sampled.is_some() {
            arguments.push(state.state(gpu));
            "sampled_"
        } else {
            ""
        };
        arguments.extend([
            state.step(gpu),
            Argument::U32(self.hidden as u32),
            Argument::F32(EPS),
        ]);
        let kernel = gpu.kernel(&format!("tg_rmsnorm_{infix}{}", T::SUFFIX));
        // SAFETY: the arguments are the kernel's, and every array holds what its comment says.
        unsafe { gpu.launch(&kernel, blocks, &arguments) };
        gpu.download(&x)
    }

    /// Row `row` in f64.
    fn expected(&self, row: usize) -> impl Iterator<Item = f64> {
        let h = &self.h[row * self.hidden..][..self.hidden];
        let squares: f64 = h.iter().map(|&v| f64::from(v).powi(2)).sum();
        let scale = 1.0 / (squares / self.hidden as f64 + f64::from(EPS)).sqrt();
        h.iter()
            .zip(&self.weight)
            .map(move |(&v, &w)| f64::from(v) * scale * f64::from(w))
    }

    fn check<T: Element>(&self, row: usize, x: &[T::Bits]) {
        for (column, (&bits, expected)) in x.iter().zip(self.expected(row)).enumerate() {
            let found = f64::from(T::to_f32(bits));
            // A rounding at the end, a few in f32 before it; 1e-7 covers f16's subnormals.
            let allowed = expected.abs() * (T::ROUNDING + 2e-6) + 1e-7;
            assert!(
                (found - expected).abs() <= allowed,
                "{} hidden {} row {row} column {column}: {found}, expected {expected}",
                T::SUFFIX,
                self.hidden
            );
        }
    }
}

fn every_row<T: Element>(gpu: &Gpu) {
    let mut random = Random(1);
    let untouched = T::from_f32(77.0);
    for rows in ROWS {
        for hidden in HIDDEN {
            let blocks = rows + random.below(4);
            let case = Case::new(&mut random, blocks, hidden);
            let x = case.run::<T>(gpu, rows, blocks, None, untouched);
            for row in 0..rows {
                case.check::<T>(row, &x[row * hidden..][..hidden]);
            }
            assert!(
                x[rows * hidden..].iter().all(|&bits| bits == untouched),
                "padding was written"
            );
        }
    }
}

fn sampled_rows<T: Element>(gpu: &Gpu) {
    let mut random = Random(2);
    let untouched = T::from_f32(77.0);
    for rows in ROWS {
        let case = Case::new(&mut random, rows, 1056);
        let sampled: Vec<u32> = (0..rows as u32).filter(|_| random.below(3) > 0).collect();
        let blocks = sampled.len() + 2;
        let x = case.run::<T>(gpu, rows, blocks, Some(&sampled), untouched);
        for (sample, &row) in sampled.iter().enumerate() {
            case.check::<T>(row as usize, &x[sample * 1056..][..1056]);
        }
        assert!(
            x[sampled.len() * 1056..]
                .iter()
                .all(|&bits| bits == untouched),
            "padding was written"
        );
    }
}

/// A row alone and the same row among others, elsewhere: the same bits.
fn companions<T: Element>(gpu: &Gpu) {
    let mut random = Random(3);
    let many = Case::new(&mut random, 64, 2048);
    let x = many.run::<T>(gpu, 64, 64, None, T::from_f32(0.0));
    for row in [0, 1, 31, 63] {
        let alone = Case {
            hidden: 2048,
            h: many.h[row * 2048..][..2048].to_vec(),
            weight: many.weight.clone(),
        };
        let bits = alone.run::<T>(gpu, 1, 1, None, T::from_f32(0.0));
        let differs = bits.iter().zip(&x[row * 2048..]).position(|(a, b)| a != b);
        assert_eq!(
            differs,
            None,
            "{} row {row}: the first column whose bits differ",
            T::SUFFIX
        );
    }
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn rmsnorm_is_that_of_f64() {
    let gpu = Gpu::new();
    every_row::<BF16>(&gpu);
    every_row::<F16>(&gpu);
    every_row::<F32>(&gpu);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn sampled_rmsnorm_gathers_its_rows() {
    let gpu = Gpu::new();
    sampled_rows::<BF16>(&gpu);
    sampled_rows::<F16>(&gpu);
    sampled_rows::<F32>(&gpu);
}

#[test]
#[ignore = "needs an NVIDIA GPU"]
fn a_row_of_rmsnorm_does_not_depend_on_its_companions() {
    let gpu = Gpu::new();
    companions::<BF16>(&gpu);
    companions::<F16>(&gpu);
    companions::<F32>(&gpu);
}
