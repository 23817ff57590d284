//! The ways in which the host launches: the core turns there, and one stage of each step it composes is launched from
//! there, kernel by kernel or as one graph.

mod repeat;

pub use repeat::{Carried, OtherStep};

use crate::backend::LaunchWay;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::ReadyCall;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::engine::instantiate::instantiate;
use crate::backend::cuda::engine::program::{
    StepCapture, StepProgram, all_buckets, capture_step, keep_behind_the_step_ahead, step_name,
};
use crate::backend::cuda::engine::step_copy::{PLACES, StepCopy};
use crate::backend::cuda::engine::waiter::{Wait, Waiter};
use crate::backend::cuda::families::{Bucket, StepAt};
use crate::backend::{StageBackend, StepView};
use crate::error::{Error, Result};
use crate::plan::{BucketSizes, EngineOptions, StepKind};
use crate::telemetry::nvtx::{Category, Name, range};
use crate::telemetry::phases::{Phase, phase};
use cudarc::driver::{CudaContext, CudaStream};
use std::sync::Arc;

/// Where a stage stands in its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagePlace {
    pub index: usize,
    /// Stages of the whole plan.
    pub count: usize,
}

/// The places that steps are captured for.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    /// By place: where the residual stream lies; `None`: where the program has it.
    pub h: &'a [Option<Address>],
    /// Steps of every kind in all of them; else decode steps, and others in the first alone.
    pub of_every_kind: bool,
}

/// One bucket's step, ready to launch.
struct Step {
    bucket: Bucket,
    /// By place.
    work: Vec<Work>,
    name: Name,
}

/// What is given to the stream for a step.
enum Work {
    /// Kernel by kernel.
    Calls(Vec<ReadyCall>),
    Graph(Exec),
}

/// A step that only has to be queued.
fn ready(program: &dyn StepProgram, bucket: Bucket, at: StepAt) -> Result<Vec<ReadyCall>> {
    let mut calls = program.lower(bucket, at)?;
    keep_behind_the_step_ahead(&mut calls);
    calls.iter().map(ReadyCall::new).collect()
}

/// One stage on a GPU, launched by the host.
pub struct HostLaunched {
    pub(super) stream: Arc<CudaStream>,
    pub(super) waiter: Waiter,
    pub(super) copy: StepCopy,
    pub(super) program: Box<dyn StepProgram>,
    /// By kind and bucket.
    steps: [Vec<Step>; 3],
    stage: usize,
    samples: bool,
    /// By place: where the residual stream lies.
    h: Vec<Option<Address>>,
}

impl HostLaunched {
    /// # Errors
    /// [`Error::Memory`] where there is not enough; what the program, the capture or the driver gives; [`Error::Usage`] for a
    /// way in which the host launches nothing.
    pub fn new(
        context: &Arc<CudaContext>,
        program: Box<dyn StepProgram>,
        stage: StagePlace,
        bucket_sizes: &BucketSizes,
        options: &EngineOptions,
        way: LaunchWay,
    ) -> Result<Self> {
        let h: &[_] = match way {
            LaunchWay::HostGraphAhead => &[None; PLACES],
            _ => &[None],
        };
        let places = Places {
            h,
            of_every_kind: false,
        };
        Self::over(
            context,
            program,
            stage,
            (bucket_sizes, options),
            way,
            places,
        )
    }

    /// Makes what [`Self::new`] makes, over these places.
    pub(super) fn over(
        context: &Arc<CudaContext>,
        program: Box<dyn StepProgram>,
        stage: StagePlace,
        (bucket_sizes, options): (&BucketSizes, &EngineOptions),
        way: LaunchWay,
        places: Places<'_>,
    ) -> Result<Self> {
        if way.is_device() {
            return Err(Error::Usage(format!(
                "`launch` {}: the GPU launches its steps, expected a way of the host's",
                way.name()
            )));
        }
        let waiter = Waiter::new(context, Wait::of(way));
        let stream = context.new_stream();
        let stream = stream.map_err(|error| failed("making a stream", error))?;
        let count = places.h.len();
        let gpu = (stage.count > 1).then(|| context.ordinal());
        let mut hosted = Self {
            copy: StepCopy::new(context, &stream, options, count.max(PLACES))?,
            waiter: waiter.map_err(|error| failed("making an event", error))?,
            stream,
            program,
            steps: [vec![], vec![], vec![]],
            stage: stage.index,
            samples: stage.index + 1 == stage.count,
            h: places.h.to_vec(),
        };
        let places = |bucket: Bucket| {
            let everywhere = places.of_every_kind || bucket.kind == StepKind::Decode;
            0..if everywhere { count } else { 1 }
        };
        let buckets: Vec<_> = all_buckets(bucket_sizes, options.max_seqs)
            .map(|(_, bucket)| bucket)
            .collect();
        let each = buckets
            .iter()
            .flat_map(|&bucket| places(bucket).map(move |place| (bucket, place)));
        let mut work = hosted.work(each, way)?.into_iter();
        for &bucket in &buckets {
            hosted.steps[bucket.kind as usize].push(Step {
                bucket,
                work: work.by_ref().take(places(bucket).len()).collect(),
                name: Name::of(Category::Step, &step_name(stage.index, gpu, bucket)),
            });
        }
        Ok(hosted)
    }

    /// Where kernels find the step of a place.
    fn at(&self, place: usize) -> StepAt {
        StepAt {
            h: self.h[place],
            ..self.copy.place(place)
        }
    }

    /// What steps of these buckets in these places are launched as.
    fn work(
        &self,
        steps: impl Iterator<Item = (Bucket, usize)>,
        way: LaunchWay,
    ) -> Result<Vec<Work>> {
        let program = self.program.as_ref();
        if way == LaunchWay::HostKernels {
            let calls = |(bucket, place)| ready(program, bucket, self.at(place)).map(Work::Calls);
            return steps.map(calls).collect();
        }
        let graphs = steps.map(|(bucket, place)| {
            let step = StepCapture {
                program,
                stage: self.stage,
                bucket,
                at: self.at(place),
            };
            // SAFETY: copy and program are in `self`, which waits for every launch.
            let step = unsafe { capture_step(&self.stream, step, vec![], vec![]) };
            step.map(|step| step.graph)
        });
        let _phase = phase(Phase::Graphs);
        let execs = instantiate(self.stream.context(), LaunchedBy::Host, 1, graphs)?;
        Ok(execs.into_iter().flatten().map(Work::Graph).collect())
    }
}

impl HostLaunched {
    /// The step's name in traces.
    pub(super) fn name(&self, view: &StepView<'_>) -> Result<Name> {
        Ok(self.step(view)?.name)
    }

    /// The step that the core chose.
    fn step(&self, view: &StepView<'_>) -> Result<&Step> {
        let header = view.header();
        self.steps
            .get(header.kind as usize)
            .and_then(|sizes| sizes.get(header.bucket as usize))
            .ok_or_else(|| {
                Error::Runtime(format!(
                    "step {} is of kind {} and bucket {}, which is none of the bucket sizes: this is a bug in tailgraph",
                    header.number, header.kind, header.bucket
                ))
            })
    }

    /// # Safety
    /// When the stream comes to it, the step is in this place of the copy, which steps of its kind were captured for; it fits
    /// the bucket, and nobody else runs the program before this stream has been waited for, which is before `self` goes.
    pub(super) unsafe fn launch(&self, view: &StepView<'_>, place: usize) -> Result<()> {
        let step = self.step(view)?;
        // SAFETY: the caller's promise; copy and program live as long as `self`.
        unsafe {
            match &step.work[place] {
                Work::Graph(graph) => graph.launch(),
                Work::Calls(calls) => {
                    let at = self.at(place);
                    self.program.enqueue(&self.stream, step.bucket, at, calls)
                }
            }
        }
    }

    pub(super) fn wait(&self) -> Result<()> {
        let waited = self.waiter.wait(&self.stream);
        waited.map_err(|error| failed("running a step on the GPU", error))
    }
}

impl HostLaunched {
    fn run_step(&mut self, view: &StepView<'_>) -> Result<()> {
        let _range = range(self.name(view)?);
        self.copy.send_step(&self.stream, 0, view)?;
        // SAFETY: the step has been sent, the core chose a bucket that it fits, and `self` is borrowed alone until the
        // wait below.
        unsafe { self.launch(view, 0) }?;
        if self.samples {
            (self.copy).take_samples((&self.stream, &self.waiter), 0, view)
        } else {
            self.wait()
        }
    }

    /// What a step came to, with the step named where it failed.
    pub(super) fn named<T>(&self, view: &StepView<'_>, outcome: Result<T>) -> Result<T> {
        let error = match outcome {
            Ok(value) => return Ok(value),
            Err(error) => error,
        };
        let step = step_name(self.stage, None, self.step(view)?.bucket);
        let number = view.header().number;
        Err(Error::Runtime(format!("step {number} ({step}): {error}")))
    }
}

impl StageBackend for HostLaunched {
    fn run(&mut self, view: &StepView<'_>) -> Result<()> {
        let outcome = self.run_step(view);
        self.named(view, outcome)?;
        self.program.check()
    }
}
