//! A matrix of weights as a value: what every call takes that reads one, and what is told of that call.

use crate::model::WeightFormat;
use serde::Serialize;

/// A matrix of weights in a GPU's memory, `[rows, columns]`, as every call takes it that reads one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Matrix {
    /// On 16 bytes.
    #[serde(skip)]
    pub address: u64,
    pub rows: u32,
    pub columns: u32,
    /// Elements from an expert's matrix to the next expert's; of one that stands alone all that it has.
    pub stride: u64,
    pub format: WeightFormat,
    /// Where its scales lie, of a format that has any.
    #[serde(skip)]
    pub scale: Option<u64>,
}

impl Matrix {
    /// One that stands alone, row after row.
    pub fn of_rows(address: u64, format: WeightFormat, rows: u32, columns: u32) -> Self {
        Self {
            address,
            rows,
            columns,
            stride: u64::from(rows) * u64::from(columns),
            format,
            scale: None,
        }
    }

    /// The bytes of its elements, without what may fill up its rows.
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
}
