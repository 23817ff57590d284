//! Flags that several commands share: from what was written to what it means.

#[cfg(feature = "cuda")]
mod gpu;

use super::args::{BucketArgs, DoctorCommand, Dtype, EngineArgs, PrecisionArgs};
use super::doctor::Subject;
use super::target::Target;
use super::{Exit, print};
use crate::error::{Error, Result};
use crate::model::{DType, ModelConfig, ModelSource};
use crate::plan::budget::Budget;
use crate::plan::bytes::parse_bytes;
use crate::plan::cost::Precision;
use crate::plan::memory::{MemoryPlan, WeightPlacement};
use crate::plan::{GraphFile, KernelChoice, Limits, Plan};
use std::sync::Arc;

impl PrecisionArgs {
    /// `--dtype` or `--fp16`; `None` where neither is given.
    pub fn dtype(&self) -> Option<DType> {
        if self.fp16 {
            return Some(DType::F16);
        }
        self.dtype.map(|dtype| match dtype {
            Dtype::F32 => DType::F32,
            Dtype::Bf16 => DType::BF16,
            Dtype::F16 => DType::F16,
        })
    }
}

impl EngineArgs {
    pub fn limits(&self) -> Limits {
        Limits {
            max_seqs: self.max_seqs,
            max_context: self.max_context,
            page_tokens: self.page_tokens,
            step_tokens: self.step_tokens,
            chunk_align: self.chunk_align,
            stages: self.stages.map(|stages| stages as usize),
            steps_in_flight: None,
        }
    }

    /// Of the target's memory.
    ///
    /// # Errors
    /// [`Error::Usage`] for a size that is none.
    pub fn budget(&self, target: &Target) -> Result<Budget> {
        let limit = self
            .memory_limit
            .as_deref()
            .map(|text| parse_bytes(text).map_err(|e| Error::Usage(format!("--memory-limit {e}"))))
            .transpose()?;
        target.budget(limit)
    }
}

/// The plan that the flags ask for.
pub fn plan(config: &Arc<ModelConfig>, buckets: &BucketArgs, limits: &Limits) -> Result<Plan> {
    let mut plan = GraphFile::open(buckets.bucket_file.as_deref())?.plan(config.clone(), limits)?;
    plan.kernels = KernelChoice::open(buckets.kernel_file.as_deref())?;
    Ok(plan)
}

/// Sizes of a run, before any weight is loaded. `delivers`: requests may ask for logits.
///
/// # Errors
/// A model that the target does not take, limits that cannot be, too little memory.
pub fn memory(
    source: &ModelSource,
    target: &Target,
    plan: &Plan,
    limits: &Limits,
    budget: Budget,
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables))] delivers: bool,
) -> Result<MemoryPlan> {
    let precision = Precision::new(target.dtype(), source.matrix_dtype(&plan.config)?);
    match target {
        Target::Cpu { .. } => {
            let placement = match source {
                ModelSource::Dir(_) => WeightPlacement::Mapped,
                ModelSource::Random { .. } => WeightPlacement::Resident,
            };
            MemoryPlan::new(plan, precision, placement, limits, budget)
        }
        #[cfg(feature = "cuda")]
        Target::Gpu { launch, .. } => {
            gpu::memory(source, *launch, plan, precision, limits, budget, delivers)
        }
    }
}

/// The `doctor` command.
pub fn doctor(args: &DoctorCommand) -> Result<Exit> {
    let target = match args.run.target() {
        Err(error @ Error::Usage(_)) => return Err(error),
        // A device that cannot be used is what doctor is there to say.
        target => target,
    };
    let subject = match (&args.model, &target) {
        (Some(name), Ok(target)) => {
            let budget = args.engine.budget(target)?;
            Some(Subject {
                name: name.clone(),
                memory: ModelSource::parse(name).and_then(|source| {
                    let (config, _) = source.config()?;
                    let limits = args.engine.limits();
                    let plan = plan(&Arc::new(config), &args.run.buckets, &limits)?;
                    memory(&source, target, &plan, &limits, budget, true)
                }),
            })
        }
        _ => None,
    };
    let mut out = Vec::new();
    let unusable = target.err().map(|error| error.to_string());
    let healthy = args
        .doctor
        .run(unusable.as_deref(), subject.as_ref(), &mut out)?;
    print(&out)?;
    Ok(if healthy { Exit::Done } else { Exit::Problem })
}
