//! Gives a model's tensors their places in a GPU's memory, and puts them there: copied, converted and packed on the way, or made
//! there where they are random.

use super::target::Target;
use super::{FeedForwardAddresses, HeadAddresses, LayerAddresses, MixerAddresses, WeightAddresses};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::families::experts::ExpertWeights;
use crate::backend::cuda::families::limits::Library;
use crate::backend::cuda::families::packed;
use crate::backend::cuda::families::router::guesses_by_copy;
use crate::backend::cuda::memory::buffer::{ALIGN_BYTES, Buffer};
use crate::backend::cuda::memory::convert::in_type;
use crate::backend::cuda::memory::random::Order;
use crate::backend::cuda::memory::staging::PART_BYTES;
use crate::error::Result;
use crate::model::op::OpKind;
use crate::model::rotary::inverse_frequencies;
use crate::model::tensors::Declared;
use crate::model::{DType, LayerType, ModelConfig, Tensor, Weights};
use crate::plan::Section;
use cudarc::driver::{CudaContext, CudaStream};
use half::bf16;
use rayon::prelude::*;
use std::sync::Arc;

/// What has a place among the weights: a tensor, or what one would be.
pub(super) trait Placed {
    /// Of one of them.
    fn shape(&self) -> &[usize];

    /// How many alike lie one after the other.
    fn copies(&self) -> usize;

    /// What is copied there.
    fn tensor(&self) -> Option<&Tensor>;

    fn elements(&self) -> usize {
        self.shape().iter().product()
    }

    /// Of a matrix.
    fn packed_elements(&self) -> usize {
        let columns = self.shape().last().copied().unwrap_or(1);
        packed::elements(self.elements() / columns.max(1), columns)
    }
}

impl Placed for Tensor {
    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn copies(&self) -> usize {
        1
    }

    fn tensor(&self) -> Option<&Tensor> {
        Some(self)
    }
}

impl Placed for Declared {
    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn copies(&self) -> usize {
        self.each_expert.as_ref().map_or(1, |each| each.experts)
    }

    fn tensor(&self) -> Option<&Tensor> {
        None
    }
}

/// Bytes that one thread copies into staging memory at a time.
const COPIED_AT_ONCE: usize = 1 << 20;

/// Walks a model and gives its tensors their places, one after the other; copies them too where there is memory.
pub(super) struct Placer<'a> {
    start: Address,
    end: usize,
    to: Option<Target<'a>>,
    matrices: DType,
}

impl<'a> Placer<'a> {
    /// Gives places from `start` on, matrices in this type, and copies nothing.
    pub fn measuring(start: Address, matrices: DType) -> Self {
        Self {
            start,
            end: 0,
            to: None,
            matrices,
        }
    }

    /// Copies or makes what it gives a place in `buffer`.
    ///
    /// # Errors
    /// [`RandomKernels::load`]'s.
    pub fn into(
        buffer: &'a Buffer,
        (context, stream): (&'a Arc<CudaContext>, &'a CudaStream),
        library: &Library,
        matrices: DType,
    ) -> Result<Self> {
        let to = Target::new(buffer, (context, stream), library)?;
        Ok(Self {
            to: Some(to),
            ..Self::measuring(buffer.at(0), matrices)
        })
    }

    /// Of all that has a place so far.
    pub fn bytes(&self) -> usize {
        self.end.next_multiple_of(ALIGN_BYTES)
    }

    /// What `section` has of a model.
    pub fn model<T: Placed>(
        &mut self,
        config: &ModelConfig,
        section: &Section,
        weights: &Weights<T>,
    ) -> Result<WeightAddresses> {
        let outside = |kind| weights.of(None, kind);
        let embed_tokens = if section.has_embedding() {
            Some(self.matrix(&outside(OpKind::Embed)[0])?)
        } else {
            None
        };
        let lm_head = match (section.has_head(), embed_tokens) {
            (false, _) => None,
            (true, Some(at)) if config.tie_word_embeddings => Some(at),
            (true, _) => Some(self.matrix(&outside(OpKind::LmHead)[0])?),
        };
        let frequencies = inverse_frequencies(config.rope_theta, config.head_dim);
        let bytes: Vec<u8> = frequencies.iter().flat_map(|f| f.to_le_bytes()).collect();
        let inverse_frequencies = self.align();
        self.copy_small(bytes)?;
        Ok(WeightAddresses {
            embed_tokens,
            head: match lm_head {
                Some(lm_head) => Some(HeadAddresses {
                    norm: self.vector(&outside(OpKind::FinalNorm)[0])?,
                    lm_head,
                }),
                None => None,
            },
            layers: (0..config.num_hidden_layers)
                .map(|layer| {
                    let has = section.has(layer);
                    has.then(|| self.layer(config, layer, weights)).transpose()
                })
                .collect::<Result<_>>()?,
            inverse_frequencies,
        })
    }

    fn layer<T: Placed>(
        &mut self,
        config: &ModelConfig,
        layer: usize,
        weights: &Weights<T>,
    ) -> Result<LayerAddresses> {
        let of = |kind| weights.of(Some(layer), kind);
        let (in_proj, conv) = (of(OpKind::ConvInProj), of(OpKind::ShortConv));
        let (norms, router) = (of(OpKind::QkNormRope), of(OpKind::Router));
        let ffn_norm = &of(OpKind::FfnNorm)[0];
        Ok(LayerAddresses {
            operator_norm: self.vector(&of(OpKind::OperatorNorm)[0])?,
            ffn_norm: self.vector(ffn_norm)?,
            mixer: match config.layer_types[layer] {
                LayerType::Conv => MixerAddresses::Conv {
                    in_proj: self.matrix(&in_proj[0])?,
                    in_proj_bias: self.bias(in_proj.get(1))?,
                    taps: self.vector(&conv[0])?,
                    taps_bias: self.bias(conv.get(1))?,
                    out_proj: self.matrix(&of(OpKind::ConvOutProj)[0])?,
                    out_proj_bias: self.bias(of(OpKind::ConvOutProj).get(1))?,
                },
                LayerType::FullAttention => MixerAddresses::Attention {
                    qkv_proj: self.put(of(OpKind::QkvProj), self.matrices)?,
                    out_proj: self.matrix(&of(OpKind::AttentionOutProj)[0])?,
                    q_norm: self.vector(&norms[0])?,
                    k_norm: self.vector(&norms[1])?,
                },
            },
            feed_forward: if config.is_moe(layer) {
                FeedForwardAddresses::Moe {
                    gate: self.vector(&router[0])?,
                    bias: self.bias(router.get(1))?,
                    guess: if guesses_by_copy(config.num_experts) {
                        self.guess(&router[0], ffn_norm)?
                    } else {
                        0
                    },
                    experts: self.experts(of(OpKind::ExpertGateUp), of(OpKind::ExpertDown))?,
                }
            } else {
                let gate_up = of(OpKind::DenseGateUp);
                FeedForwardAddresses::Dense {
                    w1: self.matrix(&gate_up[0])?,
                    w3: self.matrix(&gate_up[1])?,
                    w2: self.matrix(&of(OpKind::DenseDown)[0])?,
                }
            },
        })
    }

    /// `gate_up`: both of an expert, one after the other.
    fn experts<T: Placed>(&mut self, gate_up: &[T], down: &[T]) -> Result<ExpertWeights> {
        let stride = |matrices: &[T]| matrices.first().map_or(0, |w| w.packed_elements() as u64);
        Ok(ExpertWeights {
            gate: self.packed(gate_up.iter().step_by(2))?,
            up: self.packed(gate_up.iter().skip(1).step_by(2))?,
            gate_up_stride: stride(gate_up),
            down: self.packed(down)?,
            down_stride: stride(down),
        })
    }

    /// Matrices, packed, one right after the other.
    fn packed<'t, T: Placed + 't>(
        &mut self,
        tensors: impl IntoIterator<Item = &'t T>,
    ) -> Result<Address> {
        let (at, dtype) = (self.align(), self.matrices);
        for placed in tensors {
            let bytes = placed.copies() * placed.packed_elements() * dtype.bytes();
            if self.made(placed, (dtype, Order::Packed), bytes)? {
                continue;
            }
            let Some(tensor) = self.copied(placed) else {
                self.end += bytes;
                continue;
            };
            let columns = tensor.cols();
            let block = packed::elements(packed::ROWS, columns) * dtype.bytes();
            let blocks = (PART_BYTES / block).max(1);
            in_type(tensor, dtype, packed::ROWS * columns, |rows| {
                let of_part = blocks * packed::ROWS * columns * dtype.bytes();
                rows.chunks(of_part).try_for_each(|rows| {
                    let rows_of_part = rows.len() / (columns * dtype.bytes());
                    let bytes = packed::elements(rows_of_part, columns) * dtype.bytes();
                    self.stage(bytes, |to| packed::pack(rows, columns, dtype, to))
                })
            })?;
        }
        Ok(at)
    }

    fn matrix(&mut self, tensor: &impl Placed) -> Result<Address> {
        self.put([tensor], self.matrices)
    }

    /// A norm, a router, taps: anything that is kept in f32.
    fn vector(&mut self, tensor: &impl Placed) -> Result<Address> {
        self.put([tensor], DType::F32)
    }

    fn bias(&mut self, tensor: Option<&impl Placed>) -> Result<Address> {
        tensor.map_or(Ok(0), |tensor| self.vector(tensor))
    }

    /// A router's rows times the norm before it, which scores of the stream before a layer are made by (kernels/skinny/guess.cuh).
    fn guess<T: Placed>(&mut self, gate: &T, norm: &T) -> Result<Address> {
        let at = self.align();
        let (Some(gate), Some(norm)) = (self.copied(gate), self.copied(norm)) else {
            self.end += gate.elements() * DType::BF16.bytes();
            return Ok(at);
        };
        let [gate, norm] = [gate, norm].map(Tensor::to_f32);
        let rows = gate.chunks(norm.len());
        let weighed = rows.flat_map(|row| row.iter().zip(&norm).map(|(gate, norm)| gate * norm));
        let bytes: Vec<u8> = weighed
            .flat_map(|v| bf16::from_f32(v).to_le_bytes())
            .collect();
        self.copy_small(bytes)?;
        Ok(at)
    }

    /// The tensors one right after the other.
    fn put<'t, T: Placed + 't>(
        &mut self,
        tensors: impl IntoIterator<Item = &'t T>,
        dtype: DType,
    ) -> Result<Address> {
        let at = self.align();
        for placed in tensors {
            let bytes = placed.elements() * dtype.bytes();
            if self.made(placed, (dtype, Order::Rows), bytes)? {
                continue;
            }
            let Some(tensor) = self.copied(placed) else {
                self.end += bytes;
                continue;
            };
            in_type(tensor, dtype, 1, |bytes| self.copy(bytes))?;
        }
        Ok(at)
    }

    /// What there is to copy, where there is memory to copy to.
    fn copied<'t>(&self, placed: &'t impl Placed) -> Option<&'t Tensor> {
        self.to.as_ref().and_then(|_| placed.tensor())
    }

    /// Whether the tensor is a random one that is made where it has its place, of so many `bytes`.
    fn made(&mut self, placed: &impl Placed, how: (DType, Order), bytes: usize) -> Result<bool> {
        let (Some(to), Some(tensor)) = (&self.to, placed.tensor()) else {
            return Ok(false);
        };
        let Some(made) = tensor.made() else {
            return Ok(false);
        };
        to.make((tensor, made), how, self.end..self.end + bytes)?;
        self.end += bytes;
        Ok(true)
    }

    fn align(&mut self) -> Address {
        self.end = self.end.next_multiple_of(ALIGN_BYTES);
        self.start + self.end as u64
    }

    fn copy(&mut self, bytes: &[u8]) -> Result<()> {
        let mut parts = bytes.chunks(PART_BYTES);
        parts.try_for_each(|part| {
            self.stage(part.len(), |to| {
                let pieces = to.par_chunks_mut(COPIED_AT_ONCE);
                pieces
                    .zip(part.par_chunks(COPIED_AT_ONCE))
                    .for_each(|(to, from)| to.copy_from_slice(from));
            })
        })
    }

    /// Has `fill` put the next bytes together where there is memory to copy them to; leaves room for them where there is none.
    fn stage(&mut self, bytes: usize, fill: impl FnOnce(&mut [u8])) -> Result<()> {
        if let Some(to) = &mut self.to {
            to.stage(self.end, bytes, fill)?;
        }
        self.end += bytes;
        Ok(())
    }

    /// The same of an array that is here, and not worth memory of its own to go through.
    fn copy_small(&mut self, array: Vec<u8>) -> Result<()> {
        let bytes = array.len();
        if let Some(to) = &mut self.to {
            to.copy(self.end, array)?;
        }
        self.end += bytes;
        Ok(())
    }
}
