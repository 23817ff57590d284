//! Sizes of a run and the memory they take, from what its spec asks for and what the device has.

use super::spec::RunSpec;
use super::target::Target;
use crate::backend::device::Wanted;
use crate::error::Result;
use crate::plan::Plan;
use crate::plan::cost::Precision;
use crate::plan::memory::MemoryPlan;
use crate::runtime::core_bytes;

/// Sizes of a run by `spec`, whose plan and opened device these are, before any weight is loaded. `delivers`: requests may
/// ask for logits.
///
/// # Errors
/// Fails as [`crate::backend::Device::memory`] does.
pub fn memory(spec: &RunSpec, target: &Target, plan: &Plan, delivers: bool) -> Result<MemoryPlan> {
    let precision = spec.precision(&plan.config)?;
    let wanted = wanted(spec, plan, precision, delivers);
    target.device().memory(&wanted)
}

/// What a run by `spec` wants of a device's memory, in types that need not be the checkpoint's.
pub fn wanted<'a>(
    spec: &'a RunSpec,
    plan: &'a Plan,
    precision: Precision,
    delivers: bool,
) -> Wanted<'a> {
    Wanted {
        model: &spec.model,
        converts: spec.converts_on_host(),
        plan,
        precision,
        limits: &spec.limits,
        memory_limit: spec.memory_limit,
        delivers,
        engines: 1 + spec.replicas().len() as u32,
        core: core_bytes,
    }
}
