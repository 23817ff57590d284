//! The step of one stage as something to launch: the one piece of code behind every way of launching.

use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::{KernelCall, ReadyCall, parts};
use crate::backend::cuda::driver::graph::Captured;
use crate::backend::cuda::families::{Bucket, StepAt};
use crate::backend::cuda::tuning::variants::Variant;
use crate::backend::timing::Part;
use crate::error::Result;
use crate::plan::{BucketSizes, StepKind};
use crate::telemetry::nvtx::{Category, NAME_NODES, Name, mark};
use crate::telemetry::phases::{Phase, phase};
use cudarc::driver::CudaStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A range of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub address: Address,
    pub bytes: usize,
}

/// The residual stream between stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Residual {
    /// f32 `[R, hidden]`
    pub h: Address,
    pub hidden: usize,
}

/// All operations of one stage.
pub trait StepProgram: Send {
    /// The calls of one step of the stage, sized by the bucket alone: everything that differs from step to step the kernels
    /// read at `at`, where a step of this kind lies that fits the bucket whenever the calls run. The last stage leaves
    /// `tg_sampled` for each sampled row in the step's table.
    ///
    /// Whoever runs the calls sees to it that the program lives until they have run, and that nothing else runs meanwhile that
    /// uses its memory.
    ///
    /// # Errors
    /// The plan asks for what cannot be served.
    fn lower(&self, bucket: Bucket, at: StepAt) -> Result<Vec<KernelCall>>;

    /// Queues a step's calls on `stream`: for a host that launches kernel by kernel. A program that has to look between two of
    /// them does it here.
    ///
    /// # Errors
    /// The driver refuses a launch.
    ///
    /// # Safety
    /// `calls` are of [`Self::lower`], for this bucket and place, and what it says holds.
    unsafe fn enqueue(
        &self,
        stream: &CudaStream,
        _bucket: Bucket,
        _at: StepAt,
        calls: &[ReadyCall],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        calls
            .iter()
            .try_for_each(|call| unsafe { call.launch(stream) })
    }

    /// What serves a bucket; none of a program that knows of no plan.
    ///
    /// # Errors
    /// The plan asks for what cannot be served.
    fn variant(&self, _bucket: Bucket) -> Result<Option<Variant>> {
        Ok(None)
    }

    /// What a step finds as the one before left it, and moves on. Where it is put back, the step may run again and does the
    /// same.
    fn carried(&self) -> Vec<Span> {
        vec![]
    }

    /// Where a stage behind another finds the residual stream, and one before another leaves it; none of a program that knows
    /// of no plan.
    fn residual(&self) -> Option<Residual> {
        None
    }

    /// Whether what the program does on the host beside its steps (handing out logits) went well. Asked after each
    /// step where somebody waits for it, and now and then elsewhere.
    ///
    /// # Errors
    /// What went wrong.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// The buckets of one kind, in order: what `outcome.bucket` counts.
pub fn buckets(
    bucket_sizes: &BucketSizes,
    kind: StepKind,
    slots: u32,
) -> impl Iterator<Item = Bucket> {
    bucket_sizes.of(kind).iter().map(move |&rows| Bucket {
        kind,
        rows,
        sequences: slots.min(rows),
    })
}

/// The buckets of all kinds, in order, each with its place among those of its kind.
pub fn all_buckets(
    bucket_sizes: &BucketSizes,
    slots: u32,
) -> impl Iterator<Item = (usize, Bucket)> {
    StepKind::ALL
        .into_iter()
        .flat_map(move |kind| buckets(bucket_sizes, kind, slots).enumerate())
}

/// A bucket's step as a graph, and what its capture took.
#[derive(Debug)]
pub struct StepGraph {
    pub stage: usize,
    pub bucket: Bucket,
    pub variant: Option<Variant>,
    pub graph: Captured,
    /// A node each, in order.
    pub calls: Vec<KernelCall>,
    pub capture: Duration,
}

/// What is captured as one graph.
#[derive(Clone, Copy)]
pub struct StepCapture<'a> {
    pub program: &'a dyn StepProgram,
    pub stage: usize,
    pub bucket: Bucket,
    pub at: StepAt,
}

/// Captures the stage's step of one bucket: the calls of `first`, then the program's, then those of `last`.
///
/// # Errors
/// What the program or the capture gives.
///
/// # Safety
/// The caller keeps the promises of [`StepProgram::enqueue`] for as long as the graph or anything made of it may run.
pub unsafe fn capture_step(
    stream: &Arc<CudaStream>,
    step: StepCapture<'_>,
    first: Vec<KernelCall>,
    last: Vec<KernelCall>,
) -> Result<StepGraph> {
    let StepCapture {
        program,
        stage,
        bucket,
        at,
    } = step;
    let _phase = phase(Phase::Capture);
    let start = Instant::now();
    let mut calls = first;
    calls.extend(program.lower(bucket, at)?);
    calls.extend(last);
    keep_behind_the_step_ahead(&mut calls);
    // SAFETY: the caller's promise; a captured launch runs when the graph does.
    let graph = unsafe { capture_calls(stream, step_name(stage, None, bucket), &calls) }?;
    Ok(StepGraph {
        stage,
        bucket,
        variant: program.variant(bucket)?,
        graph,
        calls,
        capture: start.elapsed(),
    })
}

/// Has a step's first kernel start once all ahead of it on the stream has ended. Kernels behind it may start as early as they
/// like: before they wait, they read what the step before has left, such as its keys and values (kernels/common/pdl.cuh).
pub fn keep_behind_the_step_ahead(calls: &mut [KernelCall]) {
    if let Some(first) = calls.first_mut() {
        first.launch.pdl = false;
    }
}

/// Captures calls as one graph.
///
/// # Errors
/// What the capture gives.
///
/// # Safety
/// What the calls touch is there whenever the graph or anything made of it runs.
pub unsafe fn capture_calls(
    stream: &Arc<CudaStream>,
    name: impl Into<String>,
    calls: &[KernelCall],
) -> Result<Captured> {
    let name = name.into();
    let marks = marks(&name, calls);
    Captured::capture(stream, name, |stream| {
        for (index, call) in calls.iter().enumerate() {
            if let Some(&node) = marks.get(index) {
                mark(node);
            }
            // SAFETY: the caller's promise.
            unsafe { call.kernel.launch(stream, call.launch, &call.arguments) }?;
        }
        Ok(())
    })
}

/// The name of each call's node, as in `node of stage 0 decode 8: layer 5 norm + router`, where somebody asks for them.
fn marks(graph: &str, calls: &[KernelCall]) -> Vec<Name> {
    if std::env::var_os(NAME_NODES).is_none() {
        return vec![];
    }
    let name = |part: &Part| {
        let layer = part.ops.first().and_then(|op| op.layer);
        let layer = layer.map_or(String::new(), |layer| format!("layer {layer} "));
        let text = format!("node of {graph}: {layer}{}", part.operation());
        Name::of(Category::Start, &text)
    };
    parts(calls).iter().map(name).collect()
}

/// The step's name in messages: `stage 0 decode 8`, or `stage 1 on cuda:1: decode 8` where the stage has a GPU of its own, `gpu`.
pub fn step_name(stage: usize, gpu: Option<usize>, bucket: Bucket) -> String {
    let gpu = gpu.map_or(String::new(), |gpu| format!(" on cuda:{gpu}:"));
    format!("stage {stage}{gpu} {} {}", bucket.kind.name(), bucket.rows)
}
