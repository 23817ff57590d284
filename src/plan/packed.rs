//! How experts' matrices lie in a GPU's memory (kernels/packed.cuh says why): blocks of [`ROWS`] rows by [`COLUMNS`] columns,
//! each row after row; blocks of the same rows side by side, along the columns, which are filled up with zeros to whole blocks.

/// Of a block, as kernels/packed.cuh has it.
pub const ROWS: usize = 8;
/// Of a block, likewise.
pub const COLUMNS: usize = 64;

/// A matrix `[rows, columns]` with what fills it up. Sizes saturate.
pub fn filled_up([rows, columns]: [usize; 2]) -> [usize; 2] {
    let whole = |n: usize, of| n.checked_next_multiple_of(of).unwrap_or(n);
    [whole(rows, ROWS), whole(columns, COLUMNS)]
}

/// Elements of a matrix `[rows, columns]`, what fills it up included.
pub fn elements(rows: usize, columns: usize) -> usize {
    let [rows, columns] = filled_up([rows, columns]);
    rows.saturating_mul(columns)
}
