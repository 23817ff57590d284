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
    /// Where its scales lie, of a format that has any: f32 `[rows]`, the next expert's behind them.
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

    /// This one's rows with another's behind them, which lie so, as do their scales.
    #[must_use]
    pub fn above(&self, other: &Self) -> Self {
        let behind = (self.scale).map(|scale| scale + self.scale_bytes());
        debug_assert_eq!(self.address + self.stride_bytes(), other.address);
        debug_assert_eq!(behind, other.scale);
        Self {
            rows: self.rows + other.rows,
            stride: self.stride + other.stride,
            ..*self
        }
    }

    /// The bytes of its scales.
    pub fn scale_bytes(&self) -> u64 {
        u64::from(self.rows) * WeightFormat::F32.bytes() as u64
    }

    /// An expert's, where this is the first one's.
    #[must_use]
    pub fn of_expert(&self, expert: u64) -> Self {
        let scale = self.scale.map(|scale| scale + expert * self.scale_bytes());
        Self {
            address: self.address + expert * self.stride_bytes(),
            scale,
            ..*self
        }
    }

    /// Where its scales lie, or 0.
    pub fn scale_address(&self) -> u64 {
        self.scale.unwrap_or(0)
    }
}
