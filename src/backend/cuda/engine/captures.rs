//! Captured graphs looked at from all sides, for people who want to know what a GPU is given.

use crate::backend::cuda::catalogue::{CapturedGraph, CapturedNode};
use crate::backend::cuda::driver::audit::Node;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::engine::program::{
    StepCapture, StepGraph, StepProgram, all_buckets, capture_step,
};
use crate::backend::cuda::engine::step_copy::{PLACES, StepCopy};
use crate::error::{Error, Result};
use crate::plan::{BucketSizes, EngineOptions};
use cudarc::driver::{CudaContext, result};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// What has been found so far.
#[derive(Default)]
pub struct Captures {
    pub graphs: Vec<CapturedGraph>,
    /// All stay until the end, as they do in a run.
    execs: Vec<Exec>,
}

impl Captures {
    /// Captures what a host launches: all stages as one graph, for each bucket.
    ///
    /// # Errors
    /// Fails as the start of a run does.
    pub fn of_host(
        &mut self,
        context: &Arc<CudaContext>,
        program: &dyn StepProgram,
        stages: Range<usize>,
        bucket_sizes: &BucketSizes,
        options: &EngineOptions,
    ) -> Result<()> {
        let stream = context
            .new_stream()
            .map_err(|error| failed("making a stream", error))?;
        let copy = StepCopy::new(context, &stream, options, PLACES)?;
        for (_, bucket) in all_buckets(bucket_sizes, options.max_seqs) {
            let step = StepCapture {
                program,
                stage: stages.start,
                bucket,
                at: copy.at(),
            };
            // SAFETY: the graph is never launched.
            let step = unsafe { capture_step(&stream, step, vec![], vec![]) }?;
            self.add(&step, stages.clone(), LaunchedBy::Host, 1)?;
        }
        Ok(())
    }

    /// Looks at one graph, and measures what `copies` executables of it take.
    ///
    /// # Errors
    /// What a run's start would give; [`crate::Error::Runtime`] where the driver does not say.
    pub fn add(
        &mut self,
        step: &StepGraph,
        stages: Range<usize>,
        by: LaunchedBy,
        copies: usize,
    ) -> Result<()> {
        let graph = &step.graph;
        let shapes = graph.shapes()?;
        let nodes = graph.nodes()?;
        if nodes.len() != step.calls.len() {
            return Err(Error::Runtime(format!(
                "a graph of {} calls has {} nodes: this is a bug in tailgraph",
                step.calls.len(),
                nodes.len()
            )));
        }
        let nodes = nodes.into_iter().zip(shapes).zip(&step.calls);
        let nodes = nodes
            .map(|((node, kernel), call)| CapturedNode {
                ops: call.ops.clone(),
                name: match node {
                    Node::Kernel(kernel) => kernel.name,
                    other => other.to_string(),
                },
                kernel,
            })
            .collect();
        let free = || {
            let asked = result::mem_get_info();
            asked.map_err(|error| failed("asking for free memory", error))
        };
        let (free_before, _) = free()?;
        let start = Instant::now();
        let execs = Exec::instantiate_copies(graph, by, copies)?;
        let instantiate = start.elapsed();
        let start = Instant::now();
        execs
            .iter()
            .try_for_each(|exec| exec.upload(graph.stream()))?;
        let uploaded = graph.stream().synchronize();
        uploaded.map_err(|error| failed("uploading a graph", error))?;
        let upload = start.elapsed();
        let (free_after, _) = free()?;
        self.execs.extend(execs);
        self.graphs.push(CapturedGraph {
            stages,
            kind: step.bucket.kind,
            rows: step.bucket.rows,
            variant: step.variant,
            dispatcher: by == LaunchedBy::Device,
            copies: copies as u32,
            nodes,
            edges: graph.dependencies()?,
            capture: step.capture,
            instantiate,
            upload,
            device_bytes: free_before.saturating_sub(free_after) as u64,
        });
        Ok(())
    }
}
