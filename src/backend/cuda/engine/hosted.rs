//! The two host-launched ways: the core turns on the host, and one stage of each step it composes is launched from
//! there, kernel by kernel or as one graph.

use crate::backend::LaunchWay;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::ReadyCall;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::engine::program::{
    Residual, Span, StepCapture, StepProgram, buckets, capture_step, step_name,
};
use crate::backend::cuda::engine::step_copy::{PLACES, StepCopy};
use crate::backend::cuda::families::{Bucket, StepAt};
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::cuda::memory::pinned::Pinned;
use crate::backend::{Block, StageBackend, StepView};
use crate::error::{Error, Result};
use crate::plan::{EngineOptions, Ladders, StepKind};
use crate::telemetry::nvtx::{Category, Name, range};
use cudarc::driver::sys::CUevent_flags;
use cudarc::driver::{CudaContext, CudaStream, result};
use std::sync::Arc;
use std::time::Duration;

/// Where a stage stands in its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagePlace {
    pub index: usize,
    /// Of the whole plan.
    pub count: usize,
}

/// One bucket's step, ready to launch.
struct Step {
    bucket: Bucket,
    /// By place of the copy; none: kernel by kernel
    work: Work,
    name: Name,
}

/// What is given to the stream for a step.
enum Work {
    /// Kernel by kernel, over the copy's first place.
    Calls(Vec<ReadyCall>),
    /// By place of the copy.
    Graphs(Vec<Exec>),
}

/// How many graphs a step of this kind has, one for each of the copy's first places; with none it goes kernel by kernel.
fn graphs(way: LaunchWay, kind: StepKind) -> Result<usize> {
    match (way, kind) {
        (LaunchWay::HostKernels, _) => Ok(0),
        // With a step ahead of them, only decode steps are composed.
        (LaunchWay::HostGraphAhead, StepKind::Decode) => Ok(PLACES),
        (LaunchWay::HostGraph | LaunchWay::HostGraphAhead, _) => Ok(1),
        (LaunchWay::DeviceGraph, _) => Err(Error::Usage(
            "--launch device-graph: the GPU launches its steps, expected a way of the host's"
                .into(),
        )),
    }
}

/// A step that only has to be queued.
fn ready(program: &dyn StepProgram, bucket: Bucket, at: StepAt) -> Result<Vec<ReadyCall>> {
    let calls = program.lower(bucket, at)?;
    calls.iter().map(ReadyCall::new).collect()
}

/// Another program's step of a bucket, as a graph.
pub struct OtherStep {
    exec: Exec,
    /// Has what the graph works on.
    _program: Box<dyn StepProgram>,
}

/// What a program carried from step to step before one of them ran.
pub struct Carried {
    /// Where each belongs, and where it is kept.
    parts: Vec<(Span, Buffer)>,
}

/// One stage on a GPU, launched by the host.
pub struct HostLaunched {
    pub(super) stream: Arc<CudaStream>,
    pub(super) copy: StepCopy,
    pub(super) program: Box<dyn StepProgram>,
    /// By kind and bucket.
    steps: [Vec<Step>; 3],
    stage: usize,
    /// Which, where other stages have others.
    gpu: Option<usize>,
    samples: bool,
    /// Of one stage of several: what lies before it and behind it goes through memory of the host.
    between: Option<Between>,
}

/// The residual stream on its way from and to other stages.
struct Between {
    at: Residual,
    staging: Arc<Pinned>,
}

impl HostLaunched {
    /// # Errors
    /// [`Error::Memory`] where there is not enough; what the program, the capture or the driver gives; [`Error::Usage`] for a
    /// way in which the host launches nothing.
    pub fn new(
        context: &Arc<CudaContext>,
        program: Box<dyn StepProgram>,
        stage: StagePlace,
        ladders: &Ladders,
        options: &EngineOptions,
        way: LaunchWay,
    ) -> Result<Self> {
        let refused = |error| failed("making a stream", error);
        let stream = context.new_stream().map_err(refused)?;
        let copy = StepCopy::new(context, &stream, options)?;
        let gpu = (stage.count > 1).then(|| context.ordinal());
        let mut steps = [vec![], vec![], vec![]];
        for kind in StepKind::ALL {
            for bucket in buckets(ladders, kind, options.max_seqs) {
                let graph = |place| {
                    let step = StepCapture {
                        program: program.as_ref(),
                        stage: stage.index,
                        bucket,
                        at: copy.place(place),
                    };
                    // SAFETY: copy and program live in the value made here, which waits for every launch.
                    let step = unsafe { capture_step(&stream, step, vec![], vec![]) }?;
                    Exec::new(&step.graph, LaunchedBy::Host)
                };
                let work = match graphs(way, kind)? {
                    0 => Work::Calls(ready(program.as_ref(), bucket, copy.at())?),
                    places => Work::Graphs((0..places).map(graph).collect::<Result<_>>()?),
                };
                let name = step_name(stage.index, gpu, bucket);
                steps[kind as usize].push(Step {
                    bucket,
                    work,
                    name: Name::of(Category::Step, &name),
                });
            }
        }
        let between = match program.residual().filter(|_| stage.count > 1) {
            Some(at) => {
                let bytes = options.step_tokens as usize * at.hidden * size_of::<f32>();
                let staging = Pinned::new(context, bytes)?;
                Some(Between { at, staging })
            }
            None => None,
        };
        Ok(Self {
            stream,
            copy,
            program,
            steps,
            stage: stage.index,
            gpu,
            samples: stage.index + 1 == stage.count,
            between,
        })
    }
}

impl HostLaunched {
    /// As in traces.
    pub(super) fn name(&self, view: &StepView<'_>) -> Result<Name> {
        Ok(self.step(view)?.name)
    }

    /// The step that the core chose.
    fn step(&self, view: &StepView<'_>) -> Result<&Step> {
        let header = view.header();
        self.steps
            .get(header.kind as usize)
            .and_then(|ladder| ladder.get(header.bucket as usize))
            .ok_or_else(|| {
                Error::Runtime(format!(
                    "step {} is of kind {} and bucket {}, which no ladder has: this is a bug in tailgraph",
                    header.number, header.kind, header.bucket
                ))
            })
    }

    /// # Safety
    /// When the stream comes to it, the step is in this place of the copy, which has a graph if any has; it fits the
    /// bucket, and nobody else runs the program before this stream has been waited for, which is before `self` goes.
    pub(super) unsafe fn launch(&self, view: &StepView<'_>, place: usize) -> Result<()> {
        let step = self.step(view)?;
        // SAFETY: the caller's promise; copy and program live as long as `self`.
        unsafe {
            match &step.work {
                Work::Graphs(graphs) => graphs[place].launch(),
                Work::Calls(calls) => {
                    let at = self.copy.at();
                    debug_assert_eq!(at, self.copy.place(place), "calls are of the first place");
                    self.program.enqueue(&self.stream, step.bucket, at, calls)
                }
            }
        }
    }

    pub(super) fn wait(&self) -> Result<()> {
        let waited = self.stream.synchronize();
        waited.map_err(|error| failed("running a step on the GPU", error))
    }

    /// Room for what the program carries from step to step.
    ///
    /// # Errors
    /// [`Error::Memory`] where there is not enough.
    pub fn room_for_carried(&self) -> Result<Carried> {
        let room = |span: Span| {
            let what = "what steps carry on, kept while one is repeated";
            let kept = Buffer::named(self.stream.context(), what, span.bytes)?;
            Ok((span, kept))
        };
        let parts = self.program.carried().into_iter().map(room);
        Ok(Carried {
            parts: parts.collect::<Result<_>>()?,
        })
    }

    /// Keeps what the next step is to find, before [`StageBackend::run`] runs it.
    ///
    /// # Errors
    /// The driver refuses.
    pub fn keep(&mut self, carried: &mut Carried) -> Result<()> {
        for (span, kept) in &mut carried.parts {
            // SAFETY: both are alive, as long as the span, and nobody else uses either while `self` is borrowed.
            unsafe { copy(kept.at(0), span.address, span.bytes, &self.stream) }?;
        }
        Ok(())
    }

    /// Puts back what the step that [`StageBackend::run`] ran last found, and runs it again: all is as if it had run once,
    /// whatever [`Self::repeat`] did meanwhile.
    ///
    /// # Errors
    /// As [`StageBackend::run`].
    pub fn redo(&mut self, view: &StepView<'_>, carried: &Carried) -> Result<()> {
        self.put_back(carried)?;
        // SAFETY: `run` has sent this step, and `self` is borrowed alone until the wait.
        unsafe { self.launch(view, 0) }?;
        self.wait()
    }

    /// In the stream's order.
    fn put_back(&self, carried: &Carried) -> Result<()> {
        for (span, kept) in &carried.parts {
            // SAFETY: as in `keep`.
            unsafe { copy(span.address, kept.at(0), span.bytes, &self.stream) }?;
        }
        Ok(())
    }

    /// Launches the step that [`StageBackend::run`] ran last once, puts back what it found, launches it `times` more, one right
    /// after the other, and waits for all of them: what a step costs where nobody schedules. The time of these, by the GPU's
    /// clock. Every launch moves on what steps carry, so it is of no use afterwards but by [`Self::redo`]; launched kernel by
    /// kernel, the steps of a row may also overlap in it.
    ///
    /// # Errors
    /// As [`StageBackend::run`].
    pub fn repeat(
        &mut self,
        view: &StepView<'_>,
        carried: &Carried,
        times: u32,
    ) -> Result<Duration> {
        // SAFETY: `run` has sent this step, and `self` is borrowed alone until the wait.
        let launch = || unsafe { self.launch(view, 0) };
        self.in_a_row(times, || self.put_back(carried), launch)
    }

    /// `launch`, `then`, and `launch` so many `times`; the time of these.
    fn in_a_row(
        &self,
        times: u32,
        then: impl FnOnce() -> Result<()>,
        launch: impl Fn() -> Result<()>,
    ) -> Result<Duration> {
        let refused = |error| failed("timing steps on the GPU", error);
        let now = || {
            self.stream
                .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
                .map_err(refused)
        };
        // With something before it the first event waits for no host.
        launch()?;
        then()?;
        let begin = now()?;
        for _ in 0..times {
            launch()?;
        }
        let end = now()?;
        self.wait()?;
        let ms = begin.elapsed_ms(&end).map_err(refused)?;
        Ok(Duration::from_secs_f64(f64::from(ms) / 1e3))
    }

    /// The step that [`StageBackend::run`] ran last, as `program` does it: what another stage would run in its place.
    ///
    /// # Errors
    /// What the program, the capture or the driver gives.
    pub fn other(
        &self,
        view: &StepView<'_>,
        program: impl StepProgram + 'static,
    ) -> Result<OtherStep> {
        let program: Box<dyn StepProgram> = Box::new(program);
        let step = StepCapture {
            program: program.as_ref(),
            stage: self.stage,
            bucket: self.step(view)?.bucket,
            at: self.copy.place(0),
        };
        // SAFETY: the graph is launched by `repeat_other` alone, and the program goes with it.
        let step = unsafe { capture_step(&self.stream, step, vec![], vec![]) }?;
        Ok(OtherStep {
            exec: Exec::new(&step.graph, LaunchedBy::Host)?,
            _program: program,
        })
    }

    /// [`Self::repeat`] with another program's step, which [`Self::other`] of this stage made of the same bucket.
    ///
    /// # Errors
    /// As there.
    pub fn repeat_other(&mut self, step: &OtherStep, times: u32) -> Result<Duration> {
        // SAFETY: as in `repeat`.
        self.in_a_row(times, || Ok(()), || unsafe { step.exec.launch() })
    }
}

/// # Safety
/// There are so many bytes at both places, which are apart, and nobody else uses them until the stream has come by.
unsafe fn copy(to: Address, from: Address, bytes: usize, stream: &CudaStream) -> Result<()> {
    let refused = |error| failed("copying on the GPU", error);
    stream.context().bind_to_thread().map_err(refused)?;
    // SAFETY: the caller's promise.
    unsafe { result::memcpy_dtod_async(to, from, bytes, stream.cu_stream()) }.map_err(refused)
}

impl HostLaunched {
    fn run_step(&mut self, view: &StepView<'_>) -> Result<()> {
        let _range = range(self.name(view)?);
        self.copy.send_step(&self.stream, view)?;
        self.bring_activations(view)?;
        // SAFETY: the step has been sent, the core chose a bucket that it fits, and `self` is borrowed alone until the
        // wait below.
        unsafe { self.launch(view, 0) }?;
        match self.samples {
            true => self.copy.take_samples(&self.stream, 0, view),
            false => self.leave_activations(view),
        }
    }

    /// Queues the copy of what the stage before has left, where there is one.
    fn bring_activations(&self, view: &StepView<'_>) -> Result<()> {
        let Some(Between { at, staging }) = self.between.as_ref().filter(|_| self.stage > 0) else {
            return Ok(());
        };
        let from = &view.activations()?[..view.rows().len() * at.hidden];
        let bytes = size_of_val(from);
        let refused = |error| failed("copying activations to the GPU", error);
        self.stream.context().bind_to_thread().map_err(refused)?;
        // SAFETY: the staging memory holds a whole step, and is this stage's; the copies of the last step have run.
        unsafe {
            let to = staging.start().as_ptr();
            to.copy_from_nonoverlapping(from.as_ptr().cast(), bytes);
            let staged = std::slice::from_raw_parts(to, bytes);
            result::memcpy_htod_async(at.h, staged, self.stream.cu_stream())
        }
        .map_err(refused)
    }

    /// Waits for the step, and leaves its residual stream for the stage behind, where there is one.
    fn leave_activations(&self, view: &StepView<'_>) -> Result<()> {
        let Some(Between { at, staging }) = &self.between else {
            return self.wait();
        };
        let floats = view.rows().len() * at.hidden;
        let refused = |error| failed("copying activations from the GPU", error);
        self.stream.context().bind_to_thread().map_err(refused)?;
        // SAFETY: the staging memory holds a whole step, is aligned to pages, and is this stage's; it is read behind the wait.
        unsafe {
            let to = staging.start().as_ptr();
            let bytes = std::slice::from_raw_parts_mut(to, floats * size_of::<f32>());
            result::memcpy_dtoh_async(bytes, at.h, self.stream.cu_stream()).map_err(refused)?;
            self.wait()?;
            view.leave_activations(std::slice::from_raw_parts(to.cast::<f32>(), floats));
        }
        Ok(())
    }

    /// What a step came to, with the step named where it failed.
    pub(super) fn named(&self, view: &StepView<'_>, outcome: Result<()>) -> Result<()> {
        let Err(error) = outcome else {
            return Ok(());
        };
        let step = step_name(self.stage, self.gpu, self.step(view)?.bucket);
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

    fn row_floats(&self) -> usize {
        let between = self.between.as_ref().filter(|_| !self.samples);
        between.map_or(0, |between| between.at.hidden)
    }
}
