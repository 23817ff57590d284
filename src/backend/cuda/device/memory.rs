//! Sizes of a run on a GPU, and whether both the GPU and its host have room for them.

use crate::backend::LaunchWay;
use crate::backend::cuda::driver::machine;
use crate::backend::cuda::engine::delivery::pinned_bytes;
use crate::backend::cuda::engine::dispatcher_blocks::table_bytes;
use crate::backend::cuda::engine::host_pipeline::host_stage_bytes;
use crate::backend::cuda::engine::pipeline::stage_bytes;
use crate::backend::cuda::engine::step_copy::{PLACES, step_copy_bytes};
use crate::backend::cuda::families::kernels;
use crate::backend::cuda::memory::arena::logits_rows;
use crate::backend::cuda::memory::arithmetic::{DeviceMemory, Overheads};
use crate::backend::cuda::memory::staging::STAGING_BYTES;
use crate::backend::cuda::tuning::gpu::Gpu;
use crate::backend::device::Wanted;
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::model::ModelSource;
use crate::plan::budget::{Available, Budget};
use crate::plan::memory::{MemoryItem, MemoryPlan, Place};
use crate::plan::{EngineOptions, LayerRange, RingCapacities};

/// Sizes of a run on a GPU like `gpu`, which need not be there and has all its memory free; what the host has does not matter.
///
/// # Errors
/// Fails as [`crate::backend::Device::memory`] does.
pub fn on_paper(wanted: &Wanted<'_>, gpu: &Gpu) -> Result<MemoryPlan> {
    let ranges = [LayerRange::whole(&wanted.plan.config)];
    let whole = whole(
        wanted,
        gpu.memory_bytes,
        &format!("an {}'s memory", gpu.title),
    );
    let memory = DeviceMemory {
        budget: match wanted.memory_limit {
            Some(_) => Budget::new(wanted.memory_limit),
            None => whole.clone(),
        },
        whole,
    };
    on_device(wanted, &ranges, LaunchWay::DeviceGraph, &memory)
}

/// A GPU's memory of so many bytes, named so, as far as `--memory-limit` lets a run see it.
fn whole(wanted: &Wanted<'_>, bytes: u64, named: &str) -> Budget {
    match wanted.memory_limit {
        Some(limit) if limit < bytes => Budget::new(Some(limit)),
        _ => Budget {
            bytes,
            source: named.to_owned(),
        },
    }
}

/// Sizes of a run on a GPU that is there, or on several like it, each with one of `ranges`.
pub(super) fn on_gpu(
    wanted: &Wanted<'_>,
    ranges: &[LayerRange],
    way: LaunchWay,
    gpu: &machine::Gpu,
    budget: Budget,
) -> Result<MemoryPlan> {
    let config = &wanted.plan.config;
    kernels::check(config, wanted.precision)?;
    let device = DeviceMemory {
        whole: whole(wanted, gpu.memory_bytes, &gpu.to_string()),
        budget,
    };
    let mut memory = on_device(wanted, ranges, way, &device)?;
    memory.items.extend(staging(wanted.model));
    host_holds(&memory, Available::now().map(|a| a.bytes))?;
    Ok(memory)
}

fn on_device(
    wanted: &Wanted<'_>,
    ranges: &[LayerRange],
    way: LaunchWay,
    memory: &DeviceMemory,
) -> Result<MemoryPlan> {
    let gpus = ranges.len() as u32;
    let overheads = |options: &_| overheads(wanted, gpus, way, options);
    let Wanted {
        plan,
        precision,
        limits,
        ..
    } = *wanted;
    MemoryPlan::on_device((plan, ranges), precision, limits, memory, &overheads)
}

/// What `way` takes on each of so many GPUs beside the model for a run with these sizes, in the words of `doctor`.
fn overheads(
    wanted: &Wanted<'_>,
    gpus: u32,
    way: LaunchWay,
    options: &EngineOptions,
) -> Result<Overheads> {
    let plan = wanted.plan;
    let bucket_sizes = plan.bucket_sizes.reachable(options);
    let (scheduler, pinned, pinned_arithmetic) = match way {
        // On one GPU the copy has room for two steps, whether the host runs ahead or not; on several for each step in flight.
        LaunchWay::Bare
        | LaunchWay::HostKernels
        | LaunchWay::HostGraph
        | LaunchWay::HostGraphEvent
        | LaunchWay::HostGraphBlock
        | LaunchWay::HostGraphAhead => {
            let (device, pinned) = match gpus {
                1 => {
                    let bytes = step_copy_bytes(options, PLACES);
                    (bytes, bytes)
                }
                _ => {
                    let hidden = plan.config.hidden_size;
                    host_stage_bytes(&bucket_sizes, options, hidden, gpus as usize)
                }
            };
            let arithmetic = match gpus {
                1 => "what a step's tables are copied from",
                _ => {
                    "what steps' tables are copied from, and steps between stages where they go through the host"
                }
            };
            let arithmetic = arithmetic.to_owned();
            (device, pinned, arithmetic)
        }
        LaunchWay::DeviceGraph | LaunchWay::DeviceGraphTail => {
            let core = (wanted.core)(&bucket_sizes, options, gpus)?;
            let arithmetic = RingCapacities::new(options).arithmetic();
            let bytes = match gpus {
                1 => table_bytes(core.state),
                _ => stage_bytes(core, options, plan.config.hidden_size),
            };
            (bytes, core.rings, arithmetic)
        }
    };
    let (rows, vocabulary) = (bucket_sizes.largest() as usize, plan.config.vocab_size);
    let lines = logits_rows(rows, options.max_seqs as usize);
    Ok(Overheads {
        scheduler_bytes: scheduler as u64,
        kept_token_bytes: if way.is_device() {
            options.kept_token_bytes()
        } else {
            0
        },
        pinned_bytes: pinned as u64,
        pinned_arithmetic,
        logits_bytes: if wanted.delivers {
            pinned_bytes(lines, vocabulary) as u64
        } else {
            0
        },
        logits_arithmetic: format!(
            "two tiles of {lines} tokens' logits, {vocabulary} each, for `score` and --prompt-logprobs alone"
        ),
    })
}

/// What a checkpoint's weights are copied through. Random ones are made on the GPU.
fn staging(model: &ModelSource) -> Option<MemoryItem> {
    matches!(model, ModelSource::Dir(_)).then(|| MemoryItem {
        name: "staging",
        bytes: STAGING_BYTES as u64,
        arithmetic: "pinned memory of the host until all weights are on the GPU".into(),
        place: Place::Loading,
    })
}

/// Whether the host has what is pinned and what is held while loading, of its `available` bytes.
fn host_holds(memory: &MemoryPlan, available: Option<u64>) -> Result<()> {
    let (pinned, loading) = (memory.pinned_bytes(), memory.loading_bytes());
    match available {
        Some(available) if available < pinned.saturating_add(loading) => {
            Err(Error::Memory(format!(
                "not enough memory on the host: {} pinned for the GPU + {} until the weights are there, {} available; \
                 free memory, or lower `max_context`, `max_seqs` or `step_tokens`",
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
    use crate::plan::cost::Precision;
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
        let precision = Precision::BF16;
        let budget = Budget::new(Some(1 << 30));
        let overheads = |_: &_| {
            Ok(Overheads {
                scheduler_bytes: 0,
                kept_token_bytes: 0,
                pinned_bytes: 3 << 20,
                pinned_arithmetic: String::new(),
                logits_bytes: 0,
                logits_arithmetic: String::new(),
            })
        };
        let device = DeviceMemory {
            whole: budget.clone(),
            budget,
        };
        let whole = [LayerRange::whole(&config)];
        let mut memory =
            MemoryPlan::on_device((&plan, &whole), precision, &limits, &device, &overheads)
                .unwrap();
        host_holds(&memory, Some(3 << 20)).unwrap();
        host_holds(&memory, None).unwrap();
        assert_eq!(staging(&source), None, "random weights");
        memory.items.extend(staging(&ModelSource::Dir("m".into())));
        let message = host_holds(&memory, Some(3 << 20)).unwrap_err().to_string();
        let loading = Bytes(memory.loading_bytes()).to_string();
        assert!(memory.loading_bytes() > 1 << 20, "{loading}");
        for part in ["3.0 MiB pinned", &loading, "3.0 MiB available"] {
            assert!(message.contains(part), "{message} lacks {part}");
        }
    }
}
