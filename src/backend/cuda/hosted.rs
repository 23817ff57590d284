//! The host-launched ways: the core turns on the host, and one stage of each step it composes is launched from there,
//! kernel by kernel or as one graph.
//!
//! With [`HostLaunch::GraphAhead`] the host does not wait for a step before it launches the next, wherever the core
//! composes that one early: a decode step of the very sequences that are running, none of which can end with the step
//! ahead (no stop ids, and new tokens left), while no prompt has rows to come. Each place of the mirror has graphs of
//! its own, steps go over on a stream beside the graphs' and samples come back on another, so between two graphs the
//! GPU finds nothing but the second one. A step that brings prompts in, lets a sequence end, or could, is waited for.

use super::exec::{Exec, LaunchedBy};
use super::mirror::{Mirror, PLACES};
use super::module::failed;
use super::ops::Bucket;
use super::program::{StepProgram, buckets, capture_step, step_name};
use crate::backend::{RunsAhead, StageBackend, StepView};
use crate::error::{Error, Result};
use crate::plan::{EngineOptions, Ladders, StepKind};
use crate::telemetry::nvtx::{Category, Name, range};
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use std::collections::VecDeque;
use std::ffi::CString;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where a stage stands in its plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagePlace {
    pub index: usize,
    /// Of the whole plan.
    pub count: usize,
}

/// How the host launches a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostLaunch {
    Kernels,
    Graph,
    /// Graphs, and the next before the last is through: for a backend that is the whole model.
    GraphAhead,
}

/// One bucket's step, ready to launch.
struct Step {
    bucket: Bucket,
    /// By place of the mirror; none: kernel by kernel
    graphs: Vec<Exec>,
    name: Name,
}

/// What running ahead takes.
struct Ahead {
    /// Steps go over here,
    up: Arc<CudaStream>,
    /// ... and samples come back here, so that neither stands between two graphs.
    down: Arc<CudaStream>,
    /// By place: the step has gone over.
    sent: [CudaEvent; PLACES],
    /// By place: the step is through.
    through: [CudaEvent; PLACES],
    /// Places of the steps that are started and not finished.
    started: VecDeque<usize>,
}

impl Ahead {
    fn new(context: &Arc<CudaContext>) -> Result<Self> {
        let refused = |error| failed("making streams and events", error);
        let event = || context.new_event(None).map_err(refused);
        Ok(Self {
            up: context.new_stream().map_err(refused)?,
            down: context.new_stream().map_err(refused)?,
            sent: [event()?, event()?],
            through: [event()?, event()?],
            started: VecDeque::new(),
        })
    }
}

/// One stage on a GPU, launched by the host.
pub struct HostLaunched {
    stream: Arc<CudaStream>,
    mirror: Mirror,
    program: Box<dyn StepProgram>,
    /// By kind and bucket.
    steps: [Vec<Step>; 3],
    samples: bool,
    ahead: Option<Ahead>,
}

impl HostLaunched {
    /// # Errors
    /// [`Error::Memory`] where there is not enough; what the program, the capture or the driver gives.
    pub fn new(
        context: &Arc<CudaContext>,
        program: Box<dyn StepProgram>,
        stage: StagePlace,
        ladders: &Ladders,
        options: &EngineOptions,
        launch: HostLaunch,
    ) -> Result<Self> {
        let refused = |error| failed("making a stream", error);
        let stream = context.new_stream().map_err(refused)?;
        let mirror = Mirror::new(context, &stream, options)?;
        let mut steps = [vec![], vec![], vec![]];
        for kind in StepKind::ALL {
            for bucket in buckets(ladders, kind, options.max_seqs) {
                let places = match (launch, kind) {
                    (HostLaunch::Kernels, _) => 0,
                    (HostLaunch::GraphAhead, StepKind::Decode) => PLACES,
                    (HostLaunch::GraphAhead | HostLaunch::Graph, _) => 1,
                };
                let mut graphs = Vec::with_capacity(places);
                for place in 0..places {
                    let nothing = |_: &CudaStream| Ok(());
                    // SAFETY: mirror and program live in the value made here, which waits for every launch.
                    let step = unsafe {
                        let (program, at) = (program.as_ref(), mirror.place(place));
                        capture_step(&stream, program, stage.index, bucket, at, nothing, nothing)
                    }?;
                    graphs.push(Exec::new(&step.graph, LaunchedBy::Host)?);
                }
                let name = CString::new(step_name(stage.index, bucket))
                    .map_err(|error| Error::Runtime(error.to_string()))?;
                steps[kind as usize].push(Step {
                    bucket,
                    graphs,
                    name: Name::new(Category::Step, &name),
                });
            }
        }
        let ahead = match launch {
            HostLaunch::GraphAhead if stage.count == 1 => Some(Ahead::new(context)?),
            HostLaunch::GraphAhead => {
                return Err(Error::Runtime(format!(
                    "stage {} of {} cannot run ahead: expected one stage",
                    stage.index, stage.count
                )));
            }
            HostLaunch::Kernels | HostLaunch::Graph => None,
        };
        Ok(Self {
            stream,
            mirror,
            program,
            steps,
            samples: stage.index + 1 == stage.count,
            ahead,
        })
    }
}

impl HostLaunched {
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
    /// The step is in this place of the mirror, or will be when this stream comes to it, fits the bucket, and nobody
    /// else runs the program before this stream has been waited for.
    unsafe fn launch(&self, step: &Step, place: usize) -> Result<()> {
        // SAFETY: the caller's promise; mirror and program live as long as `self`, which waits for every launch.
        unsafe {
            match step.graphs.get(place) {
                Some(graph) => graph.launch(),
                None => self
                    .program
                    .enqueue(&self.stream, step.bucket, self.mirror.place(place)),
            }
        }
    }

    fn wait(&self) -> Result<()> {
        let waited = self.stream.synchronize();
        waited.map_err(|error| failed("running a step on the GPU", error))
    }

    /// Launches the step that [`StageBackend::run`] ran last `times` more, one right after the other, and returns how
    /// long all of them took: what a step costs where nobody schedules. The sequences' state is of no use afterwards,
    /// since every launch advances it.
    ///
    /// # Errors
    /// As [`StageBackend::run`].
    pub fn repeat(&mut self, view: &StepView<'_>, times: u32) -> Result<Duration> {
        let step = self.step(view)?;
        let start = Instant::now();
        for _ in 0..times {
            // SAFETY: `run` has sent this step, and `self` is borrowed alone until the wait.
            unsafe { self.launch(step, 0) }?;
        }
        self.wait()?;
        Ok(start.elapsed())
    }
}

impl StageBackend for HostLaunched {
    fn run(&mut self, view: &StepView<'_>) -> Result<()> {
        let _range = range(self.step(view)?.name);
        self.mirror.send_step(&self.stream, view)?;
        // SAFETY: the step has been sent, the core chose a bucket that it fits, and `self` is borrowed alone until the
        // wait below.
        unsafe { self.launch(self.step(view)?, 0) }?;
        match self.samples {
            true => self.mirror.take_samples(&self.stream, 0, view)?,
            false => self.wait()?,
        }
        self.program.check()
    }

    fn ahead(&mut self) -> Option<&mut dyn RunsAhead> {
        match self.ahead {
            Some(_) => Some(self),
            None => None,
        }
    }
}

impl RunsAhead for HostLaunched {
    fn start(&mut self, view: &StepView<'_>) -> Result<()> {
        let refused = |error| failed("ordering a step behind another", error);
        let _range = range(self.step(view)?.name);
        let Some(ahead) = &mut self.ahead else {
            return Err(Error::Runtime(
                "started a step of a backend that waits".into(),
            ));
        };
        let place = match ahead.started.front() {
            None => {
                self.mirror.send_step(&self.stream, view)?;
                0
            }
            Some(other) => {
                let place = 1 - other;
                self.mirror.send_ahead(&ahead.up, place, view)?;
                ahead.sent[place].record(&ahead.up).map_err(refused)?;
                self.stream.wait(&ahead.sent[place]).map_err(refused)?;
                place
            }
        };
        ahead.started.push_back(place);
        let step = self.step(view)?;
        assert!(place < step.graphs.len(), "only decode steps run ahead");
        // SAFETY: the stream comes to the graph once the step has gone over, and to nothing beside it; the core chose a
        // bucket that it fits; `finish` or the drop waits for it.
        unsafe { self.launch(step, place) }?;
        match &self.ahead {
            Some(ahead) => ahead.through[place].record(&self.stream).map_err(refused),
            None => Ok(()),
        }
    }

    fn finish(&mut self, view: &StepView<'_>) -> Result<()> {
        let refused = |error| failed("waiting for a step on the GPU", error);
        let Some((ahead, place)) = self
            .ahead
            .as_mut()
            .and_then(|ahead| ahead.started.pop_front().map(|place| (ahead, place)))
        else {
            return Err(Error::Runtime(
                "finished a step that was not started".into(),
            ));
        };
        // The graphs' own stream, where it holds no other step, has nothing to be ordered behind.
        let stream = match ahead.started.is_empty() {
            true => &self.stream,
            false => {
                let through = &ahead.through[place];
                ahead.down.wait(through).map_err(refused)?;
                &ahead.down
            }
        };
        self.mirror.take_samples(stream, place, view)?;
        self.program.check()
    }
}

impl Drop for HostLaunched {
    fn drop(&mut self) {
        // Steps may have been started that nobody waits for any more, and they use what goes with `self`. An error
        // says that the device is lost, and nothing runs there.
        let _ = self.wait();
    }
}
