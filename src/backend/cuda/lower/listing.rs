//! The calls of a model's steps without a GPU: everything but the addresses is as in a run, and those are made up.

use super::{ModelAddresses, lower};
use crate::backend::cuda::catalogue::{Call, StepCalls};
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::KernelCall;
use crate::backend::cuda::families::attention::PagePool;
use crate::backend::cuda::families::limits::{GpuShape, Library};
use crate::backend::cuda::families::share::LayerState;
use crate::backend::cuda::families::{Bucket, Kernels, Lowering, StepAt};
use crate::backend::cuda::memory::arena::{Arena, ArenaShape};
use crate::backend::cuda::memory::state::StateLayout;
use crate::backend::cuda::memory::weights::WeightAddresses;
use crate::backend::cuda::tuning::KernelChoice;
use crate::error::Result;
use crate::plan::{EngineOptions, LayerRange, Plan, Precision, StepKind};

/// Where arrays would begin: far enough from each other for any model, so that no two share an address.
const ARENA: Address = 1 << 48;
const WEIGHTS: Address = 2 << 48;
const STATE: Address = 3 << 48;
const STEP: StepAt = StepAt {
    state: 4 << 48,
    step: 5 << 48,
    h: None,
};

/// A plan's steps on a GPU that need not be there.
pub struct Listing<'a> {
    plan: &'a Plan,
    kernels: Kernels,
    addresses: ModelAddresses,
    /// Slots.
    sequences: u32,
    pdl: bool,
}

impl<'a> Listing<'a> {
    /// # Errors
    /// Fails as a run does: the GPU path does not take the shapes or types, or a kernel file is for other GPUs.
    pub fn new(
        plan: &'a Plan,
        gpu: GpuShape,
        precision: Precision,
        choice: &KernelChoice,
        options: &EngineOptions,
    ) -> Result<Self> {
        let config = plan.config.clone();
        let kernels = Kernels::load(&Library::unloaded(gpu), &config, precision, choice)?;
        let shape = ArenaShape {
            rows: plan.bucket_sizes.largest() as usize,
            slots: options.max_seqs as usize,
            prefixes: options.prefixes as usize,
            max_context: options.max_context as usize,
            precision,
        };
        let whole = LayerRange::whole(&config);
        let weights = WeightAddresses::new(&config, &whole, precision.weights, WEIGHTS);
        let layout = StateLayout::new(&config, &whole, options, precision.compute);
        Ok(Self {
            plan,
            kernels,
            addresses: ModelAddresses {
                weights,
                places: Arena::new(&config, shape),
                arena: ARENA,
                moved_h: None,
                moved_q: None,
                state: LayerState::all(&layout, STATE),
                shares: options.prefixes > 0,
                logits: None,
                max_context: options.max_context,
                pool: PagePool {
                    pages: options.pages,
                    page_tokens: options.page_tokens,
                },
                config,
            },
            sequences: options.max_seqs,
            pdl: gpu.overlaps_launches(),
        })
    }

    /// What does a stage's step of the bucket of `rows` rows.
    ///
    /// # Errors
    /// A kernel file asks for what the kernels cannot do.
    pub fn step(&self, stage: usize, kind: StepKind, rows: u32) -> Result<StepCalls> {
        let Self {
            plan,
            kernels,
            addresses,
            ..
        } = self;
        let bucket = Bucket {
            kind,
            rows,
            sequences: self.sequences.min(rows),
        };
        let variant = kernels.variant(&plan.config, bucket)?;
        let to = Lowering::new(&plan.config, kernels, bucket, variant, STEP, self.pdl);
        let calls = lower(addresses, &plan.stages[stage].ops, to)?;
        calls.iter().try_for_each(KernelCall::check)?;
        Ok(StepCalls {
            stage,
            kind,
            rows,
            variant,
            calls: calls.iter().map(shown).collect(),
        })
    }
}

fn shown(call: &KernelCall) -> Call {
    let launch = call.launch;
    Call {
        kernel: call.kernel.name().to_owned(),
        ops: call.ops.clone(),
        grid: launch.grid,
        threads: launch.threads,
        shared_bytes: launch.shared_bytes,
        cluster: launch.cluster,
        weights: call.weights.clone(),
        pdl: launch.pdl,
    }
}
