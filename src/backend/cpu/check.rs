//! What the unit tests of this backend share: seeded numbers and a comparison.

use super::batch::Batch;
use crate::model::philox::philox4x32_10;
use crate::model::{DType, Tensor};
use crate::sys::abi;
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

    /// A bf16 matrix and its values, N(0, 1 / cols).
    pub fn bf16_matrix(&mut self, rows: usize, cols: usize) -> (Tensor, Vec<f32>) {
        let scale = 1.0 / (cols as f32).sqrt();
        let values: Vec<half::bf16> = self
            .normal(rows * cols)
            .iter()
            .map(|v| half::bf16::from_f32(v * scale))
            .collect();
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let length = bytes.len();
        let tensor = Tensor::new(
            "m",
            DType::BF16,
            vec![rows, cols],
            Arc::new(bytes),
            0..length,
        );
        (tensor, values.iter().map(|v| v.to_f32()).collect())
    }
}

/// Norm of the difference over norm of `expected` is at most `tolerance`.
pub fn assert_close(found: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    let (mut difference, mut norm) = (0.0, 0.0);
    for (&f, &e) in found.iter().zip(expected) {
        difference += (f64::from(f) - e).powi(2);
        norm += e * e;
    }
    let relative = (difference / norm).sqrt();
    assert!(
        relative <= tolerance,
        "relative error {relative:e}, expected at most {tolerance:e}"
    );
}

/// Rows of sequences without a state block: each is (slot, first position, rows, pages).
pub struct Sequences {
    rows: Vec<abi::tg_row>,
    sequences: Vec<abi::tg_sequence>,
    pages: Vec<Vec<u32>>,
}

impl Sequences {
    pub fn new(of: &[(u32, u32, u32, &[u32])]) -> Self {
        let mut made = Self {
            rows: Vec::new(),
            sequences: Vec::new(),
            pages: Vec::new(),
        };
        for (sequence, &(slot, first_position, rows, pages)) in of.iter().enumerate() {
            let first_row = made.rows.len() as u32;
            made.rows.extend((0..rows).map(|row| abi::tg_row {
                slot,
                position: first_position + row,
                token: 0,
                sequence: sequence as u32,
            }));
            made.sequences.push(abi::tg_sequence {
                slot,
                first_row,
                rows,
                first_position,
                sample: u32::MAX,
                flags: if first_position == 0 {
                    abi::TG_SEQUENCE_FIRST
                } else {
                    0
                },
            });
            made.pages.push(pages.to_vec());
        }
        made
    }

    pub fn batch(&self) -> Batch<'_> {
        Batch {
            is_score: false,
            rows: &self.rows,
            sequences: &self.sequences,
            tokens: vec![0; self.rows.len()],
            pages: self.pages.iter().map(Vec::as_slice).collect(),
            slots: Vec::new(),
            sample_rows: &[],
        }
    }
}
