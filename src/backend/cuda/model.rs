//! A model's stages on one GPU, over memory that is allocated once.

mod operations;
mod skinny;

use super::buffer::Buffer;
use super::delivery::Delivery;
use super::gpu::OpenGpu;
use super::launch::Address;
use super::module::failed;
use super::ops::{Bucket, Enqueue, Kernels};
use super::program::{Span, StepAt, StepProgram, buckets};
use super::weights::{DeviceWeights, types};
use crate::backend::SharedSink;
use crate::error::Result;
use crate::model::{DType, Model, ModelConfig};
use crate::plan::state::{StateAt, StateLayout};
use crate::plan::variants::{Products, Variant};
use crate::plan::{Arena, ArenaShape, EngineOptions, Ladders, Op, OpKind, Plan, StepKind};
use crate::telemetry::phases::{Phase, phase};
use cudarc::driver::CudaStream;
use std::collections::BTreeSet;
use std::sync::Arc;

/// What all stages share.
struct Shared {
    config: Arc<ModelConfig>,
    kernels: Kernels,
    weights: DeviceWeights,
    places: Arena,
    arena: Buffer,
    /// By layer: conv state, or keys and values.
    state: Vec<LayerState>,
    /// Of a layer's conv state.
    conv_bytes: usize,
    _state_buffer: Buffer,
    delivery: Option<Delivery>,
    /// Tokens of a sequence, at most.
    max_context: u32,
    early: bool,
}

#[derive(Debug, Clone, Copy)]
enum LayerState {
    /// `[slots, L - 1, H]`, operand type.
    Conv(Address),
    /// `[pages, kv_heads, page_tokens, D]` each, operand type.
    Pages { k: Address, v: Address },
}

/// One stage of a model. Clones share its memory.
#[derive(Clone)]
pub struct ModelProgram {
    shared: Arc<Shared>,
    ops: Vec<Op>,
    /// In the place of what the plan says.
    variant: Option<Variant>,
}

/// How a model is put on a GPU.
pub struct Placement<'a> {
    pub plan: &'a Plan,
    /// Those that steps are launched for: no bucket of them is larger than a step can choose.
    pub ladders: &'a Ladders,
    pub options: &'a EngineOptions,
    pub dtype: DType,
    /// Takes the logits that requests ask for; without one, none may.
    pub sink: &'a SharedSink,
    /// Of the sink's failures: see [`Delivery::new`].
    pub hold: bool,
}

/// A program for each stage of the plan, in order; they share weights and activations, so only one of them may run
/// at a time.
///
/// # Errors
/// [`crate::Error::Usage`] for a model or a type that the GPU path does not take; [`crate::Error::Memory`] where there is too
/// little; [`crate::Error::Runtime`] for what the driver refuses.
pub fn programs(
    gpu: &OpenGpu,
    model: &Model,
    placement: &Placement<'_>,
) -> Result<Vec<ModelProgram>> {
    let _phase = phase(Phase::Load);
    let Placement {
        plan,
        ladders,
        options,
        ..
    } = *placement;
    let config = plan.config.clone();
    let types = types(&model.weights, placement.dtype);
    let kernels = Kernels::load(&gpu.module, &config, types, &plan.kernels)?;
    for bucket in StepKind::ALL
        .into_iter()
        .flat_map(|kind| buckets(ladders, kind, options.max_seqs))
    {
        // Before any weight is read.
        kernels.variant(&config, bucket)?;
    }
    let stream = gpu
        .context
        .new_stream()
        .map_err(|error| failed("making a stream", error))?;
    let weights = DeviceWeights::upload(&gpu.context, &stream, model, types)?;
    let places = Arena::new(
        &config,
        ArenaShape {
            rows: ladders.largest() as usize,
            slots: options.max_seqs as usize,
            max_context: options.max_context as usize,
            operand: types.operand,
        },
    );
    let arena = Buffer::named(&gpu.context, "activations", places.bytes)?;
    arena.fill(&stream, 0)?;
    let layout = StateLayout::new(&config, options, types.operand);
    let state_buffer = Buffer::named(&gpu.context, "keys, values and conv state", layout.bytes)?;
    state_buffer.fill(&stream, 0)?;
    let state = layout
        .layers
        .iter()
        .map(|at| match *at {
            StateAt::Conv(at) => LayerState::Conv(state_buffer.at(at)),
            StateAt::Pages { k, v } => LayerState::Pages {
                k: state_buffer.at(k),
                v: state_buffer.at(v),
            },
        })
        .collect();
    let delivery = match placement.sink {
        None => None,
        Some(sink) => Some(Delivery::new(
            &gpu.context,
            arena.at(places.posted),
            places.logits_rows,
            config.vocab_size,
            sink.clone(),
            placement.hold,
        )?),
    };
    stream
        .synchronize()
        .map_err(|error| failed("copying weights to the GPU", error))?;
    let shared = Arc::new(Shared {
        config,
        kernels,
        weights,
        places,
        arena,
        state,
        conv_bytes: layout.conv_bytes,
        _state_buffer: state_buffer,
        delivery,
        max_context: options.max_context,
        early: gpu.overlaps_launches(),
    });
    let program = |stage: &crate::plan::Stage| ModelProgram {
        shared: shared.clone(),
        ops: stage.ops.clone(),
        variant: None,
    };
    Ok(plan.stages.iter().map(program).collect())
}

/// Whether the operation before or after `op` in its stage does `op` too: with products for few rows the one that reads what
/// `op` makes (`skinny` says which), else whoever has the rows that `op` norms: the experts' combination for the next layer, the
/// router for its own; in a decode step attention norms and rotates. `conv`: the in-projection does the short convolution
/// too.
fn done_by_neighbour(
    kind: StepKind,
    variant: Variant,
    conv: bool,
    before: Option<&Op>,
    op: &Op,
    after: Option<&Op>,
) -> bool {
    if kind == StepKind::Decode && op.kind == OpKind::QkNormRope {
        return true;
    }
    if let Products::Skinny { .. } = variant.products {
        return skinny::folded(op.kind, variant.experts.follow_skinny());
    }
    let is = |op: Option<&Op>, kind| op.is_some_and(|op| op.kind == kind);
    match op.kind {
        OpKind::OperatorNorm => is(before, OpKind::ExpertDown),
        OpKind::FfnNorm => is(after, OpKind::Router),
        OpKind::ShortConv => conv,
        _ => false,
    }
}

impl ModelProgram {
    /// The same stage, over the same memory, with every bucket served by `variant`.
    ///
    /// # Errors
    /// Why that cannot serve decode buckets of `rows` rows.
    pub fn with_variant(&self, variant: Variant, rows: u32) -> std::result::Result<Self, String> {
        let Shared {
            kernels, config, ..
        } = &*self.shared;
        kernels.can(config, variant, rows)?;
        Ok(Self {
            variant: Some(variant),
            ..self.clone()
        })
    }

    /// What serves a bucket.
    ///
    /// # Errors
    /// The plan asks for what cannot be served.
    pub fn chosen_variant(&self, bucket: Bucket) -> Result<Variant> {
        match self.variant {
            Some(variant) => Ok(variant),
            None => self.shared.kernels.variant(&self.shared.config, bucket),
        }
    }

    /// Where a router leaves what it chose, `u32 [rows, K]`, until the next one runs; and K.
    pub fn chosen_experts(&self) -> (Address, usize) {
        let Shared {
            arena,
            places,
            config,
            ..
        } = &*self.shared;
        (arena.at(places.experts), config.num_experts_per_tok)
    }
}

impl StepProgram for ModelProgram {
    unsafe fn enqueue(&self, stream: &CudaStream, bucket: Bucket, at: StepAt) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue_marked(stream, bucket, at, &mut |_| Ok(())) }
    }

    unsafe fn enqueue_marked(
        &self,
        stream: &CudaStream,
        bucket: Bucket,
        at: StepAt,
        mark: &mut dyn FnMut(Op) -> Result<()>,
    ) -> Result<()> {
        let variant = self.chosen_variant(bucket)?;
        let queue = Enqueue {
            config: &self.shared.config,
            kernels: &self.shared.kernels,
            stream,
            bucket,
            variant,
            state: at.state,
            step: at.step,
            early: self.shared.early,
        };
        let conv = queue.swap_ab_conv_serves().is_some();
        for (index, op) in self.ops.iter().enumerate() {
            let before = index.checked_sub(1).and_then(|before| self.ops.get(before));
            let after = self.ops.get(index + 1);
            if done_by_neighbour(bucket.kind, variant, conv, before, op, after) {
                continue;
            }
            mark(*op)?;
            // SAFETY: the caller's promise; all arrays are the model's and sized for the largest bucket.
            unsafe {
                match op.layer {
                    Some(layer) => self.shared.layer_operation(&queue, op, layer, after),
                    None => self.shared.outer_operation(&queue, op),
                }
            }?;
        }
        Ok(())
    }

    fn variant(&self, bucket: Bucket) -> Result<Option<Variant>> {
        self.chosen_variant(bucket).map(Some)
    }

    /// The conv state of its layers; a step's keys and values go to the same places however often it runs.
    fn carried(&self) -> Vec<Span> {
        let layers: BTreeSet<_> = self.ops.iter().filter_map(|op| op.layer).collect();
        let conv_state = |layer| match self.shared.state[layer] {
            LayerState::Conv(address) => Some(Span {
                address,
                bytes: self.shared.conv_bytes,
            }),
            LayerState::Pages { .. } => None,
        };
        layers.into_iter().filter_map(conv_state).collect()
    }

    fn check(&self) -> Result<()> {
        self.shared
            .delivery
            .as_ref()
            .map_or(Ok(()), Delivery::check)
    }
}

/// Programs that run one after the other, as one: all stages of a GPU, for whoever launches them together.
pub struct InOrder(pub Vec<Box<dyn StepProgram>>);

impl StepProgram for InOrder {
    unsafe fn enqueue(&self, stream: &CudaStream, bucket: Bucket, at: StepAt) -> Result<()> {
        for program in &self.0 {
            // SAFETY: the caller's promise.
            unsafe { program.enqueue(stream, bucket, at) }?;
        }
        Ok(())
    }

    unsafe fn enqueue_marked(
        &self,
        stream: &CudaStream,
        bucket: Bucket,
        at: StepAt,
        mark: &mut dyn FnMut(Op) -> Result<()>,
    ) -> Result<()> {
        for program in &self.0 {
            // SAFETY: the caller's promise.
            unsafe { program.enqueue_marked(stream, bucket, at, mark) }?;
        }
        Ok(())
    }

    fn variant(&self, bucket: Bucket) -> Result<Option<Variant>> {
        self.0
            .first()
            .map_or(Ok(None), |program| program.variant(bucket))
    }

    fn carried(&self) -> Vec<Span> {
        self.0
            .iter()
            .flat_map(|program| program.carried())
            .collect()
    }

    fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|program| program.check())
    }
}
