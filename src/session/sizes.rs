//! Sizes of a run and the memory they take, from what its spec asks for and what the device has.

#[cfg(feature = "cuda")]
pub mod gpu;

use super::spec::RunSpec;
use super::target::Target;
use crate::error::Result;
use crate::model::ModelSource;
use crate::plan::Plan;
use crate::plan::cost::Precision;
use crate::plan::memory::{MemoryPlan, WeightPlacement};

/// Sizes of a run by `spec`, whose plan and opened device these are, before any weight is loaded. `delivers`: requests may
/// ask for logits.
///
/// # Errors
/// A model that the target does not take, limits that cannot be, too little memory.
pub fn memory(
    spec: &RunSpec,
    target: &Target,
    plan: &Plan,
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables))] delivers: bool,
) -> Result<MemoryPlan> {
    let budget = target.budget(spec.memory_limit)?;
    let checkpoint = spec.model.matrix_dtype(&plan.config)?;
    let precision = Precision::new(spec.device.dtype(), checkpoint);
    match target {
        Target::Cpu => {
            let placement = match spec.model {
                ModelSource::Dir(_) => WeightPlacement::Mapped,
                ModelSource::Random { .. } => WeightPlacement::Resident,
            };
            MemoryPlan::new(plan, precision, placement, &spec.limits, budget)
        }
        #[cfg(feature = "cuda")]
        Target::Gpu { gpu, spec: asked } => {
            gpu::memory(spec, (gpu, asked.launch), plan, precision, budget, delivers)
        }
    }
}
