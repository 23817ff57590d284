//! The step of one stage as something to launch: the one piece of code behind every way of launching.

use super::graph::{Captured, captured_so_far};
use super::launch::Address;
use super::ops::Bucket;
use crate::error::Result;
use crate::plan::variants::Variant;
use crate::plan::{Ladders, Op, StepKind};
use crate::telemetry::phases::{Phase, phase};
use cudarc::driver::CudaStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where the step to run is described whenever the kernels run. Both addresses are the same for every step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepAt {
    /// `tg_state *`: slots and pages; the step's tables are at offsets from here.
    pub state: Address,
    /// `tg_step *`
    pub step: Address,
}

/// A range of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    pub address: Address,
    pub bytes: usize,
}

/// All operations of one stage.
pub trait StepProgram: Send {
    /// Enqueues one step of the stage on `stream`, sized by the bucket alone: everything that differs from step to
    /// step the kernels read at `at`. The last stage leaves `tg_sampled` for each sampled row in the step's table.
    ///
    /// Called once a step where the host launches kernel by kernel, and once at start-up where it is captured; so
    /// nothing here may wait, allocate, or leave the stream.
    ///
    /// # Errors
    /// The driver refuses a launch.
    ///
    /// # Safety
    /// `at` holds a step of this kind that fits the bucket whenever the work runs, and until then the program
    /// lives and nothing else runs that uses its memory.
    unsafe fn enqueue(&self, stream: &CudaStream, bucket: Bucket, at: StepAt) -> Result<()>;

    /// As [`Self::enqueue`], telling `mark` each operation of the plan before what it enqueues. A program that knows of no
    /// plan tells it nothing.
    ///
    /// # Errors
    /// The driver refuses a launch; what `mark` gives.
    ///
    /// # Safety
    /// As for [`Self::enqueue`].
    unsafe fn enqueue_marked(
        &self,
        stream: &CudaStream,
        bucket: Bucket,
        at: StepAt,
        _mark: &mut dyn FnMut(Op) -> Result<()>,
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.enqueue(stream, bucket, at) }
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
pub fn buckets(ladders: &Ladders, kind: StepKind, slots: u32) -> impl Iterator<Item = Bucket> {
    ladders.of(kind).iter().map(move |&rows| Bucket {
        kind,
        rows,
        sequences: slots.min(rows),
    })
}

/// A bucket's step as a graph, and what its capture took.
#[derive(Debug)]
pub struct StepGraph {
    pub stage: usize,
    pub bucket: Bucket,
    pub variant: Option<Variant>,
    pub graph: Captured,
    pub capture: Duration,
    /// Where asked for: the first node of each operation, and of what comes after the program (`None`).
    pub marks: Vec<(usize, Option<Op>)>,
}

/// What is captured as one graph.
#[derive(Clone, Copy)]
pub struct StepCapture<'a> {
    pub program: &'a dyn StepProgram,
    pub stage: usize,
    pub bucket: Bucket,
    pub at: StepAt,
    /// Keep which nodes are of which operation.
    pub marked: bool,
}

/// Captures the stage's step of one bucket: what `first` enqueues, then the program, then what `last` does.
///
/// # Errors
/// What the program or the capture gives.
///
/// # Safety
/// As for [`StepProgram::enqueue`], for as long as the graph or anything made of it may run.
pub unsafe fn capture_step(
    stream: &Arc<CudaStream>,
    step: StepCapture<'_>,
    first: impl FnOnce(&CudaStream) -> Result<()>,
    last: impl FnOnce(&CudaStream) -> Result<()>,
) -> Result<StepGraph> {
    let StepCapture {
        program,
        stage,
        bucket,
        at,
        marked,
    } = step;
    let _phase = phase(Phase::Capture);
    let start = Instant::now();
    let mut marks = vec![];
    let graph = Captured::capture(stream, step_name(stage, bucket), |stream| {
        first(stream)?;
        if marked {
            let mut mark = |op| {
                marks.push((captured_so_far(stream)?, Some(op)));
                Ok(())
            };
            // SAFETY: the caller's promise; a captured launch runs when the graph does.
            unsafe { program.enqueue_marked(stream, bucket, at, &mut mark) }?;
            marks.push((captured_so_far(stream)?, None));
        } else {
            // SAFETY: likewise.
            unsafe { program.enqueue(stream, bucket, at) }?;
        }
        last(stream)
    })?;
    Ok(StepGraph {
        stage,
        bucket,
        variant: program.variant(bucket)?,
        graph,
        capture: start.elapsed(),
        marks,
    })
}

/// As in `stage 0 decode 8`.
pub fn step_name(stage: usize, bucket: Bucket) -> String {
    format!("stage {stage} {} {}", bucket.kind.name(), bucket.rows)
}
