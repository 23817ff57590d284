//! Tensors in another type than the checkpoint's.

use crate::error::{Error, Result};
use crate::model::weights::widen;
use crate::model::{DType, Tensor};

/// Elements that are converted at once, some more or less.
const CONVERT_ELEMENTS: usize = 1 << 22;

/// A tensor as `dtype`, one part after the other where it has to be converted, of a multiple of `whole` elements each.
pub(super) fn in_type(
    tensor: &Tensor,
    dtype: DType,
    whole: usize,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<()> {
    if tensor.dtype == dtype {
        return take(tensor.bytes());
    }
    let elements = (CONVERT_ELEMENTS / whole).max(1) * whole;
    for part in tensor.bytes().chunks(elements * tensor.dtype.bytes()) {
        take(&convert(&tensor.name, tensor.dtype, dtype, part)?)?;
    }
    Ok(())
}

/// `bytes` of type `from` as type `to`, rounded to nearest even.
fn convert(name: &str, from: DType, to: DType, bytes: &[u8]) -> Result<Vec<u8>> {
    let mut values = vec![0.0; bytes.len() / from.bytes()];
    widen(from, bytes, &mut values);
    let mut out = Vec::with_capacity(values.len() * to.bytes());
    for value in values {
        let held = match to {
            DType::F32 => {
                out.extend_from_slice(&value.to_le_bytes());
                true
            }
            DType::BF16 => {
                let rounded = half::bf16::from_f32(value);
                out.extend_from_slice(&rounded.to_le_bytes());
                rounded.is_finite()
            }
            DType::F16 => {
                let rounded = half::f16::from_f32(value);
                out.extend_from_slice(&rounded.to_le_bytes());
                rounded.is_finite()
            }
        };
        if !held {
            let (kind, most, other) = match to {
                DType::F16 => ("f16", f64::from(half::f16::MAX), "bf16"),
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
    use crate::backend::cuda::memory::weights::tests::{config, model};
    use crate::model::op::OpKind;
    use half::{bf16, f16};

    /// A matrix of more elements than are converted at once is packed a part at a time, and as it would be whole.
    #[test]
    fn parts_are_whole_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let columns = 96;
        let model = model(&folder, &config(48_000, columns, 64, false, true));
        let (tensor, to) = (&model.weights.of(None, OpKind::Embed)[0], DType::F32);
        let (mut parts, mut packed, mut one) = (0, Vec::new(), Vec::new());
        in_type(tensor, to, packed::ROWS * columns, |rows| {
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
        let whole = convert(&tensor.name, tensor.dtype, to, tensor.bytes()).unwrap();
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
        let found = convert("w", DType::BF16, DType::F16, &bf16s(&[1.5, -65024.0, 1e-9])).unwrap();
        let expected = [1.5f32, -65024.0, 0.0].map(|v| f16::from_f32(v).to_le_bytes());
        assert_eq!(found, expected.concat());
        let widened = convert("w", DType::BF16, DType::F32, &bf16s(&[3.0])).unwrap();
        assert_eq!(widened, 3f32.to_le_bytes());
        for bad in [65536.0, -1e30, f32::INFINITY, f32::NAN] {
            let error = convert("layer.w1", DType::BF16, DType::F16, &bf16s(&[0.0, bad]));
            let message = error.unwrap_err().to_string();
            assert!(
                message.contains("layer.w1") && message.contains("`dtype` bf16"),
                "{message}"
            );
        }
        let error = convert("w", DType::F32, DType::BF16, &f32::MAX.to_le_bytes());
        assert!(error.unwrap_err().to_string().contains("`dtype` f32"));
    }
}
