//! A model's stages on one GPU, all of them or some that follow each other, over memory that is allocated once.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::KernelCall;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::engine::delivery::Delivery;
use crate::backend::cuda::engine::program::{Residual, Span, StepProgram, buckets};
use crate::backend::cuda::families::attention::PagePool;
use crate::backend::cuda::families::limits::Library;
use crate::backend::cuda::families::share::LayerState;
use crate::backend::cuda::families::{Bucket, Kernels, Lowering, StepAt};
use crate::backend::cuda::lower::{ModelAddresses, lower};
use crate::backend::cuda::memory::arena::{Arena, ArenaShape};
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::state::StateLayout;
use crate::backend::cuda::memory::weights::DeviceWeights;
use crate::backend::cuda::tuning::variants::Variant;
use crate::backend::{GpuSpec, SharedSink};
use crate::error::Result;
use crate::model::Model;
use crate::plan::{
    BucketSizes, EngineOptions, LayerRange, NeededRows, Op, OpKind, Plan, Stage, StepKind,
};
use crate::telemetry::phases::{Phase, phase};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What all stages share.
struct Shared {
    addresses: ModelAddresses,
    kernels: Kernels,
    /// Bytes of one layer's conv state.
    conv_bytes: usize,
    delivery: Option<Delivery>,
    pdl: bool,
    _memory: Memory,
}

/// What the addresses are of.
struct Memory {
    _weights: DeviceWeights,
    _arena: Buffer,
    _state: Buffer,
}

/// One stage of a model. Clones share its memory.
#[derive(Clone)]
pub struct ModelProgram {
    shared: Arc<Shared>,
    ops: Vec<Op>,
    /// Serves in the place of what the plan says.
    variant: Option<Variant>,
}

/// How a model is put on a GPU.
pub struct Placement<'a> {
    pub plan: &'a Plan,
    /// The stages that the GPU has.
    pub stages: &'a [Stage],
    /// Sizes of the buckets that steps are launched for: none is larger than a step can choose.
    pub bucket_sizes: &'a BucketSizes,
    pub options: &'a EngineOptions,
    pub spec: &'a GpuSpec,
    /// Takes the logits that requests ask for; without one they stay in the activations until others take their place.
    pub sink: &'a SharedSink,
    /// The delivery holds after a failure of the sink: see [`Delivery::new`].
    pub hold: bool,
}

/// A program for each of the GPU's stages, in order; they share weights and activations, so only one of them may run
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
        stages,
        bucket_sizes,
        options,
        ..
    } = *placement;
    let config = plan.config.clone();
    let range = LayerRange::of(&config, stages);
    let precision = placement.spec.precision(model.matrix_format());
    let library = Library::loaded(&gpu.module)?;
    let kernels = Kernels::load(&library, &config, precision, &gpu.kernels)?;
    for bucket in StepKind::ALL
        .into_iter()
        .flat_map(|kind| buckets(bucket_sizes, kind, options.max_seqs))
    {
        // Before any weight is read.
        kernels.variant(&config, bucket)?;
    }
    let stream = gpu
        .context
        .new_stream()
        .map_err(|error| failed("making a stream", error))?;
    let weights = DeviceWeights::upload(
        &gpu.context,
        &stream,
        &library,
        model,
        &range,
        precision.weights,
    )?;
    let places = Arena::new(
        &config,
        ArenaShape {
            rows: bucket_sizes.largest() as usize,
            slots: options.max_seqs as usize,
            prefixes: options.prefixes as usize,
            max_context: options.max_context as usize,
            precision,
        },
    );
    let arena = Buffer::named(&gpu.context, "activations", places.bytes)?;
    arena.fill(&stream, 0)?;
    let layout = StateLayout::new(&config, &range, options, precision.compute);
    let state_buffer = Buffer::named(&gpu.context, "keys, values and conv state", layout.bytes)?;
    state_buffer.fill(&stream, 0)?;
    let state = LayerState::all(&layout, state_buffer.at(0));
    let delivery = match placement.sink.as_ref().filter(|_| range.has_head()) {
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
        addresses: ModelAddresses {
            config,
            weights: weights.at.clone(),
            arena: arena.at(0),
            moved_h: None,
            moved_q: None,
            places,
            state,
            shares: options.prefixes > 0,
            logits: delivery.as_ref().map(Delivery::ring),
            max_context: options.max_context,
            pool: PagePool {
                pages: options.pages,
                page_tokens: options.page_tokens,
            },
        },
        kernels,
        conv_bytes: layout.conv_bytes,
        delivery,
        pdl: gpu.overlaps_launches(),
        _memory: Memory {
            _weights: weights,
            _arena: arena,
            _state: state_buffer,
        },
    });
    let program = |stage: &Stage| ModelProgram {
        shared: shared.clone(),
        ops: stage.ops.clone(),
        variant: None,
    };
    Ok(stages.iter().map(program).collect())
}

impl ModelProgram {
    /// Makes the same stage, over the same memory, with every bucket served by `variant`.
    ///
    /// # Errors
    /// Why that cannot serve decode buckets of `rows` rows.
    pub fn with_variant(&self, variant: Variant, rows: u32) -> std::result::Result<Self, String> {
        let Shared {
            kernels, addresses, ..
        } = &*self.shared;
        kernels.can(&addresses.config, variant, rows)?;
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
            None => {
                let Shared {
                    kernels, addresses, ..
                } = &*self.shared;
                kernels.variant(&addresses.config, bucket)
            }
        }
    }

    /// Where a router leaves what it chose, until the next one runs.
    pub fn chosen_experts(&self) -> ChosenExperts {
        let addresses = &self.shared.addresses;
        let at = |place: usize| addresses.arena + place as u64;
        ChosenExperts {
            experts: at(addresses.places.experts),
            each: addresses.config.num_experts_per_tok,
            needed: NeededRows::of(&addresses.config),
            needed_step: at(addresses.places.needed_step),
        }
    }
}

/// What a router chooses.
#[derive(Debug, Clone, Copy)]
pub struct ChosenExperts {
    /// `u32 [rows, each]`
    pub experts: Address,
    pub each: usize,
    /// In a mixed step some routers have the rows of this `tg_step` alone.
    pub needed: Option<NeededRows>,
    pub needed_step: Address,
}

impl StepProgram for ModelProgram {
    fn lower(&self, bucket: Bucket, at: StepAt) -> Result<Vec<KernelCall>> {
        let Shared {
            addresses,
            kernels,
            pdl,
            ..
        } = &*self.shared;
        let variant = self.chosen_variant(bucket)?;
        let lowering = Lowering::new(&addresses.config, kernels, bucket, variant, at, *pdl);
        if at.h.is_none() {
            return lower(addresses, &self.ops, lowering);
        }
        let moved = ModelAddresses {
            moved_h: at.h,
            ..addresses.clone()
        };
        lower(&moved, &self.ops, lowering)
    }

    fn variant(&self, bucket: Bucket) -> Result<Option<Variant>> {
        self.chosen_variant(bucket).map(Some)
    }

    /// The conv state of its layers, and how often tokens stand in the answers; a step's keys and values go to the same places
    /// however often it runs.
    fn carried(&self) -> Vec<Span> {
        let layers: BTreeSet<_> = self.ops.iter().filter_map(|op| op.layer).collect();
        let conv_state = |layer: usize| match self.shared.addresses.state.get(layer) {
            Some(&Some(LayerState::Conv(address))) => Some(Span {
                address,
                bytes: self.shared.conv_bytes,
            }),
            _ => None,
        };
        let samples = self.ops.iter().any(|op| op.kind == OpKind::Sample);
        let addresses = &self.shared.addresses;
        let counts = samples.then(|| Span {
            address: addresses.arena + addresses.places.counts as u64,
            bytes: addresses.places.bytes - addresses.places.counts,
        });
        let conv_states = layers.into_iter().filter_map(conv_state);
        conv_states.chain(counts).collect()
    }

    fn residual(&self) -> Option<Residual> {
        let addresses = &self.shared.addresses;
        Some(Residual {
            h: addresses.arena + addresses.places.h as u64,
            hidden: addresses.config.hidden_size,
        })
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
    fn lower(&self, bucket: Bucket, at: StepAt) -> Result<Vec<KernelCall>> {
        let mut calls = vec![];
        for program in &self.0 {
            calls.extend(program.lower(bucket, at)?);
        }
        Ok(calls)
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

    fn residual(&self) -> Option<Residual> {
        self.0.first().and_then(|program| program.residual())
    }

    fn check(&self) -> Result<()> {
        self.0.iter().try_for_each(|program| program.check())
    }
}
