//! Weights in another format than the checkpoint's.

use super::declared::Role;
use super::e4m3::{self, Scales};
use super::op::OpKind;
use super::tensors::{declared, operations};
use super::{ModelConfig, Tensor, WeightFormat, Weights};
use crate::error::{Error, Result};
use rayon::prelude::*;
use std::sync::Arc;

/// The format that a run has matrices in: `--weights`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightsAs {
    /// The checkpoint's.
    #[default]
    Stored,
    /// All in bf16: those in 8 bits are dequantized.
    BF16,
    /// Projections in e4m3 with a scale for each row, made of what is not in 8 bits already.
    FP8,
}

impl WeightsAs {
    pub const ALL: [Self; 3] = [Self::Stored, Self::BF16, Self::FP8];

    /// The name in `--weights`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stored => "as-is",
            Self::BF16 => "bf16",
            Self::FP8 => "fp8",
        }
    }

    /// The one of that [`WeightsAs::name`].
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|weights| weights.name() == name)
    }

    /// Its name, where it is not the default.
    pub fn chosen(self) -> Option<String> {
        (self != Self::Stored).then(|| self.name().to_owned())
    }

    /// The format of the matrices of a checkpoint that has them in `stored`.
    pub fn of(self, stored: WeightFormat) -> WeightFormat {
        match self {
            Self::Stored => stored,
            Self::BF16 => WeightFormat::BF16,
            Self::FP8 => WeightFormat::E4M3,
        }
    }

    /// The format of a tensor that is `stored` so.
    fn of_tensor(self, role: Role, stored: WeightFormat) -> WeightFormat {
        match role {
            Role::Matrix => self.of(stored),
            Role::Head | Role::Embedding if self == Self::BF16 => WeightFormat::BF16,
            _ => stored,
        }
    }
}

/// `weights` of a model of this configuration as `wanted`: what is not so already is made anew, in memory.
///
/// # Errors
/// [`Error::Usage`] naming a tensor with a value that the format does not hold.
pub(super) fn converted(
    config: &ModelConfig,
    weights: &Weights,
    wanted: WeightsAs,
) -> Result<Weights> {
    let mut all = Weights::default();
    for op in operations(config, 0..config.num_hidden_layers) {
        if op.kind == OpKind::LmHead && config.tie_word_embeddings {
            let embedding = all.of(None, OpKind::Embed).to_vec();
            all.put(op, embedding);
            continue;
        }
        let roles: Vec<Role> = declared(config, op.kind).iter().map(|t| t.role).collect();
        let tensors = weights.of(op.layer, op.kind).par_iter().enumerate();
        let tensors = tensors.map(|(index, tensor)| {
            let format = wanted.of_tensor(roles[index % roles.len()], tensor.format);
            as_format(tensor, format)
        });
        all.put(op, tensors.collect::<Result<_>>()?);
    }
    Ok(all)
}

/// A tensor in this format; in 8 bits with a scale for each row. A random one has memory of its own then: the others' is not
/// needed for it.
fn as_format(tensor: &Tensor, format: WeightFormat) -> Result<Tensor> {
    if tensor.format == format && tensor.made().is_none() {
        return Ok(tensor.clone());
    }
    let values = tensor.to_f32();
    let made = |bytes: Vec<u8>| {
        let all = 0..bytes.len();
        let (name, shape) = (tensor.name.clone(), tensor.shape.clone());
        Tensor::new(name, format, shape, Arc::new(bytes), all)
    };
    if format == WeightFormat::E4M3 {
        let columns = tensor.cols();
        let quantized = e4m3::quantize(&values, columns);
        return Ok(made(quantized.bits).scaled(Scales::of_rows(quantized.scales, columns)));
    }
    encode(&tensor.name, &values, format).map(made)
}

/// `values` of the tensor `name` as `to`, which needs no scales, rounded to nearest even.
///
/// # Errors
/// [`Error::Usage`]: one is too large for it.
pub fn encode(name: &str, values: &[f32], to: WeightFormat) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(values.len() * to.bytes());
    for &value in values {
        let held = match to {
            WeightFormat::F32 => {
                out.extend_from_slice(&value.to_le_bytes());
                true
            }
            WeightFormat::BF16 => {
                let rounded = half::bf16::from_f32(value);
                out.extend_from_slice(&rounded.to_le_bytes());
                rounded.is_finite()
            }
            WeightFormat::F16 => {
                let rounded = half::f16::from_f32(value);
                out.extend_from_slice(&rounded.to_le_bytes());
                rounded.is_finite()
            }
            WeightFormat::E4M3 => unreachable!("it needs scales"),
        };
        if !held {
            let (kind, most, other) = match to {
                WeightFormat::F16 => ("f16", f64::from(half::f16::MAX), "bf16"),
                _ => ("bf16", f64::from(half::bf16::MAX), "f32"),
            };
            return Err(Error::Usage(format!(
                "`dtype` {kind}: {name} holds {value}, expected at most {most:e} in size: use `dtype` {other}"
            )));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::f16;

    #[test]
    fn conversion_rounds_and_names_what_does_not_fit() {
        let found = encode("w", &[1.5, -65024.0, 1e-9], WeightFormat::F16).unwrap();
        let expected = [1.5f32, -65024.0, 0.0].map(|v| f16::from_f32(v).to_le_bytes());
        assert_eq!(found, expected.concat());
        let kept = encode("w", &[3.0], WeightFormat::F32).unwrap();
        assert_eq!(kept, 3f32.to_le_bytes());
        for bad in [65536.0, -1e30, f32::INFINITY, f32::NAN] {
            let error = encode("layer.w1", &[0.0, bad], WeightFormat::F16);
            let message = error.unwrap_err().to_string();
            assert!(
                message.contains("layer.w1") && message.contains("`dtype` bf16"),
                "{message}"
            );
        }
        let error = encode("w", &[f32::MAX], WeightFormat::BF16);
        assert!(error.unwrap_err().to_string().contains("`dtype` f32"));
    }
}
