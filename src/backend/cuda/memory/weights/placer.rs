//! Gives a model's tensors their places in a GPU's memory, and puts them there: copied, converted and packed on the way, or made
//! there where they are random.

use super::WeightAddresses;
use super::target::Target;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::families::limits::Library;
use crate::backend::cuda::families::packed;
use crate::backend::cuda::matrix::Matrix;
use crate::backend::cuda::memory::buffer::{ALIGN_BYTES, Buffer};
use crate::backend::cuda::memory::convert::in_format;
use crate::backend::cuda::memory::random::Order;
use crate::backend::cuda::memory::staging::PART_BYTES;
use crate::backend::cuda::tuning::limits::SKINNY_EXPERTS;
use crate::error::Result;
use crate::model::op::{Op, OpKind};
use crate::model::rotary::inverse_frequencies;
use crate::model::tensors::{Declared, declared, operations};
use crate::model::{ModelConfig, Tensor, WeightFormat, Weights};
use crate::plan::LayerRange;
use cudarc::driver::{CudaContext, CudaStream};
use half::bf16;
use rayon::prelude::*;
use std::sync::Arc;

/// Bytes that one thread copies into staging memory at a time.
const COPIED_AT_ONCE: usize = 1 << 20;

/// Gives tensors their places, one after the other; copies them too where there is memory.
pub(super) struct Placer<'a> {
    start: Address,
    end: usize,
    to: Option<Target<'a>>,
    matrices: WeightFormat,
}

impl<'a> Placer<'a> {
    /// Gives places from `start` on, matrices in this format, and copies nothing.
    pub fn measuring(start: Address, matrices: WeightFormat) -> Self {
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
    /// [`RandomKernels::load`](crate::backend::cuda::memory::random::RandomKernels::load)'s.
    pub fn into(
        buffer: &'a Buffer,
        (context, stream): (&'a Arc<CudaContext>, &'a CudaStream),
        library: &Library,
        matrices: WeightFormat,
    ) -> Result<Self> {
        let to = Target::new(buffer, (context, stream), library)?;
        Ok(Self {
            to: Some(to),
            ..Self::measuring(buffer.at(0), matrices)
        })
    }

    /// Bytes of all that has a place so far.
    pub fn bytes(&self) -> usize {
        self.end.next_multiple_of(ALIGN_BYTES)
    }

    /// What `range` has of a model, whose tensors are `weights` where there is memory for them.
    pub fn model(
        &mut self,
        config: &ModelConfig,
        range: &LayerRange,
        weights: Option<&Weights>,
    ) -> Result<WeightAddresses> {
        let mut placed = WeightAddresses {
            read: Weights::default(),
            predictors: vec![0; config.num_hidden_layers],
            inverse_frequencies: 0,
        };
        for op in operations(config, range.layers()) {
            let embedding = placed.read.of(None, OpKind::Embed);
            let read = match (op.kind, embedding) {
                (OpKind::LmHead, [_]) if config.tie_word_embeddings => embedding.to_vec(),
                _ => self.operation(config, op, weights)?,
            };
            placed.read.put(op, read);
            if let (OpKind::Router, Some(layer)) = (op.kind, op.layer)
                && config.num_experts <= SKINNY_EXPERTS
            {
                placed.predictors[layer] = self.predictor(config, layer, weights)?;
            }
        }
        let frequencies = inverse_frequencies(config.rope_theta, config.head_dim);
        placed.inverse_frequencies = self.align();
        self.copy_small(frequencies.iter().flat_map(|f| f.to_le_bytes()).collect())?;
        Ok(placed)
    }

    /// What an operation reads: its tensors, and behind them the scales of those in 8 bits.
    fn operation(
        &mut self,
        config: &ModelConfig,
        op: Op,
        weights: Option<&Weights>,
    ) -> Result<Vec<Matrix>> {
        let all = declared(config, op.kind);
        let mut placed: Vec<Matrix> = all.iter().map(|declared| self.place(declared)).collect();
        let mut scales = self.align();
        for (matrix, declared) in placed.iter_mut().zip(&all) {
            if matrix.format == WeightFormat::E4M3 {
                matrix.scale = Some(scales);
                scales += declared.copies() as u64 * matrix.scale_bytes();
            }
        }
        self.end = (scales - self.start) as usize;
        let tensors = weights.map_or(&[][..], |weights| weights.of(op.layer, op.kind));
        for (index, tensor) in tensors.iter().enumerate() {
            let (expert, which) = (index / all.len(), index % all.len());
            let order = order(&all[which], placed[which].format);
            self.tensor(tensor, &placed[which].of_expert(expert as u64), order)?;
        }
        Ok(placed)
    }

    /// Gives a declared tensor its place, or one for each expert, one right after the other.
    fn place(&mut self, declared: &Declared) -> Matrix {
        let format = declared.kept(self.matrices);
        let (rows, columns) = declared.matrix();
        let elements = match order(declared, format) {
            Order::Packed => packed::elements(rows, columns),
            Order::Rows => rows.saturating_mul(columns),
        };
        let address = self.align();
        let bytes = elements.saturating_mul(format.bytes());
        self.end = (self.end).saturating_add(declared.copies().saturating_mul(bytes));
        Matrix {
            stride: elements as u64,
            ..Matrix::of_rows(address, format, rows as u32, columns as u32)
        }
    }

    /// Copies a tensor to its place, or makes a random one there.
    fn tensor(&mut self, tensor: &Tensor, place: &Matrix, order: Order) -> Result<()> {
        let to = self.to.as_mut().expect("there is memory for the tensors");
        if let Some(made) = tensor.made() {
            return to.make(tensor, made, place, order);
        }
        let format = place.format;
        let (columns, start) = (tensor.cols(), self.start);
        let mut at = (place.address - start) as usize;
        let mut scale_at = (place.scale_address().saturating_sub(start)) as usize;
        let whole = match order {
            Order::Packed => packed::ROWS,
            Order::Rows => 1,
        };
        in_format(tensor, format, whole, |rows, scales| {
            match order {
                Order::Rows => copy(to, &mut at, rows)?,
                Order::Packed => {
                    let block = packed::elements(packed::ROWS, columns) * format.bytes();
                    let blocks = (PART_BYTES / block).max(1);
                    for rows in rows.chunks(blocks * packed::ROWS * columns * format.bytes()) {
                        let rows_of_part = rows.len() / (columns * format.bytes());
                        let bytes = packed::elements(rows_of_part, columns) * format.bytes();
                        to.stage(at, bytes, |to| packed::pack(rows, columns, format, to))?;
                        at += bytes;
                    }
                }
            }
            let bytes: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
            let here = scale_at;
            scale_at += bytes.len();
            if bytes.is_empty() {
                return Ok(());
            }
            to.copy(here, bytes)
        })
    }

    /// A router's rows times the norm before it, which scores of the stream before a layer are made by (kernels/skinny/prediction.cuh).
    fn predictor(
        &mut self,
        config: &ModelConfig,
        layer: usize,
        weights: Option<&Weights>,
    ) -> Result<Address> {
        let at = self.align();
        let Some(weights) = weights else {
            let elements = config.num_experts * config.hidden_size;
            self.end += elements * WeightFormat::BF16.bytes();
            return Ok(at);
        };
        let [gate, norm] =
            [OpKind::Router, OpKind::FfnNorm].map(|kind| weights.of(Some(layer), kind)[0].to_f32());
        let rows = gate.chunks(norm.len());
        let weighed = rows.flat_map(|row| row.iter().zip(&norm).map(|(gate, norm)| gate * norm));
        let bytes: Vec<u8> = weighed
            .flat_map(|v| bf16::from_f32(v).to_le_bytes())
            .collect();
        self.copy_small(bytes)?;
        Ok(at)
    }

    fn align(&mut self) -> Address {
        self.end = self.end.next_multiple_of(ALIGN_BYTES);
        self.start + self.end as u64
    }

    /// Copies an array that is not worth memory of its own to go through.
    fn copy_small(&mut self, array: Vec<u8>) -> Result<()> {
        let bytes = array.len();
        if let Some(to) = &mut self.to {
            to.copy(self.end, array)?;
        }
        self.end += bytes;
        Ok(())
    }
}

/// How a declared tensor of this format lies.
fn order(declared: &Declared, format: WeightFormat) -> Order {
    match (&declared.each_expert, format) {
        (None, WeightFormat::F32 | WeightFormat::BF16 | WeightFormat::F16) => Order::Rows,
        _ => Order::Packed,
    }
}

/// Copies bytes to where `at` says, which moves on.
fn copy(to: &mut Target<'_>, at: &mut usize, bytes: &[u8]) -> Result<()> {
    for part in bytes.chunks(PART_BYTES) {
        to.stage(*at, part.len(), |to| {
            let pieces = to.par_chunks_mut(COPIED_AT_ONCE);
            pieces
                .zip(part.par_chunks(COPIED_AT_ONCE))
                .for_each(|(to, from)| to.copy_from_slice(from));
        })?;
        *at += part.len();
    }
    Ok(())
}
