//! The machine's own processor.

use super::{stages, stages_with_routing, timed_stages};
use crate::backend::cuda::tuning::gpu::Gpu;
use crate::backend::device::{Clocks, Device, EngineSpec, Runs, Stages, Started, Wanted, Watch};
use crate::bytes::whole_bytes;
use crate::error::Result;
use crate::model::ModelSource;
use crate::model::tensors::model_bytes;
use crate::plan::{Budget, MemoryPlan, WeightPlacement};
use crate::telemetry::phases::{Phase, phase};

/// It is always there.
#[derive(Debug, Clone, Copy)]
pub struct Cpu;

impl Device for Cpu {
    type Spec = ();

    fn open((): &()) -> Result<Self> {
        Ok(Self)
    }

    fn info(&self) -> Option<String> {
        None
    }

    fn known(&self) -> Option<&'static Gpu> {
        None
    }

    fn kernel_variants(&self) -> Result<Option<String>> {
        Ok(None)
    }

    fn budget(&self, limit: Option<u64>) -> Result<Budget> {
        Ok(Budget::new(limit))
    }

    fn memory(&self, wanted: &Wanted<'_>) -> Result<MemoryPlan> {
        let placement = match wanted.model {
            ModelSource::Dir(_) if !wanted.converts => WeightPlacement::Mapped,
            _ => WeightPlacement::Resident,
        };
        let shared = match placement {
            WeightPlacement::Mapped => 0,
            WeightPlacement::Resident => {
                whole_bytes(model_bytes(&wanted.plan.config, wanted.precision.weights))
            }
        };
        let budget = self.budget(wanted.memory_limit)?;
        let budget = budget.shared(wanted.engines, shared);
        MemoryPlan::new(
            wanted.plan,
            wanted.precision,
            placement,
            wanted.limits,
            budget,
        )
    }

    fn start(&self, spec: &EngineSpec<'_>, watch: Watch<'_>) -> Result<Started> {
        let _loading = phase(Phase::Load);
        let EngineSpec {
            model,
            plan,
            options,
            sink,
        } = *spec;
        let (stages, clock) = match watch {
            Watch::Nothing | Watch::Stages => (self.stages(spec)?, None),
            Watch::Times { .. } => {
                let (stages, clock) = timed_stages(model, plan, options, sink)?;
                (stages, Some(clock))
            }
            Watch::Routing(routing) => {
                let stages = stages_with_routing(model, plan, options, sink, routing)?;
                (stages, None)
            }
        };
        Ok(Started {
            runs: Runs::Stages(stages),
            bucket_sizes: plan.bucket_sizes.clone(),
            options: *options,
            clocks: Clocks {
                parts: clock,
                stages: None,
            },
            step_timeout: None,
        })
    }

    fn stages(&self, spec: &EngineSpec<'_>) -> Result<Stages> {
        stages(spec.model, spec.plan, spec.options, spec.sink)
    }
}
