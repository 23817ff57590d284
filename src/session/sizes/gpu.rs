//! Sizes of a run on a GPU, and whether both the GPU and its host have room for them.

use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::families::{Types, kernels};
use crate::error::{Error, Result};
use crate::model::layout::Role;
use crate::model::{ModelConfig, ModelSource};
use crate::plan::budget::{Available, Budget};
use crate::plan::bytes::{Bytes, whole_bytes};
use crate::plan::cost::Precision;
use crate::plan::device::DeviceMemory;
use crate::plan::memory::{MemoryItem, MemoryPlan, Place};
use crate::plan::params::model_bytes;
use crate::plan::{Gpu, Plan};
use crate::runtime::Launch;
use crate::runtime::cuda::overheads;
use crate::session::spec::RunSpec;

/// Sizes of a run on a GPU like `gpu`, which need not be there; what the host has does not matter.
///
/// # Errors
/// As for [`super::memory`].
pub fn on_paper(
    spec: &RunSpec,
    gpu: &Gpu,
    plan: &Plan,
    precision: Precision,
) -> Result<MemoryPlan> {
    let whole = whole(
        spec,
        gpu.memory_bytes,
        &format!("an {}'s memory", gpu.title),
    );
    let memory = DeviceMemory {
        budget: match spec.memory_limit {
            Some(_) => Budget::new(spec.memory_limit),
            None => whole.clone(),
        },
        whole,
    };
    let overheads = |options: &_| overheads(Launch::DeviceGraph, plan, options, false);
    MemoryPlan::on_device(plan, precision, &spec.limits, &memory, &overheads)
}

/// A GPU's memory of so many bytes, named so, as far as `--memory-limit` lets a run see it.
fn whole(spec: &RunSpec, bytes: u64, named: &str) -> Budget {
    match spec.memory_limit {
        Some(limit) if limit < bytes => Budget::new(Some(limit)),
        _ => Budget {
            bytes,
            source: named.to_owned(),
        },
    }
}

/// [`super::memory`]'s, of a GPU.
pub(super) fn memory(
    spec: &RunSpec,
    (gpu, launch): (&OpenGpu, Launch),
    plan: &Plan,
    precision: Precision,
    budget: Budget,
    delivers: bool,
) -> Result<MemoryPlan> {
    let types = Types {
        operand: precision.compute,
        weights: precision.weights,
    };
    kernels::check(&plan.config, types)?;
    let overheads = |options: &_| overheads(launch, plan, options, delivers);
    let device = DeviceMemory {
        whole: whole(spec, gpu.info.memory_bytes, &gpu.info.to_string()),
        budget,
    };
    let mut memory = MemoryPlan::on_device(plan, precision, &spec.limits, &device, &overheads)?;
    if let ModelSource::Random { .. } = spec.model {
        memory.items.push(generated(&plan.config));
    }
    host_holds(&memory, Available::now().map(|a| a.bytes))?;
    Ok(memory)
}

/// Random weights are made in the host's memory; those of a checkpoint are mapped.
fn generated(config: &ModelConfig) -> MemoryItem {
    MemoryItem {
        name: "generated weights",
        bytes: whole_bytes(model_bytes(config, Role::Matrix.published_dtype())),
        arithmetic: "memory of the host until they are on the GPU".into(),
        place: Place::Loading,
    }
}

/// Whether the host has what is pinned and what is held while loading, of its `available` bytes.
fn host_holds(memory: &MemoryPlan, available: Option<u64>) -> Result<()> {
    let (pinned, loading) = (memory.pinned_bytes(), memory.loading_bytes());
    match available {
        Some(available) if available < pinned.saturating_add(loading) => {
            Err(Error::Memory(format!(
                "not enough memory on the host: {} pinned for the GPU + {} until the weights are there, {} available; \
                 free memory, or lower --max-context, --max-seqs or --step-tokens",
                Bytes(pinned),
                Bytes(loading),
                Bytes(available)
            )))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::DType;
    use crate::plan::device::Overheads;
    use crate::plan::{GraphFile, Limits};
    use std::sync::Arc;

    #[test]
    fn a_host_with_too_little_is_told_how_much() {
        let (source, limits) = (
            ModelSource::parse("random:tiny").unwrap(),
            Limits::default(),
        );
        let config = Arc::new(source.config().unwrap().0);
        let graphs = GraphFile::open(None).unwrap();
        let plan = graphs.plan(config.clone(), &limits).unwrap();
        let precision = Precision::new(DType::BF16, DType::BF16);
        let budget = Budget::new(Some(1 << 30));
        let device = DeviceMemory {
            whole: budget.clone(),
            budget,
        };
        let overheads = |_: &_| {
            Ok(Overheads {
                scheduler_bytes: 0,
                pinned_bytes: 3 << 20,
                pinned_arithmetic: String::new(),
                logits_bytes: 0,
                logits_arithmetic: String::new(),
            })
        };
        let mut memory =
            MemoryPlan::on_device(&plan, precision, &limits, &device, &overheads).unwrap();
        host_holds(&memory, Some(3 << 20)).unwrap();
        host_holds(&memory, None).unwrap();
        memory.items.push(generated(&config));
        let message = host_holds(&memory, Some(3 << 20)).unwrap_err().to_string();
        let loading = Bytes(memory.loading_bytes()).to_string();
        assert!(memory.loading_bytes() > 1 << 20, "{loading}");
        for part in ["3.0 MiB pinned", &loading, "3.0 MiB available"] {
            assert!(message.contains(part), "{message} lacks {part}");
        }
    }
}
