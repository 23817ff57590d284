//! The CPU reference: interprets a plan in f32 with paged keys, values and conv state as the GPU holds them.
//!
//! It is the oracle: a row's bits depend on nothing but the tokens of its own sequence up to it, not on
//! companions, chunks, page size, stages or the machine's vector width. One file per operation family:
//! `norm` (embedding and RMSNorm), `linear`, `conv`, `rope` and `kv` (pages), `attention`, `ffn` (dense,
//! router, experts), `head` (final norm, logits), `sample`; `lanes` is the arithmetic under all dot products,
//! `batch` a checked step, `memory` what a stage allocates, `stage` the interpreter, `timing` its clock. Only the last
//! three and this file know the plan.

mod attention;
mod batch;
#[cfg(test)]
mod check;
mod conv;
mod device;
mod ffn;
mod head;
mod kv;
pub mod lanes;
pub mod linear;
mod memory;
mod norm;
mod rope;
pub mod sample;
mod stage;
mod timing;

pub use device::Cpu;
pub use stage::CpuStage;

use crate::backend::timing::StepClock;
use crate::backend::{RoutingSink, SharedSink, StageBackend};
use crate::error::Result;
use crate::model::Model;
use crate::plan::EngineOptions;
use crate::plan::{Op, Plan};
use crate::sys::abi;
use std::sync::Arc;

/// All stages of a plan.
///
/// # Errors
/// See [`CpuStage::new`].
pub fn stages(
    model: &Arc<Model>,
    plan: &Plan,
    options: &EngineOptions,
    sink: &SharedSink,
) -> Result<Vec<Box<dyn StageBackend>>> {
    prepared(model, plan, options, sink, |_| {})
}

/// The stages, telling `routing` where the rows of every step go.
///
/// # Errors
/// See [`CpuStage::new`].
pub fn stages_with_routing(
    model: &Arc<Model>,
    plan: &Plan,
    options: &EngineOptions,
    sink: &SharedSink,
    routing: &Arc<dyn RoutingSink>,
) -> Result<Vec<Box<dyn StageBackend>>> {
    prepared(model, plan, options, sink, |stage| {
        stage.tell(routing.clone());
    })
}

/// Stages that time their operations, and where the times come out.
pub type TimedStages = (Vec<Box<dyn StageBackend>>, Box<dyn StepClock>);

/// Makes the stages as [`stages`] does; each times its operations.
///
/// # Errors
/// See [`CpuStage::new`].
pub fn timed_stages(
    model: &Arc<Model>,
    plan: &Plan,
    options: &EngineOptions,
    sink: &SharedSink,
) -> Result<TimedStages> {
    let (timers, clock) = timing::timers(plan.stages.iter().map(|stage| &stage.ops[..]));
    let mut timers = timers.into_iter();
    let stages = prepared(model, plan, options, sink, |stage| {
        stage.set_timer(timers.next().expect("one for each stage"));
    })?;
    Ok((stages, Box::new(clock)))
}

fn prepared(
    model: &Arc<Model>,
    plan: &Plan,
    options: &EngineOptions,
    sink: &SharedSink,
    mut prepare: impl FnMut(&mut CpuStage),
) -> Result<Vec<Box<dyn StageBackend>>> {
    model.make()?;
    (0..plan.stages.len())
        .map(|stage| {
            let mut stage = CpuStage::new(model.clone(), plan, stage, options, sink.clone())?;
            prepare(&mut stage);
            Ok(Box::new(stage) as Box<dyn StageBackend>)
        })
        .collect()
}

/// Looks at a stage's memory after each operation: how kernels are compared with the reference.
pub type Probe = Box<dyn FnMut(&Op, &Probed<'_>) + Send>;

/// What an operation left behind.
pub struct Probed<'a> {
    /// The step's rows `[R]`.
    pub rows: &'a [abi::tg_row],
    /// The residual stream `[R, H]`.
    pub h: &'a [f32],
    /// Operand of the next product: `[R, H]`, after attention `[R, heads * head_dim]`. From the final norm on,
    /// only its first rows mean anything outside score steps: one per sampled row.
    pub x: &'a [f32],
    /// Whole buffer that holds, from its start, the newest `[R, 3H]` (ConvInProj), `[R, (heads + 2 kv_heads) D]`
    /// (QkvProj), `[R, I]` (DenseGateUp), `[R, E]` (Router) or `[R K, M]` (ExpertGateUp).
    pub wide: &'a [f32],
    /// The newest routing: experts `[R, K]`, ascending in each row, and their weights.
    pub experts: &'a [u32],
    pub expert_weights: &'a [f32],
}
