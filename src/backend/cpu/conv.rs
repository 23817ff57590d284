//! The short convolution and its state.

use super::batch::Batch;
use crate::model::Tensor;
use crate::sys::abi;
use rayon::prelude::*;

/// Taps and bias of one layer, widened.
pub struct ConvWeights {
    /// `[L, H]`: tap k of every channel; k = L - 1 is "now".
    taps: Vec<f32>,
    /// `[H]`
    bias: Option<Vec<f32>>,
    taps_count: usize,
}

impl ConvWeights {
    /// Reads the taps `[H, 1, L]` and, where the model has it, the bias `[H]`.
    pub fn new(tensors: &[Tensor]) -> Self {
        let (conv, bias) = (&tensors[0], tensors.get(1));
        let (hidden, count) = (conv.rows(), conv.cols());
        let stored = conv.to_f32();
        let mut taps = vec![0.0; stored.len()];
        for channel in 0..hidden {
            for k in 0..count {
                taps[k * hidden + channel] = stored[channel * count + k];
            }
        }
        Self {
            taps,
            bias: bias.map(Tensor::to_f32),
            taps_count: count,
        }
    }
}

/// The last L - 1 columns of u = B * X of every slot, and behind the slots of every shared prefix, one layer after the other.
pub struct ConvState {
    /// `[layers, places, L - 1, H]`, oldest column first
    columns: Vec<f32>,
    places: usize,
    slot_elements: usize,
}

impl ConvState {
    pub fn new(layers: usize, places: usize, taps: usize, hidden: usize) -> Self {
        let slot_elements = (taps - 1) * hidden;
        Self {
            columns: vec![0.0; layers * places * slot_elements],
            places,
            slot_elements,
        }
    }

    /// Gives one place the columns of another, in all layers.
    pub fn copy(&mut self, from: usize, to: usize) {
        let elements = self.slot_elements;
        for layer in self.columns.chunks_mut((self.places * elements).max(1)) {
            layer.copy_within(from * elements..(from + 1) * elements, to * elements);
        }
    }

    /// `[L - 1, H]` of one slot in conv layer `layer` (counted among this stage's conv layers).
    fn slot(&mut self, layer: usize, slot: u32) -> &mut [f32] {
        let start = (layer * self.places + slot as usize) * self.slot_elements;
        &mut self.columns[start..start + self.slot_elements]
    }

    fn slot_ref(&self, layer: usize, slot: u32) -> &[f32] {
        let start = (layer * self.places + slot as usize) * self.slot_elements;
        &self.columns[start..start + self.slot_elements]
    }
}

/// x = C * conv(B * X): `bcx` is `[rows, 3H]` (B, then C, then X), x `[rows, H]`. On return B holds B * X.
///
/// y[t, c] = sum over k ascending of W[c, 0, k] u[t - (L - 1) + k, c], then the bias. Columns before the
/// chunk come from the slot's state, which is zero before a sequence's first position.
pub fn short_conv(
    batch: &Batch<'_>,
    weights: &ConvWeights,
    state: &mut ConvState,
    layer: usize,
    bcx: &mut [f32],
    x: &mut [f32],
) {
    let count = weights.taps_count;
    let hidden = weights.taps.len() / count;
    bcx.par_chunks_mut(3 * hidden)
        .with_min_len(8)
        .for_each(|row| {
            let (b, rest) = row.split_at_mut(hidden);
            for (b, x) in b.iter_mut().zip(&rest[hidden..]) {
                *b *= x;
            }
        });
    for sequence in batch.sequences {
        if sequence.flags & abi::TG_SEQUENCE_FIRST != 0 {
            state.slot(layer, sequence.slot).fill(0.0);
        }
    }
    let (before, bcx) = (&*state, &*bcx);
    x.par_chunks_mut(hidden)
        .with_min_len(8)
        .enumerate()
        .for_each(|(row, y)| {
            let sequence = &batch.sequences[batch.rows[row].sequence as usize];
            let old = before.slot_ref(layer, sequence.slot);
            let in_chunk = row - sequence.first_row as usize;
            y.fill(0.0);
            for k in 0..count {
                // Columns back from this row: 0 is now.
                let back = count - 1 - k;
                let u = if back <= in_chunk {
                    &bcx[(row - back) * 3 * hidden..][..hidden]
                } else {
                    &old[(count - 1 + in_chunk - back) * hidden..][..hidden]
                };
                let taps = &weights.taps[k * hidden..][..hidden];
                for ((y, u), w) in y.iter_mut().zip(u).zip(taps) {
                    *y += w * u;
                }
            }
            if let Some(bias) = &weights.bias {
                super::linear::add(y, bias);
            }
            let c = &bcx[row * 3 * hidden + hidden..][..hidden];
            for (y, c) in y.iter_mut().zip(c) {
                *y *= c;
            }
        });
    for sequence in batch.sequences {
        let (first, rows) = (sequence.first_row as usize, sequence.rows as usize);
        let columns = state.slot(layer, sequence.slot);
        // The oldest columns fall out as many as the chunk brings.
        let kept = (count - 1).saturating_sub(rows);
        columns.copy_within((count - 1 - kept) * hidden.., 0);
        for (index, column) in columns.chunks_mut(hidden).enumerate().skip(kept) {
            let row = first + rows - (count - 1 - index);
            column.copy_from_slice(&bcx[row * 3 * hidden..][..hidden]);
        }
    }
}
