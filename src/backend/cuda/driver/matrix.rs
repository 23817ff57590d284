//! A matrix of weights in a GPU's memory: what every call takes that reads one, and what is said of that call.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::tensor_map::Boxes;
use crate::model::WeightFormat;
use serde::Serialize;

/// `[rows, columns]`, which lies on 16 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Matrix {
    #[serde(skip)]
    pub address: Address,
    pub rows: u32,
    pub columns: u32,
    /// Elements from an expert's matrix to the next expert's; of one that stands alone all that it has.
    pub stride: u64,
    pub format: WeightFormat,
    /// Where its scales lie, of a format that has any.
    #[serde(skip)]
    pub scale: Option<Address>,
}

impl Matrix {
    /// One that stands alone, row after row.
    pub fn of_rows(address: Address, format: WeightFormat, rows: u32, columns: u32) -> Self {
        Self {
            address,
            rows,
            columns,
            stride: u64::from(rows) * u64::from(columns),
            format,
            scale: None,
        }
    }

    /// Of its elements, without what may fill up its rows.
    pub fn bytes(&self) -> u64 {
        u64::from(self.rows) * self.row_bytes()
    }

    pub fn row_bytes(&self) -> u64 {
        u64::from(self.columns) * self.format.bytes() as u64
    }

    /// From an expert's matrix to the next expert's.
    pub fn stride_bytes(&self) -> u64 {
        self.stride * self.format.bytes() as u64
    }

    /// This one's rows with another's behind them, which lie so.
    #[must_use]
    pub fn above(&self, other: &Self) -> Self {
        let rows = self.rows + other.rows;
        Self::of_rows(self.address, self.format, rows, self.columns)
    }

    /// Of so many rows each, where rows lie one after the other.
    pub fn boxes(&self, box_rows: u32) -> Boxes {
        let shape = [self.rows, self.columns];
        Boxes::of_rows(self.address, self.format, shape, box_rows)
    }
}
