//! Rotary position embedding: what every backend takes from the configuration.

/// `inv_freq[i] = 1 / theta^(2i / head_dim)`, each step rounded to f32 as transformers' tensors are.
/// The power itself is taken in f64 and rounded once.
pub fn inverse_frequencies(theta: f64, head_dim: usize) -> Vec<f32> {
    (0..head_dim / 2)
        .map(|i| {
            let exponent = (2 * i) as f32 / head_dim as f32;
            let power = f64::from(theta as f32).powf(f64::from(exponent)) as f32;
            1.0 / power
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequencies_are_powers_of_theta() {
        let found = inverse_frequencies(1e6, 64);
        assert_eq!(found.len(), 32);
        assert_eq!(found[0], 1.0);
        for (i, &frequency) in found.iter().enumerate() {
            let exact = 1e6f64.powf(-(i as f64) / 32.0);
            assert!((f64::from(frequency) / exact - 1.0).abs() < 1.2e-7, "{i}");
        }
    }
}
