//! Numbers of 8 bits: a sign, 4 bits of exponent and 3 of mantissa, without infinities (OCP 8-bit floating point, E4M3).

use rayon::prelude::*;
use std::ops::Range;

/// The largest number.
pub const MAX: f32 = 448.0;

/// All numbers by their bits.
static NUMBERS: [f32; 256] = {
    let mut numbers = [0.0; 256];
    let mut bits = 0;
    while bits < 256 {
        numbers[bits] = number(bits as u32);
        bits += 1;
    }
    numbers
};

/// The number of these bits: subnormal where the exponent is 0, and not a number where all other bits are set.
const fn number(bits: u32) -> f32 {
    let (sign, exponent, mantissa) = ((bits & 0x80) << 24, bits >> 3 & 15, bits & 7);
    if exponent == 0 {
        let size = mantissa as f32 / 512.0;
        return f32::from_bits(sign | size.to_bits());
    }
    if bits & 0x7f == 0x7f {
        return f32::NAN;
    }
    f32::from_bits(sign | (exponent + 127 - 7) << 23 | mantissa << 20)
}

/// The number of these bits.
pub fn to_f32(bits: u8) -> f32 {
    NUMBERS[usize::from(bits)]
}

/// The bits of the nearest number, of two the even one; of what is larger than [`MAX`] those of that.
pub fn from_f32(value: f32) -> u8 {
    let sign = (value.to_bits() >> 24) as u8 & 0x80;
    let size = value.abs();
    if size.is_nan() {
        return sign | 0x7f;
    }
    // Below the least normal number, 2^-6, all lie on multiples of 2^-9.
    if size < 1.0 / 64.0 {
        return sign | (size * 512.0).round_ties_even() as u8;
    }
    let bits = size.min(MAX).to_bits();
    let rounded = bits + 0x7_ffff + (bits >> 20 & 1);
    sign | ((rounded >> 20) - ((127 - 7) << 3)) as u8
}

/// A matrix, or some rows of one, with a scale for each row.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    pub bits: Vec<u8>,
    pub scales: Vec<f32>,
}

/// Rows of `columns` elements each, scaled so that a row's largest becomes [`MAX`]. A row of zeros has the scale 1.
pub fn quantize(rows: &[f32], columns: usize) -> Quantized {
    let scales: Vec<f32> = rows.par_chunks(columns).map(scale_of).collect();
    let mut bits = vec![0; rows.len()];
    let quantized = bits.par_chunks_mut(columns).zip(rows.par_chunks(columns));
    quantized.zip(&scales).for_each(|((bits, row), scale)| {
        for (bits, x) in bits.iter_mut().zip(row) {
            *bits = from_f32(x / scale);
        }
    });
    Quantized { bits, scales }
}

fn scale_of(row: &[f32]) -> f32 {
    let most = row.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
    let scale = most / MAX;
    if scale > 0.0 { scale } else { 1.0 }
}

/// What the numbers of a matrix are multiplied by: each block of `rows` by `columns` of them has a scale.
#[derive(Debug, Clone, PartialEq)]
pub struct Scales {
    /// Row by row of blocks.
    pub values: Vec<f32>,
    pub rows: usize,
    pub columns: usize,
}

impl Scales {
    /// One for each row.
    pub fn of_rows(values: Vec<f32>, columns: usize) -> Self {
        Self {
            values,
            rows: 1,
            columns,
        }
    }

    /// What a row of a matrix of `columns` columns has one scale for.
    ///
    /// # Panics
    /// It has several.
    pub fn of_row(&self, row: usize, columns: usize) -> f32 {
        assert!(columns <= self.columns, "a scale for each row");
        self.values[row / self.rows]
    }

    /// Multiplies the rows `rows` of a matrix of `columns` columns by their scales.
    pub fn apply(&self, rows: Range<usize>, columns: usize, elements: &mut [f32]) {
        let blocks = columns.div_ceil(self.columns);
        for (row, elements) in rows.zip(elements.chunks_mut(columns)) {
            let scales = &self.values[row / self.rows * blocks..];
            for (block, scale) in elements.chunks_mut(self.columns).zip(scales) {
                block.iter_mut().for_each(|element| *element *= scale);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_format() {
        let known = [
            (0x00, 0.0),
            (0x01, 1.0 / 512.0),
            (0x07, 7.0 / 512.0),
            (0x08, 1.0 / 64.0),
            (0x38, 1.0),
            (0x3f, 1.875),
            (0x7e, 448.0),
            (0xb8, -1.0),
        ];
        for (bits, number) in known {
            assert_eq!(to_f32(bits), number, "{bits:#x}");
        }
        assert!(to_f32(0x7f).is_nan() && to_f32(0xff).is_nan());
        assert!(to_f32(0x80).is_sign_negative());
    }

    /// Each number becomes itself, what lies between two the nearer one, and what lies in the middle the even one.
    #[test]
    fn rounding_is_to_the_nearest_number() {
        for bits in 0..0x7eu8 {
            let (low, high) = (to_f32(bits), to_f32(bits + 1));
            let middle = f32::midpoint(low, high);
            for sign in [0, 0x80u8] {
                let signed = |x: f32| if sign == 0 { x } else { -x };
                assert_eq!(from_f32(signed(low)), sign | bits);
                assert_eq!(from_f32(signed(middle.next_down())), sign | bits);
                assert_eq!(from_f32(signed(middle)), sign | (bits + (bits & 1)));
                assert_eq!(from_f32(signed(middle.next_up())), sign | (bits + 1));
            }
        }
        assert_eq!(from_f32(1e30), 0x7e);
        assert_eq!(from_f32(f32::NEG_INFINITY), 0xfe);
        assert_eq!(from_f32(f32::NAN) & 0x7f, 0x7f);
    }

    #[test]
    fn a_rows_largest_element_is_kept() {
        let rows = [0.5, -3.0, 0.1, 0.0, 0.0, 0.0, 7e-20, 1e-20, -2e-20];
        let Quantized { bits, scales } = quantize(&rows, 3);
        assert_eq!((bits[1], scales[0]), (0xfe, 3.0 / 448.0));
        assert_eq!((&bits[3..6], scales[1]), (&[0, 0, 0][..], 1.0));
        assert_eq!(bits[6], 0x7e);
        let mut elements: Vec<f32> = bits.iter().map(|&bits| to_f32(bits)).collect();
        Scales::of_rows(scales, 3).apply(0..3, 3, &mut elements);
        for (found, wanted) in elements.iter().zip(rows) {
            assert!(
                (found - wanted).abs() <= wanted.abs() / 16.0,
                "{found} of {wanted}"
            );
        }
    }

    #[test]
    fn blocks_end_where_the_matrix_does() {
        let scales = Scales {
            values: vec![1.0, 2.0, 3.0, 4.0],
            rows: 2,
            columns: 2,
        };
        let mut all = [1.0; 9];
        scales.apply(0..3, 3, &mut all);
        assert_eq!(all, [1.0, 1.0, 2.0, 1.0, 1.0, 2.0, 3.0, 3.0, 4.0]);
        let mut last = [1.0; 3];
        scales.apply(2..3, 3, &mut last);
        assert_eq!(last, [3.0, 3.0, 4.0]);
    }
}
