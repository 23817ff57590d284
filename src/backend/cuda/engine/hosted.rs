//! The two host-launched ways: the core turns on the host, and one stage of each step it composes is launched from
//! there, kernel by kernel or as one graph.

use crate::backend::LaunchWay;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::call::ReadyCall;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::engine::program::{
    Span, StepCapture, StepProgram, buckets, capture_step, step_name,
};
use crate::backend::cuda::engine::step_copy::{PLACES, StepCopy};
use crate::backend::cuda::engine::waiter::{Wait, Waiter};
use crate::backend::cuda::families::{Bucket, StepAt};
use crate::backend::cuda::memory::buffer::Buffer;
use crate::backend::{StageBackend, StepView};
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

/// The places that steps are made ready for.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    /// Of each: where its residual stream lies; none: where the program has it.
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
    pub(super) waiter: Waiter,
    pub(super) copy: StepCopy,
    pub(super) program: Box<dyn StepProgram>,
    /// By kind and bucket.
    steps: [Vec<Step>; 3],
    stage: usize,
    samples: bool,
    /// Of each place.
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
        ladders: &Ladders,
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
        Self::over(context, program, stage, (ladders, options), way, places)
    }

    /// As [`Self::new`], over these places.
    pub(super) fn over(
        context: &Arc<CudaContext>,
        program: Box<dyn StepProgram>,
        stage: StagePlace,
        (ladders, options): (&Ladders, &EngineOptions),
        way: LaunchWay,
        places: Places<'_>,
    ) -> Result<Self> {
        if way.is_device() {
            return Err(Error::Usage(format!(
                "--launch {}: the GPU launches its steps, expected a way of the host's",
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
        for kind in StepKind::ALL {
            let count = match places.of_every_kind || kind == StepKind::Decode {
                true => count,
                false => 1,
            };
            for bucket in buckets(ladders, kind, options.max_seqs) {
                let work = (0..count).map(|place| hosted.work(bucket, place, way));
                let work = work.collect::<Result<_>>()?;
                let name = Name::of(Category::Step, &step_name(stage.index, gpu, bucket));
                hosted.steps[kind as usize].push(Step { bucket, work, name });
            }
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

    /// What a bucket's step in a place is launched as.
    fn work(&self, bucket: Bucket, place: usize, way: LaunchWay) -> Result<Work> {
        let (program, at) = (self.program.as_ref(), self.at(place));
        if way == LaunchWay::HostKernels {
            return ready(program, bucket, at).map(Work::Calls);
        }
        let step = StepCapture {
            program,
            stage: self.stage,
            bucket,
            at,
        };
        // SAFETY: copy and program are in `self`, which waits for every launch.
        let step = unsafe { capture_step(&self.stream, step, vec![], vec![]) }?;
        Exec::new(&step.graph, LaunchedBy::Host).map(Work::Graph)
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
    /// When the stream comes to it, the step is in this place of the copy, which steps of its kind were made ready for; it fits
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
            at: self.at(0),
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
        self.copy.send_step(&self.stream, 0, view)?;
        // SAFETY: the step has been sent, the core chose a bucket that it fits, and `self` is borrowed alone until the
        // wait below.
        unsafe { self.launch(view, 0) }?;
        match self.samples {
            true => (self.copy).take_samples((&self.stream, &self.waiter), 0, view),
            false => self.wait(),
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
