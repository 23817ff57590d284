//! The one arithmetic structure behind every dot product of this backend.
//!
//! A dot product of n elements is 16 running sums: lane l adds up the products of elements l, l + 16, l + 32 and so on in that
//! order, each product rounded before it is added (no fused multiply-add). The lanes are then
//! added as a tree: l + (l + 8), then + 4, + 2, + 1. Elements past n count as zeros. So the bits of a dot
//! product depend on its two vectors alone: not on the instruction set, nor on how many rows or outputs were
//! computed next to it.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m512, _mm256_add_ps, _mm256_mul_ps, _mm256_setzero_ps, _mm512_add_ps, _mm512_mul_ps,
    _mm512_setzero_ps,
};
#[cfg(target_arch = "x86_64")]
use std::mem::transmute;

/// Running sums of a dot product.
pub const LANES: usize = 16;

/// Which instructions compute a dot product; they all give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// Whatever the build's target has.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Detected),
    #[cfg(target_arch = "x86_64")]
    Avx512(Detected),
}

/// Proof that the machine was asked: only this module makes one.
#[cfg(target_arch = "x86_64")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Detected(());

impl Isa {
    /// All that this machine can run, the widest last.
    pub fn available() -> Vec<Self> {
        #[allow(unused_mut)]
        let mut all = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                all.push(Self::Avx2(Detected(())));
            }
            if is_x86_feature_detected!("avx512f") {
                all.push(Self::Avx512(Detected(())));
            }
        }
        all
    }

    /// The widest that this machine can run.
    pub fn detect() -> Self {
        *Self::available().last().unwrap_or(&Self::Portable)
    }

    /// Dot product of `a` and `b`, of equal length.
    pub fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        let mut out = [0.0];
        self.products(a, b, a.len(), &mut out);
        out[0]
    }

    /// All products of the rows of `x` `[rows, cols]` with the rows of `w` `[outputs, cols]`, output-major:
    /// `out` is `[outputs, rows]`.
    pub fn products(self, x: &[f32], w: &[f32], cols: usize, out: &mut [f32]) {
        assert!(cols > 0 && x.len().is_multiple_of(cols) && w.len().is_multiple_of(cols));
        assert_eq!(out.len(), (x.len() / cols) * (w.len() / cols));
        match self {
            Self::Portable => products_in::<Portable, 1, 2>(x, w, cols, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `Detected` is made only where the feature was found.
            Self::Avx2(_) => unsafe { products_avx2(x, w, cols, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            Self::Avx512(_) => unsafe { products_avx512(x, w, cols, out) },
        }
    }
}

/// The 16 running sums in whatever registers there are.
trait Lanes: Copy {
    fn zero() -> Self;
    fn load(from: &[f32; LANES]) -> Self;
    /// self + a * b, rounded twice.
    fn add_product(self, a: Self, b: Self) -> Self;
    fn store(self) -> [f32; LANES];
}

#[derive(Clone, Copy)]
struct Portable([f32; LANES]);

impl Lanes for Portable {
    #[inline(always)]
    fn zero() -> Self {
        Self([0.0; LANES])
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        Self(*from)
    }
    #[inline(always)]
    fn add_product(mut self, a: Self, b: Self) -> Self {
        for l in 0..LANES {
            self.0[l] += a.0[l] * b.0[l];
        }
        self
    }
    #[inline(always)]
    fn store(self) -> [f32; LANES] {
        self.0
    }
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx2(__m256, __m256);

// Arrays and registers are transmuted rather than loaded: the load intrinsics carry checks in debug builds
// that cost more than the arithmetic.
#[cfg(target_arch = "x86_64")]
impl Lanes for Avx2 {
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: used only inside `products_avx2`, which is entered only where AVX2 was found.
        unsafe { Self(_mm256_setzero_ps(), _mm256_setzero_ps()) }
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        // SAFETY: 16 f32 are two times eight.
        let [low, high] = unsafe { transmute::<[f32; LANES], [__m256; 2]>(*from) };
        Self(low, high)
    }
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: as in `zero`.
        unsafe {
            Self(
                _mm256_add_ps(self.0, _mm256_mul_ps(a.0, b.0)),
                _mm256_add_ps(self.1, _mm256_mul_ps(a.1, b.1)),
            )
        }
    }
    #[inline(always)]
    fn store(self) -> [f32; LANES] {
        // SAFETY: as in `load`.
        unsafe { transmute([self.0, self.1]) }
    }
}

#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
struct Avx512(__m512);

#[cfg(target_arch = "x86_64")]
impl Lanes for Avx512 {
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: used only inside `products_avx512`, which is entered only where AVX-512F was found.
        unsafe { Self(_mm512_setzero_ps()) }
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Self {
        // SAFETY: 16 f32 are one register.
        Self(unsafe { transmute::<[f32; LANES], __m512>(*from) })
    }
    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: as in `zero`.
        unsafe { Self(_mm512_add_ps(self.0, _mm512_mul_ps(a.0, b.0))) }
    }
    #[inline(always)]
    fn store(self) -> [f32; LANES] {
        // SAFETY: as in `load`.
        unsafe { transmute(self.0) }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn products_avx2(x: &[f32], w: &[f32], cols: usize, out: &mut [f32]) {
    products_in::<Avx2, 2, 2>(x, w, cols, out);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn products_avx512(x: &[f32], w: &[f32], cols: usize, out: &mut [f32]) {
    products_in::<Avx512, 4, 4>(x, w, cols, out);
}

/// Blocks of R rows by N outputs keep R * N sums in registers; what is left over goes one by one. Rows are the
/// outer loop: `w` is a tile that stays in the core's cache, x may be larger than that.
#[inline(always)]
fn products_in<V: Lanes, const R: usize, const N: usize>(
    x: &[f32],
    w: &[f32],
    cols: usize,
    out: &mut [f32],
) {
    let (rows, outputs) = (x.len() / cols, w.len() / cols);
    let (whole_rows, whole_outputs) = (rows - rows % R, outputs - outputs % N);
    for row in (0..whole_rows).step_by(R) {
        for output in (0..whole_outputs).step_by(N) {
            block::<V, R, N>(x, w, cols, row, output, out);
        }
        for output in whole_outputs..outputs {
            block::<V, R, 1>(x, w, cols, row, output, out);
        }
    }
    for row in whole_rows..rows {
        for output in (0..whole_outputs).step_by(N) {
            block::<V, 1, N>(x, w, cols, row, output, out);
        }
        for output in whole_outputs..outputs {
            block::<V, 1, 1>(x, w, cols, row, output, out);
        }
    }
}

/// `out[output + n][row + r]` for r < R, n < N.
#[inline(always)]
fn block<V: Lanes, const R: usize, const N: usize>(
    x: &[f32],
    w: &[f32],
    cols: usize,
    row: usize,
    output: usize,
    out: &mut [f32],
) {
    let rows = x.len() / cols;
    let chunks = cols / LANES;
    let mut xs: [&[[f32; LANES]]; R] = [&[]; R];
    let mut ws: [&[[f32; LANES]]; N] = [&[]; N];
    for r in 0..R {
        xs[r] = &x[(row + r) * cols..(row + r + 1) * cols].as_chunks().0[..chunks];
    }
    for n in 0..N {
        ws[n] = &w[(output + n) * cols..(output + n + 1) * cols]
            .as_chunks()
            .0[..chunks];
    }
    let mut sums = [[V::zero(); N]; R];
    for k in 0..chunks {
        let mut wv = [V::zero(); N];
        for n in 0..N {
            wv[n] = V::load(&ws[n][k]);
        }
        for r in 0..R {
            let xv = V::load(&xs[r][k]);
            for n in 0..N {
                sums[r][n] = sums[r][n].add_product(xv, wv[n]);
            }
        }
    }
    if cols > chunks * LANES {
        for r in 0..R {
            let xv = V::load(&tail(&x[(row + r) * cols..(row + r + 1) * cols]));
            for n in 0..N {
                let wv = V::load(&tail(&w[(output + n) * cols..(output + n + 1) * cols]));
                sums[r][n] = sums[r][n].add_product(xv, wv);
            }
        }
    }
    for r in 0..R {
        for n in 0..N {
            out[(output + n) * rows + row + r] = add_lanes(sums[r][n].store());
        }
    }
}

/// What does not fill the last 16 elements, filled up with zeros.
fn tail(vector: &[f32]) -> [f32; LANES] {
    let rest = vector.as_chunks::<LANES>().1;
    let mut lanes = [0.0; LANES];
    lanes[..rest.len()].copy_from_slice(rest);
    lanes
}

#[inline(always)]
fn add_lanes(mut lanes: [f32; LANES]) -> f32 {
    for half in [8, 4, 2, 1] {
        for l in 0..half {
            lanes[l] += lanes[l + half];
        }
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::check::Numbers;

    /// The structure of the module's first paragraph, spelled out.
    fn by_the_book(a: &[f32], b: &[f32]) -> f32 {
        let mut lanes = [0.0f32; LANES];
        for (i, (a, b)) in a.iter().zip(b).enumerate() {
            let product = a * b;
            lanes[i % LANES] += product;
        }
        let eight: Vec<f32> = (0..8).map(|l| lanes[l] + lanes[l + 8]).collect();
        let four: Vec<f32> = (0..4).map(|l| eight[l] + eight[l + 4]).collect();
        (four[0] + four[2]) + (four[1] + four[3])
    }

    #[test]
    fn every_isa_and_block_gives_the_same_bits() {
        let mut numbers = Numbers::new(1);
        for (rows, outputs, cols) in [
            (1, 1, 1),
            (1, 5, 16),
            (3, 2, 17),
            (4, 4, 64),
            (5, 7, 100),
            (9, 11, 15),
            (6, 9, 257),
            (33, 13, 48),
        ] {
            let x = numbers.normal(rows * cols);
            let w = numbers.normal(outputs * cols);
            for isa in Isa::available() {
                let mut out = vec![0.0; rows * outputs];
                isa.products(&x, &w, cols, &mut out);
                for row in 0..rows {
                    for output in 0..outputs {
                        let (a, b) = (&x[row * cols..][..cols], &w[output * cols..][..cols]);
                        let expected = by_the_book(a, b);
                        let found = out[output * rows + row];
                        assert_eq!(
                            found.to_bits(),
                            expected.to_bits(),
                            "{isa:?} {rows}x{outputs}x{cols} at row {row}, output {output}: {found} {expected}"
                        );
                        assert_eq!(isa.dot(a, b).to_bits(), expected.to_bits());
                    }
                }
            }
        }
    }
}
