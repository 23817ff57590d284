//! How experts' matrices, and all in 8 bits, lie in a GPU's memory (kernels/common/packed.cuh says why): blocks of [`ROWS`] rows by
//! [`COLUMNS`] columns, each row after row; blocks of the same rows side by side, along the columns, which are filled up with zeros to
//! whole blocks. In 8 bits the columns of a row of a block are in the order that kernels/common/e4m3.cuh says.

use crate::model::WeightFormat;
use crate::sys::abi;
use rayon::prelude::*;

/// A block has so many rows. Matrices have whole blocks.
pub const ROWS: usize = abi::TG_PACKED_ROWS as usize;
/// A block has so many columns.
pub const COLUMNS: usize = abi::TG_PACKED_COLUMNS as usize;

/// Columns of a matrix with what fills them up. Saturates.
pub fn columns(columns: usize) -> usize {
    columns.checked_next_multiple_of(COLUMNS).unwrap_or(columns)
}

/// Elements of a matrix, what fills it up included.
pub fn elements(rows: usize, of_row: usize) -> usize {
    rows.saturating_mul(columns(of_row))
}

/// Puts a matrix, or whole blocks of rows of one, row after row, into `packed` as they lie packed, which has [`elements`] for them.
pub fn pack(bytes: &[u8], columns: usize, format: WeightFormat, packed: &mut [u8]) {
    let (row, line) = (columns * format.bytes(), COLUMNS * format.bytes());
    let rows = bytes.len() / row;
    assert!(rows.is_multiple_of(ROWS), "whole blocks of {rows} rows");
    assert_eq!(packed.len(), elements(rows, columns) * format.bytes());
    if !columns.is_multiple_of(COLUMNS) {
        packed.fill(0);
    }
    let of_rows = elements(ROWS, columns) * format.bytes();
    let rows_to = packed.par_chunks_exact_mut(of_rows);
    rows_to
        .zip(bytes.par_chunks(ROWS * row))
        .for_each(|(to, from)| {
            for (r, from) in from.chunks_exact(row).enumerate() {
                for (block, from) in to.chunks_exact_mut(ROWS * line).zip(from.chunks(line)) {
                    let to = &mut block[r * line..][..line];
                    match format {
                        WeightFormat::E4M3 => {
                            for (column, &bits) in from.iter().enumerate() {
                                to[e4m3_at(column)] = bits;
                            }
                        }
                        _ => to[..from.len()].copy_from_slice(from),
                    }
                }
            }
        });
}

/// Where a column of a block lies in a row of 8 bits.
pub fn e4m3_at(column: usize) -> usize {
    column % 8 / 2 * 16 + column / 16 * 4 + column % 16 / 8 * 2 + column % 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where element (r, c) of a matrix of so many columns lies, by kernels/common/packed.cuh's formula.
    fn at(r: usize, c: usize, columns: usize) -> usize {
        r / 8 * 8 * columns.div_ceil(64) * 64 + c / 64 * 512 + r % 8 * 64 + c % 64
    }

    /// A lane of four has 16 bytes of a row: of each of four instructions its pairs of columns, which begin 8 columns apart.
    #[test]
    fn columns_of_8_bits_lie_as_lanes_multiply_them() {
        let bytes: Vec<u8> = (0..64).cycle().take(512).collect();
        let mut packed = vec![0; 512];
        pack(&bytes, 64, WeightFormat::E4M3, &mut packed);
        let lane = |q: u8| (0..4).flat_map(move |t| [0, 1, 8, 9].map(|c| 16 * t + 2 * q + c));
        let row: Vec<u8> = (0..4).flat_map(lane).collect();
        assert_eq!(packed, row.repeat(8));
    }

    #[test]
    fn every_element_has_its_place_and_zeros_fill_the_rest() {
        let mut packed = vec![7; 5000];
        for (rows, columns) in [(8, 64), (16, 32), (32, 96), (24, 224), (8, 40)] {
            let values: Vec<u16> = (1..=rows * columns).map(|i| i as u16).collect();
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            packed.resize(size_of::<u16>() * elements(rows, columns), 0);
            pack(&bytes, columns, WeightFormat::BF16, &mut packed);
            let mut expected = vec![0_u16; elements(rows, columns)];
            for (i, value) in values.into_iter().enumerate() {
                expected[at(i / columns, i % columns, columns)] = value;
            }
            let expected: Vec<u8> = expected.iter().flat_map(|v| v.to_le_bytes()).collect();
            assert_eq!(packed, expected, "{rows} by {columns}");
        }
    }
}
