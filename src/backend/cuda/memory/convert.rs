//! Tensors in another format than the checkpoint's.

use crate::error::Result;
use crate::model::convert::encode;
use crate::model::e4m3::{Quantized, quantize};
use crate::model::{Tensor, WeightFormat};

/// Elements that are converted at once, some more or less.
const CONVERT_ELEMENTS: usize = 1 << 22;

/// A tensor as `format`, one part after the other where it has to be converted, of a multiple of `whole` rows each, with the scale of each
/// row where the format has any.
pub(super) fn in_format(
    tensor: &Tensor,
    format: WeightFormat,
    whole: usize,
    mut take: impl FnMut(&[u8], &[f32]) -> Result<()>,
) -> Result<()> {
    let columns = tensor.cols();
    if tensor.format == format {
        let scales = tensor.scales();
        let of_row = |row| scales.map(|scales| scales.of_row(row, columns));
        let scales: Vec<f32> = (0..tensor.rows()).filter_map(of_row).collect();
        return take(tensor.bytes(), &scales);
    }
    let rows = (CONVERT_ELEMENTS / (whole * columns)).max(1) * whole;
    let mut values = vec![0.0; rows.min(tensor.rows()) * columns];
    for first in (0..tensor.rows()).step_by(rows) {
        let part = first..(first + rows).min(tensor.rows());
        let values = &mut values[..part.len() * columns];
        tensor.rows_to_f32(part, values);
        if format == WeightFormat::E4M3 {
            let Quantized { bits, scales } = quantize(values, columns);
            take(&bits, &scales)?;
        } else {
            take(&encode(&tensor.name, values, format)?, &[])?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cuda::families::packed;
    use half::bf16;
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
        in_format(&tensor, to, packed::ROWS, |rows, _| {
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
        let whole = encode(&tensor.name, &tensor.to_f32(), to).unwrap();
        one.resize(packed.len(), 0);
        packed::pack(&whole, columns, to, &mut one);
        assert!(packed == one, "parts are packed otherwise than the whole");
    }
}
