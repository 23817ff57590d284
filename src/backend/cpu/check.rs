//! What the unit tests of this backend share: seeded numbers.

use crate::model::philox::philox4x32_10;
use crate::model::{Tensor, WeightFormat};
use std::sync::Arc;

/// A stream of numbers that a seed decides.
pub struct Numbers {
    seed: u32,
    next: u32,
}

impl Numbers {
    pub fn new(seed: u32) -> Self {
        Self { seed, next: 0 }
    }

    pub fn word(&mut self) -> u32 {
        self.next += 1;
        philox4x32_10([self.next, 0, 0, 0], [self.seed, 0])[0]
    }

    /// About N(0, 1).
    pub fn normal(&mut self, count: usize) -> Vec<f32> {
        (0..count)
            .map(|_| {
                let sum: f64 = (0..6).map(|_| f64::from(self.word()) / 2f64.powi(32)).sum();
                ((sum - 3.0) * 2f64.sqrt()) as f32
            })
            .collect()
    }

    /// A bf16 matrix, N(0, 1 / cols).
    pub fn bf16_matrix(&mut self, rows: usize, cols: usize) -> Tensor {
        let scale = 1.0 / (cols as f32).sqrt();
        let values = self.normal(rows * cols).into_iter();
        let bytes: Vec<u8> = values
            .flat_map(|v| half::bf16::from_f32(v * scale).to_le_bytes())
            .collect();
        let all = 0..bytes.len();
        Tensor::new(
            "m",
            WeightFormat::BF16,
            vec![rows, cols],
            Arc::new(bytes),
            all,
        )
    }
}
