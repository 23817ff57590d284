//! How experts' matrices lie in a GPU's memory (kernels/common/packed.cuh says why): blocks of [`ROWS`] rows by [`COLUMNS`] columns,
//! each row after row; blocks of the same rows side by side, along the columns, which are filled up with zeros to whole blocks.

/// Of a block, as kernels/common/packed.cuh has it. Matrices have whole ones.
pub const ROWS: usize = 8;
/// Columns of a block, as there.
pub const COLUMNS: usize = 64;

/// Columns of a matrix with what fills them up. Saturates.
pub fn columns(columns: usize) -> usize {
    columns.checked_next_multiple_of(COLUMNS).unwrap_or(columns)
}

/// Elements of a matrix, what fills it up included.
pub fn elements(rows: usize, of_row: usize) -> usize {
    rows.saturating_mul(columns(of_row))
}
