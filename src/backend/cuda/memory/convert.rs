//! Tensors in another format than the checkpoint's.

use crate::error::{Error, Result};
use crate::model::weights::widen;
use crate::model::{Tensor, WeightFormat};

/// Elements that are converted at once, some more or less.
const CONVERT_ELEMENTS: usize = 1 << 22;

/// A tensor as `format`, one part after the other where it has to be converted, of a multiple of `whole` elements each.
pub(super) fn in_format(
    tensor: &Tensor,
    format: WeightFormat,
    whole: usize,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    if tensor.format == format {
        return take(tensor.bytes());
    }
    let elements = (CONVERT_ELEMENTS / whole).max(1) * whole;
    for part in tensor.bytes().chunks(elements * tensor.format.bytes()) {
        take(&convert(&tensor.name, tensor.format, format, part)?)?;
    }
    Ok(())
}

/// `bytes` of `from` as `to`, rounded to nearest even.
fn convert(name: &str, from: WeightFormat, to: WeightFormat, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut values = vec![0.0; bytes.len() / from.bytes()];
    widen(from, bytes, &mut values);
    let mut out = Vec::with_capacity(values.len() * to.bytes());
    for value in values {
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
    use crate::backend::cuda::families::packed;
    use half::{bf16, f16};
    use std::sync::Arc;

    /// A matrix of more elements than are converted at once is packed a part at a time, and as it would be whole.
    #[test]
    fn parts_are_whole_blocks() {
        let (shape, to) = ([48_000, 96], WeightFormat::F32);
        let columns = shape[1];
        let values = (0..shape[0] * columns).map(|i| bf16::from_f32(i as f32));
        let bytes: Vec<u8> = values.flat_map(|v| v.to_le_bytes()).collect();
        let all = 0..bytes.len();
        let bf16s = WeightFormat::BF16;
        let tensor = Tensor::new("w", bf16s, shape.to_vec(), Arc::new(bytes), all);
        let (mut parts, mut packed, mut one) = (0, Vec::new(), Vec::new());
        in_format(&tensor, to, packed::ROWS * columns, |rows| {
            parts += 1;
            one.resize(
                packed::elements(rows.len() / (columns * to.bytes()), columns) * to.bytes(),
                0,
            );
            packed::pack(rows, columns, to, &mut one);
            packed.extend_from_slice(&one);
            Ok(())
        })
        .unwrap();
        assert_eq!(parts, 2);
        let whole = convert(&tensor.name, tensor.format, to, tensor.bytes()).unwrap();
        one.resize(packed.len(), 0);
        packed::pack(&whole, columns, to, &mut one);
        assert!(packed == one, "parts are packed otherwise than the whole");
    }

    #[test]
    fn conversion_rounds_and_names_what_does_not_fit() {
        let bf16s = |values: &[f32]| -> Vec<u8> {
            let values = values.iter().map(|&v| bf16::from_f32(v));
            values.flat_map(|v| v.to_le_bytes()).collect()
        };
        let found = convert(
            "w",
            WeightFormat::BF16,
            WeightFormat::F16,
            &bf16s(&[1.5, -65024.0, 1e-9]),
        )
        .unwrap();
        let expected = [1.5f32, -65024.0, 0.0].map(|v| f16::from_f32(v).to_le_bytes());
        assert_eq!(found, expected.concat());
        let widened = convert("w", WeightFormat::BF16, WeightFormat::F32, &bf16s(&[3.0])).unwrap();
        assert_eq!(widened, 3f32.to_le_bytes());
        for bad in [65536.0, -1e30, f32::INFINITY, f32::NAN] {
            let error = convert(
                "layer.w1",
                WeightFormat::BF16,
                WeightFormat::F16,
                &bf16s(&[0.0, bad]),
            );
            let message = error.unwrap_err().to_string();
            assert!(
                message.contains("layer.w1") && message.contains("`dtype` bf16"),
                "{message}"
            );
        }
        let error = convert(
            "w",
            WeightFormat::F32,
            WeightFormat::BF16,
            &f32::MAX.to_le_bytes(),
        );
        assert!(error.unwrap_err().to_string().contains("`dtype` f32"));
    }
}
