//! The roofline of measured steps, from the plan of their model.

use super::input::Measured;
use crate::model::{DType, ModelSource};
use crate::plan::gpu::GPUS;
use crate::plan::{Gpu, GraphFile, Limits, Plan, Precision, StepKind, StepShape};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The least time that the plan's operations take on the device, by sequences.
pub struct Floor {
    pub gpu: &'static Gpu,
    pub ms: BTreeMap<u32, f64>,
    /// Tokens of each sequence.
    pub context: u32,
}

impl Floor {
    /// `None` where the model or the GPU is not known here.
    pub fn new(measured: &Measured) -> Option<Self> {
        let gpu = GPUS.into_iter().find(|gpu| {
            let name = gpu.title.split(' ').next().unwrap_or(gpu.title);
            measured.device.contains(name)
        })?;
        let dtype = match measured.dtype.as_str() {
            "f32" => DType::F32,
            "bf16" => DType::BF16,
            "f16" => DType::F16,
            _ => return None,
        };
        let (config, _) = ModelSource::parse(&measured.model).ok()?.config().ok()?;
        let plan: Plan = GraphFile::open(None)
            .ok()?
            .plan(Arc::new(config), &Limits::default())
            .ok()?;
        // Half of the new tokens are there in the middle of a run.
        let context = measured.prompt_tokens + measured.new_tokens / 2;
        let at = |rows: u32| {
            let shape = StepShape {
                kind: StepKind::Decode,
                rows,
                context,
            };
            gpu.step_us(&plan, &shape, Precision::new(dtype, DType::BF16)) / 1e3
        };
        let ms = measured
            .batches()
            .into_iter()
            .map(|rows| (rows, at(rows)))
            .collect();
        Some(Self { gpu, ms, context })
    }
}
