//! Embedding and RMSNorm.

use super::lanes::Isa;
use crate::model::Tensor;
use rayon::prelude::*;

/// `h = embed_tokens[token]`, no scaling: h is `[tokens, H]`.
pub fn embed(table: &Tensor, tokens: &[u32], h: &mut [f32]) {
    for (&token, row) in tokens.iter().zip(h.chunks_mut(table.cols())) {
        let token = token as usize;
        table.rows_to_f32(token..token + 1, row);
    }
}

/// 1 / sqrt(mean(x^2) + eps)
pub fn inverse_rms(isa: Isa, x: &[f32], eps: f32) -> f32 {
    let mean = isa.dot(x, x) / x.len() as f32;
    1.0 / (mean + eps).sqrt()
}

/// One row: x * (1 / sqrt(mean(x^2) + eps)) * weight.
pub fn rmsnorm_row(isa: Isa, h: &[f32], weight: &[f32], eps: f32, x: &mut [f32]) {
    let scale = inverse_rms(isa, h, eps);
    for ((x, h), weight) in x.iter_mut().zip(h).zip(weight) {
        *x = h * scale * weight;
    }
}

/// Every row of h `[rows, H]` into x of the same shape; weight is `[H]`.
pub fn rmsnorm(isa: Isa, h: &[f32], weight: &[f32], eps: f32, x: &mut [f32]) {
    x.par_chunks_mut(weight.len())
        .zip(h.par_chunks(weight.len()))
        .with_min_len(8)
        .for_each(|(x, h)| rmsnorm_row(isa, h, weight, eps, x));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Squares that overflow f32 make the mean infinite and its inverse root 0, so the row is zeros, never NaN; transformers has
    /// the same in f32.
    #[test]
    fn squares_past_f32_give_zeros() {
        for width in [1, 33, 64] {
            for value in [1e20f32, -3e38] {
                let h = vec![value; width];
                let mut x = vec![1.0; width];
                rmsnorm(Isa::detect(), &h, &vec![2.0; width], 1e-5, &mut x);
                assert!(x.iter().all(|&x| x == 0.0), "{value}: {x:?}");
            }
        }
    }
}
