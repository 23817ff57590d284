//! A model's weights in a GPU's memory, in the layout that kernels take: what an operation reads lies together, a layer's experts
//! packed and at a constant stride; matrices in one format, all else in f32.

mod placer;
mod target;

use self::placer::Placer;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::families::limits::Library;
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::memory::buffer::Buffer;
use crate::error::{Error, Result};
use crate::model::declared::Role;
use crate::model::tensors::{declared, operations};
use crate::model::{Model, ModelConfig, WeightFormat, Weights, WeightsAs};
use crate::plan::LayerRange;
use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;

/// Where everything lies that a layer range has.
#[derive(Debug, Clone)]
pub struct WeightAddresses {
    /// What each operation reads, in the order of its declaration; where there is one for each expert, the first one's.
    pub read: Weights<Matrix>,
    /// bf16 `[E, H]` of each layer, the router times the layer's `ffn_norm`; 0 where nobody reads it.
    pub predictors: Vec<Address>,
    /// f32 `[head_dim / 2]`
    pub inverse_frequencies: Address,
}

/// Weights in a GPU's memory.
#[derive(Debug)]
pub struct DeviceWeights {
    pub at: WeightAddresses,
    _buffer: Buffer,
}

impl DeviceWeights {
    /// Allocates the memory for the layer range's weights and copies them there, converted where they are stored otherwise; random ones
    /// are made there. The stream comes to the end of that later.
    ///
    /// # Errors
    /// [`crate::Error::Memory`] where the GPU has too little; [`crate::Error::Usage`] naming a tensor with a value that the format
    /// does not hold, or that a checkpoint in 8 bits has otherwise.
    pub fn upload(
        context: &Arc<CudaContext>,
        stream: &CudaStream,
        library: &Library,
        model: &Model,
        range: &LayerRange,
        matrices: WeightFormat,
    ) -> Result<Self> {
        if matrices == WeightFormat::E4M3 && model.weights_as == WeightsAs::Stored {
            all_in_8_bits(&model.config, range, &model.weights)?;
        }
        let bytes = WeightAddresses::bytes(&model.config, range, matrices);
        let buffer = Buffer::named(context, "the weights", bytes as usize)?;
        let mut placer = Placer::into(&buffer, (context, stream), library, matrices)?;
        let at = placer.model(&model.config, range, Some(&model.weights))?;
        drop(placer);
        Ok(Self {
            at,
            _buffer: buffer,
        })
    }
}

/// Whether a checkpoint has all projections in 8 bits: the kernels take one format, and nobody asked for others to be quantized.
///
/// # Errors
/// [`Error::Usage`] naming the first that is stored otherwise.
fn all_in_8_bits(config: &ModelConfig, range: &LayerRange, weights: &Weights) -> Result<()> {
    for op in operations(config, range.layers()) {
        let all = declared(config, op.kind);
        let tensors = weights.of(op.layer, op.kind).iter();
        for (tensor, declared) in tensors.zip(all.iter().cycle()) {
            if declared.role == Role::Matrix && tensor.format != WeightFormat::E4M3 {
                return Err(Error::Usage(format!(
                    "{} is {} beside matrices in 8 bits, and the GPU takes all in one format: use `weights` fp8, which quantizes it, or bf16",
                    tensor.name,
                    tensor.format.name()
                )));
            }
        }
    }
    Ok(())
}

impl WeightAddresses {
    /// Bytes of a layer range's weights with matrices of this format.
    pub fn bytes(config: &ModelConfig, range: &LayerRange, matrices: WeightFormat) -> u64 {
        Self::placed(config, range, matrices, 0).1
    }

    /// Where the weights of a model's layer range would lie from `start` on, matrices in this format.
    pub fn new(
        config: &ModelConfig,
        range: &LayerRange,
        matrices: WeightFormat,
        start: Address,
    ) -> Self {
        Self::placed(config, range, matrices, start).0
    }

    /// Where they would lie, and the bytes of all.
    fn placed(
        config: &ModelConfig,
        range: &LayerRange,
        matrices: WeightFormat,
        start: Address,
    ) -> (Self, u64) {
        let mut measure = Placer::measuring(start, matrices);
        let placed = measure.model(config, range, None);
        (placed.expect("nothing is copied"), measure.bytes() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelSource;

    #[test]
    fn a_projection_in_another_format_is_named() {
        let source = ModelSource::parse("random:tiny").unwrap();
        let model = |weights_as| Model {
            weights_as,
            ..Model::load(&source).unwrap()
        };
        let in_8_bits = model(WeightsAs::FP8).converted().unwrap();
        let whole = LayerRange::whole(&in_8_bits.config);
        all_in_8_bits(&in_8_bits.config, &whole, &in_8_bits.weights).unwrap();
        let stored = model(WeightsAs::Stored);
        let error = all_in_8_bits(&stored.config, &whole, &stored.weights);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("in_proj.weight is bf16"), "{error}");
    }
}
