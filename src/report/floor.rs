//! The roofline of measured steps whose file has none, from the plan of their model.

use super::steps::{Roofline, Steps, What};
use super::svg::figure;
use crate::model::{DType, ModelSource};
use crate::plan::gpu::GPUS;
use crate::plan::{GraphFile, Limits, Plan, Precision, StepKind, StepShape};
use std::sync::Arc;

/// The least time that the plan's operations take on the device; `None` where the model or the GPU is not known here.
pub fn roofline(steps: &Steps) -> Option<Roofline> {
    let What::Decode {
        model,
        dtype,
        prompt_tokens,
        new_tokens,
    } = &steps.what
    else {
        return None;
    };
    let gpu = GPUS.into_iter().find(|gpu| {
        let name = gpu.title.split(' ').next().unwrap_or(gpu.title);
        steps.device.contains(name)
    })?;
    let dtype = match dtype.as_str() {
        "f32" => DType::F32,
        "bf16" => DType::BF16,
        "f16" => DType::F16,
        _ => return None,
    };
    let (config, _) = ModelSource::parse(model).ok()?.config().ok()?;
    let plan: Plan = GraphFile::open(None)
        .ok()?
        .plan(Arc::new(config), &Limits::default())
        .ok()?;
    // Half of the new tokens are there in the middle of a run.
    let context = prompt_tokens + new_tokens / 2;
    let at = |rows: u32| {
        let shape = StepShape {
            kind: StepKind::Decode,
            rows,
            context,
        };
        gpu.step_us(&plan, &shape, Precision::new(dtype, DType::BF16)) / 1e3
    };
    Some(Roofline {
        ms: steps
            .batches()
            .into_iter()
            .map(|rows| (rows, at(rows)))
            .collect(),
        note: format!(
            "Roofline: for each operation of the plan the longer of its bytes at {} TB/s and its FLOPs at the peak rate, one after the other, for sequences of {context} tokens. The rates: {}. It takes for granted that experts are chosen evenly; launches and waits are not in it.",
            figure(gpu.bytes_per_s / 1e12),
            gpu.source
        ),
    })
}
