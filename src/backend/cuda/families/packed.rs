//! How experts' matrices lie in a GPU's memory (kernels/common/packed.cuh says why): blocks of [`ROWS`] rows by [`COLUMNS`] columns,
//! each row after row; blocks of the same rows side by side, along the columns, which are filled up with zeros to whole blocks.

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
                    block[r * line..][..from.len()].copy_from_slice(from);
                }
            }
        });
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where element (r, c) of a matrix of so many columns lies, by kernels/common/packed.cuh's formula.
    fn at(r: usize, c: usize, columns: usize) -> usize {
        r / 8 * 8 * columns.div_ceil(64) * 64 + c / 64 * 512 + r % 8 * 64 + c % 64
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
