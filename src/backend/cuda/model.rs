//! A model's stages on one GPU: its plan's operations as launches, over memory that is allocated once.

use super::buffer::Buffer;
use super::delivery::Delivery;
use super::gpu::OpenGpu;
use super::launch::Address;
use super::module::failed;
use super::ops::attention::Attention;
use super::ops::conv::ShortConv;
use super::ops::experts::{NextNorm, RouterWeights, Routing};
use super::ops::head::logits_parts;
use super::ops::linear::{Epilogue, Product, Rows};
use super::ops::{Bucket, Enqueue, Kernels};
use super::program::{StepAt, StepProgram};
use super::weights::{DeviceWeights, FeedForwardAddresses, MixerAddresses, types};
use crate::backend::SharedSink;
use crate::error::{Error, Result};
use crate::model::{DType, Model, ModelConfig};
use crate::plan::state::{StateAt, StateLayout};
use crate::plan::{Arena, ArenaShape, EngineOptions, Ladders, Op, OpKind, Plan};
use crate::telemetry::nvtx::{names, range};
use cudarc::driver::CudaStream;
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
    _state_buffer: Buffer,
    delivery: Option<Delivery>,
    early: bool,
}

#[derive(Debug, Clone, Copy)]
enum LayerState {
    /// `[slots, L - 1, H]`, operand type.
    Conv(Address),
    /// `[pages, page_tokens, kv_heads, D]` each, operand type.
    Pages { k: Address, v: Address },
}

/// One stage of a model.
pub struct ModelProgram {
    shared: Arc<Shared>,
    ops: Vec<Op>,
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
/// [`Error::Usage`] for a model or a type that the GPU path does not take; [`Error::Memory`] where there is too
/// little; [`Error::Runtime`] for what the driver refuses.
pub fn programs(
    gpu: &OpenGpu,
    model: &Model,
    placement: &Placement<'_>,
) -> Result<Vec<ModelProgram>> {
    let _range = range(names().load);
    let Placement {
        plan,
        ladders,
        options,
        ..
    } = *placement;
    let config = plan.config.clone();
    let types = types(&model.weights, placement.dtype);
    let kernels = Kernels::load(&gpu.module, &config, types)?;
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
        _state_buffer: state_buffer,
        delivery,
        early: gpu.overlaps_launches(),
    });
    let program = |stage: &crate::plan::Stage| ModelProgram {
        shared: shared.clone(),
        ops: stage.ops.clone(),
    };
    Ok(plan.stages.iter().map(program).collect())
}

/// Whether the operation before or after `op` in its stage has the rows that `op` norms, and norms them: the experts'
/// combination for the next layer, the router for its own.
fn done_by_neighbour(before: Option<&Op>, op: &Op, after: Option<&Op>) -> bool {
    let is = |op: Option<&Op>, kind| op.is_some_and(|op| op.kind == kind);
    match op.kind {
        OpKind::OperatorNorm => is(before, OpKind::ExpertDown),
        OpKind::FfnNorm => is(after, OpKind::Router),
        _ => false,
    }
}

/// An operation that the plan has and the model does not have there.
fn misplaced(op: &Op) -> Error {
    Error::Runtime(format!(
        "the plan holds {op:?}, which this model does not have there: make the plan from the model's own configuration"
    ))
}

impl StepProgram for ModelProgram {
    unsafe fn enqueue(&self, stream: &CudaStream, bucket: Bucket, at: StepAt) -> Result<()> {
        let queue = Enqueue {
            config: &self.shared.config,
            kernels: &self.shared.kernels,
            stream,
            bucket,
            state: at.state,
            step: at.step,
            early: self.shared.early,
        };
        for (index, op) in self.ops.iter().enumerate() {
            let before = index.checked_sub(1).and_then(|before| self.ops.get(before));
            let after = self.ops.get(index + 1);
            if done_by_neighbour(before, op, after) {
                continue;
            }
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

    fn check(&self) -> Result<()> {
        self.shared
            .delivery
            .as_ref()
            .map_or(Ok(()), Delivery::check)
    }
}

impl Shared {
    fn at(&self, offset: usize) -> Address {
        self.arena.at(offset)
    }

    /// Operations before the first and after the last layer.
    ///
    /// # Safety
    /// [`Enqueue`]'s.
    unsafe fn outer_operation(&self, queue: &Enqueue<'_>, op: &Op) -> Result<()> {
        let (p, w) = (&self.places, &self.weights);
        let (h, x) = (self.at(p.h), self.at(p.x));
        // SAFETY: the caller's promise; shapes are those of the arena and the weights.
        unsafe {
            match op.kind {
                OpKind::Embed => queue.embed(h, w.embed_tokens),
                OpKind::FinalNorm => queue.final_norm(x, h, w.embedding_norm),
                // Logits of a score step are dead once the next tile is there, so a tile goes from its product to the
                // host and to sampling in one go: here, before `Sample`.
                OpKind::LmHead => self.logits(queue, x),
                OpKind::Sample => Ok(()),
                _ => Err(misplaced(op)),
            }
        }
    }

    /// From the normed rows to logits, to the host and to tokens, part by part.
    ///
    /// # Safety
    /// [`Enqueue`]'s.
    unsafe fn logits(&self, queue: &Enqueue<'_>, x: Address) -> Result<()> {
        let (logits, seen) = (self.at(self.places.logits), self.at(self.places.seen));
        let best = self.at(self.places.sample_best);
        let mut parts = logits_parts(queue.bucket.kind, queue.bucket.rows).peekable();
        // SAFETY: the caller's promise; the arena has room for the logits of any part.
        unsafe {
            queue.mark_seen(seen)?;
            while let Some(part) = parts.next() {
                queue.lm_head(part, logits, x, self.weights.lm_head)?;
                if let Some(delivery) = &self.delivery {
                    queue.deliver(part, parts.peek().is_none(), logits, &delivery.ring())?;
                }
                queue.sample(part, logits, seen, best)?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// [`Enqueue`]'s.
    unsafe fn layer_operation(
        &self,
        queue: &Enqueue<'_>,
        op: &Op,
        layer: usize,
        after: Option<&Op>,
    ) -> Result<()> {
        let config = &*self.config;
        let (p, w) = (&self.places, &self.weights.layers[layer]);
        let (h, x, wide) = (self.at(p.h), self.at(p.x), self.at(p.wide));
        let hidden = config.hidden_size as u32;
        let q = (config.num_attention_heads * config.head_dim) as u32;
        let kv = (config.num_key_value_heads * config.head_dim) as u32;
        let product = |y, x, w, bias, (outputs, inner), epilogue| Product {
            y,
            x,
            w,
            w_pair: 0,
            bias,
            outputs,
            inner,
            epilogue,
        };
        // SAFETY: the caller's promise; shapes are those of the arena, the state and the weights.
        unsafe {
            match (op.kind, &w.mixer, self.state[layer], &w.feed_forward) {
                (OpKind::OperatorNorm, ..) => queue.norm(x, h, w.operator_norm),
                (OpKind::FfnNorm, ..) => queue.norm(x, h, w.ffn_norm),
                (
                    OpKind::ConvInProj,
                    &MixerAddresses::Conv {
                        in_proj,
                        in_proj_bias,
                        ..
                    },
                    ..,
                ) => {
                    let shape = (3 * hidden, hidden);
                    let product = product(wide, x, in_proj, in_proj_bias, shape, Epilogue::Store);
                    queue.product(&product, Rows::Step)
                }
                (
                    OpKind::ShortConv,
                    &MixerAddresses::Conv {
                        taps, taps_bias, ..
                    },
                    LayerState::Conv(state),
                    _,
                ) => queue.short_conv(&ShortConv {
                    x,
                    bcx: wide,
                    state,
                    taps,
                    bias: taps_bias,
                }),
                (
                    OpKind::ConvOutProj,
                    &MixerAddresses::Conv {
                        out_proj,
                        out_proj_bias,
                        ..
                    },
                    ..,
                ) => {
                    let shape = (hidden, hidden);
                    let product = product(h, x, out_proj, out_proj_bias, shape, Epilogue::Add);
                    queue.product(&product, Rows::Step)
                }
                (OpKind::QkvProj, &MixerAddresses::Attention { qkv_proj, .. }, ..) => {
                    let shape = (q + 2 * kv, hidden);
                    let product = product(wide, x, qkv_proj, 0, shape, Epilogue::Store);
                    queue.product(&product, Rows::Step)
                }
                (
                    OpKind::QkNormRope | OpKind::Attention,
                    &MixerAddresses::Attention { q_norm, k_norm, .. },
                    LayerState::Pages { k, v },
                    _,
                ) => {
                    let attention = Attention {
                        x,
                        qkv: wide,
                        k_pages: k,
                        v_pages: v,
                        q_norm,
                        k_norm,
                        inverse_frequencies: self.weights.inverse_frequencies,
                        query_tiles: self.at(p.query_tiles),
                        query_tile_count: self.at(p.query_tile_count),
                    };
                    match op.kind {
                        OpKind::QkNormRope => queue.qk_norm_rope(&attention),
                        _ => queue.attention(&attention),
                    }
                }
                (OpKind::AttentionOutProj, &MixerAddresses::Attention { out_proj, .. }, ..) => {
                    let product = product(h, x, out_proj, 0, (hidden, q), Epilogue::Add);
                    queue.product(&product, Rows::Step)
                }
                (OpKind::DenseGateUp, .., &FeedForwardAddresses::Dense { w1, w3, .. }) => {
                    queue.dense_gate_up(wide, x, w1, w3)
                }
                (OpKind::DenseDown, .., &FeedForwardAddresses::Dense { w2, .. }) => {
                    let shape = (hidden, config.intermediate_size as u32);
                    queue.product(&product(h, wide, w2, 0, shape, Epilogue::Add), Rows::Step)
                }
                (OpKind::Router, .., &FeedForwardAddresses::Moe { gate, bias, .. }) => {
                    let weights = RouterWeights {
                        norm: w.ffn_norm,
                        gate,
                        bias,
                    };
                    queue.router(&self.routing(), x, h, &weights)
                }
                (OpKind::ExpertGateUp, .., FeedForwardAddresses::Moe { experts, .. }) => {
                    queue.expert_gate_up(&self.routing(), experts, wide, x)
                }
                (OpKind::ExpertDown, .., FeedForwardAddresses::Moe { experts, .. }) => {
                    let partial = self.at(p.partial);
                    let next = self.next_norm(after, x);
                    queue.expert_down(&self.routing(), experts, h, wide, partial, next)
                }
                _ => Err(misplaced(op)),
            }
        }
    }

    /// The norm that `after` is, if it is one of a layer.
    fn next_norm(&self, after: Option<&Op>, x: Address) -> Option<NextNorm> {
        let norm = after.filter(|after| after.kind == OpKind::OperatorNorm)?;
        Some(NextNorm {
            x,
            weight: self.weights.layers[norm.layer?].operator_norm,
        })
    }

    fn routing(&self) -> Routing {
        let p = &self.places;
        Routing {
            experts: self.at(p.experts),
            weights: self.at(p.expert_weights),
            scores: self.at(p.expert_scores),
            rows: self.at(p.expert_rows),
            place: self.at(p.expert_place),
            tiles: self.at(p.expert_tiles),
            tile_count: self.at(p.expert_tile_count),
        }
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

    fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|program| program.check())
    }
}
