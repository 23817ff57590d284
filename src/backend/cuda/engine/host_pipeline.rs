//! Stages on several GPUs, which the host launches: the way that GPUs which hand steps to each other by themselves
//! ([`super::pipeline`]) are measured against.
//!
//! A step is queued on all GPUs at once, and waited for at its end alone. Between two stages its rows go by one copy, from where
//! the one stage left them to where the next one finds them: what orders all this are events. Each place that a step can be in has
//! rows, tables and graphs of its own, so that steps on their way touch nothing of each other's. While other steps are on their
//! way, tables come on a second stream and rows and samples leave on a third, so that the GPU copies while it computes. A step
//! that is alone has nothing to overlap with, so it uses the graphs' stream for all of it and saves the waits between streams.

mod copies;
mod stage;

pub use copies::Route;
pub use stage::host_stage_bytes;

use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::peer;
use crate::backend::cuda::engine::hosted::StagePlace;
use crate::backend::cuda::engine::pipeline::StageProgram;
use crate::backend::{LaunchWay, Overlap, RunsAhead, StageBackend, StepView};
use crate::error::{Error, Result};
use crate::plan::{BucketSizes, EngineOptions};
use crate::telemetry::nvtx::range;
use copies::Copies;
use stage::{Stage, places, step_bytes};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// After a failure, how long the drop waits for GPUs that may wait for each other for ever.
const GIVE_UP: Duration = Duration::from_secs(2);

/// What is chosen about a pipeline that the host launches.
#[derive(Debug, Clone, Copy)]
pub struct HostPipelineSpec {
    /// By kernels or by graphs.
    pub launch: LaunchWay,
    /// Decode steps of the same sequences go behind each other; else steps of different ones fill the stages.
    pub behind: bool,
    pub route: Route,
}

/// A model over several GPUs, launched by the host.
pub struct HostPipeline {
    stages: Vec<Stage>,
    copies: Copies,
    overlap: Overlap,
    hidden: usize,
    /// Oldest first.
    started: VecDeque<Started>,
    /// The stage that the oldest one is in, as far as has been seen.
    at: usize,
    /// A call has failed, so GPUs may wait for work that will never be queued.
    failed: bool,
}

/// A step that is not finished.
#[derive(Debug, Clone, Copy)]
struct Started {
    place: usize,
    samples: usize,
    /// No other step was unfinished when it was started, so all its copies are in the graphs' streams.
    alone: bool,
}

impl HostPipeline {
    /// `stages`: in order, at least two, each on a GPU of its own.
    ///
    /// # Errors
    /// [`Error::Memory`] where there is not enough; [`Error::Usage`] for one stage; what programs, captures or the driver give.
    pub fn new(
        stages: Vec<StageProgram>,
        bucket_sizes: &BucketSizes,
        options: &EngineOptions,
        spec: HostPipelineSpec,
    ) -> Result<Self> {
        let count = stages.len();
        let residual = |stage: &StageProgram| stage.program.residual();
        let residuals: Option<Vec<_>> = stages.iter().map(residual).collect();
        let residuals = residuals.filter(|all| all.len() > 1).ok_or_else(|| {
            Error::Usage(format!("a pipeline of {count} stages: expected at least 2"))
        })?;
        let hidden = residuals[0].hidden;
        let stage = |(index, (stage, residual))| {
            let at = StagePlace { index, count };
            Stage::new(stage, at, residual, (bucket_sizes, options), spec)
        };
        let stages = stages.into_iter().zip(residuals).enumerate();
        let stages: Vec<_> = stages.map(stage).collect::<Result<_>>()?;
        let next = stages.iter().cycle().skip(1);
        for (one, other) in stages
            .iter()
            .zip(next)
            .filter(|_| spec.route == Route::Peer)
        {
            peer::open(&one.gpu.context, &other.gpu.context)?;
            peer::open(&other.gpu.context, &one.gpu.context)?;
        }
        let contexts: Vec<_> = stages.iter().map(|stage| &stage.gpu.context).collect();
        let bytes = step_bytes(options, hidden);
        Ok(Self {
            copies: Copies::new(spec.route, &contexts, places(options, count), bytes)?,
            overlap: if spec.behind {
                Overlap::Behind
            } else {
                Overlap::Beside {
                    stages: count as u32,
                    steps: places(options, count) as u32,
                }
            },
            stages,
            hidden,
            started: VecDeque::new(),
            at: 0,
            failed: false,
        })
    }

    /// Queues all of a stage's part in `step`, which goes to `place`.
    fn queue(&mut self, index: usize, place: usize, step: &StepView<'_>) -> Result<()> {
        let _range = range(self.stages[index].hosted.name(step)?);
        self.send(index, place, step)?;
        self.arrive(index, place, step)?;
        // SAFETY: when the stream comes to it, the step and its rows have come, and all that ran before in this stream is through;
        // the core chose a bucket that it fits, and behind another step a decode bucket; the drop waits for it.
        unsafe { self.stages[index].hosted.launch(step, place) }?;
        self.leave(index, place, step)
    }

    /// Queues the copy of the step's tables to the stage's GPU.
    fn send(&mut self, index: usize, place: usize, step: &StepView<'_>) -> Result<()> {
        let refused = |error| failed("sending a step ahead", error);
        let ahead = self.started.back().copied();
        let behind = self.overlap == Overlap::Behind;
        let stage = &mut self.stages[index];
        // The host writes where the last one is copied from.
        stage.copied.synchronize().map_err(refused)?;
        let Some(ahead) = ahead else {
            let stream = &stage.hosted.stream;
            stage.hosted.copy.send_step(stream, place, step)?;
            return stage.copied.record(stream).map_err(refused);
        };
        if behind {
            stage.hosted.copy.send_ahead(&stage.up, place, step)?;
        } else {
            stage.hosted.copy.send_step(&stage.up, place, step)?;
        }
        stage.copied.record(&stage.up).map_err(refused)?;
        if behind && index == 0 {
            self.feed(ahead)?;
        }
        let stage = &self.stages[index];
        stage.ready[place].record(&stage.up).map_err(refused)?;
        let stream = &stage.hosted.stream;
        stream.wait(&stage.ready[place]).map_err(refused)
    }

    /// What the last stage samples in the step ahead, for the first to go on from.
    fn feed(&self, ahead: Started) -> Result<()> {
        let Started {
            place,
            samples,
            alone,
        } = ahead;
        let (first, last) = (&self.stages[0], &self.stages[self.stages.len() - 1]);
        let (to, _) = first.hosted.copy.samples(place, samples);
        let (from, staged) = last.hosted.copy.samples(place, samples);
        let waits = match &self.copies {
            Copies::Peer => first.up.wait(&last.through[place]),
            // They are staged then.
            Copies::Host(_) => first.up.wait(&last.left[place]),
            // They are sent in a stream that comes behind them.
            Copies::Nccl(_) => Ok(()),
        };
        let by = if alone { &last.hosted.stream } else { &last.on };
        waits.map_err(|error| failed("waiting for samples of another GPU", error))?;
        let from = (&*last.gpu.context, from);
        // SAFETY: tables of so many samples on either side; the step behind reads one of them after this, and nobody writes the
        // other before the step behind has run.
        unsafe { self.copies.feed(from, staged, to, (by, &first.up)) }
    }

    /// Lets the graphs' stream wait for the rows of the stage before.
    fn arrive(&self, index: usize, place: usize, step: &StepView<'_>) -> Result<()> {
        let Some(before) = index.checked_sub(1) else {
            return Ok(());
        };
        if let Copies::Nccl(_) = self.copies {
            // They are received in this stream.
            return Ok(());
        }
        let stage = &self.stages[index];
        let stream = &stage.hosted.stream;
        let waits = stream.wait(&self.stages[before].left[place]);
        waits.map_err(|error| failed("waiting for rows of another GPU", error))?;
        let bytes = self.bytes(step);
        // SAFETY: so many bytes are at both, and nobody else has this place.
        unsafe { (self.copies).arrive((before, place), stage.rows[place], bytes, stream) }
    }

    /// Sends on what the stage leaves.
    fn leave(&mut self, index: usize, place: usize, step: &StepView<'_>) -> Result<()> {
        let refused = |error| failed("handing on what a stage leaves", error);
        let bytes = self.bytes(step);
        let (stages, behind) = self.stages.split_at_mut(index + 1);
        let stage = &mut stages[index];
        let stream = &stage.hosted.stream;
        stage.through[place].record(stream).map_err(refused)?;
        let out = if self.started.is_empty() {
            stream
        } else {
            stage.on.wait(&stage.through[place]).map_err(refused)?;
            &stage.on
        };
        match behind.first() {
            None => stage.hosted.copy.bring_samples(out, place, step)?,
            Some(next) => {
                let from = (&*stage.gpu.context, stage.rows[place]);
                let to = (&*next.gpu.context, next.rows[place]);
                let streams = (&**out, &*next.hosted.stream);
                // SAFETY: so many bytes are at both; the stage is through with them, and the next one waits for them.
                unsafe { self.copies.leave((index, place), from, to, bytes, streams) }?;
            }
        }
        stage.left[place].record(out).map_err(refused)
    }

    /// Bytes of the step's rows between stages.
    fn bytes(&self, step: &StepView<'_>) -> usize {
        step.rows().len() * self.hidden * size_of::<f32>()
    }

    /// Whether what the stage leaves of the step in `place` has left it.
    fn has_left(&mut self, index: usize, place: usize, step: &StepView<'_>) -> Result<bool> {
        let stage = &self.stages[index];
        let left = stage.gpu.context.bind_to_thread();
        let left = left.and_then(|()| stage.left[place].try_is_complete());
        let left = left.map_err(|error| failed("running a step on the GPU", error));
        self.named(index, step, left)
    }

    /// Adds the stage and its GPU to an error.
    fn named<T>(&mut self, index: usize, step: &StepView<'_>, outcome: Result<T>) -> Result<T> {
        self.failed |= outcome.is_err();
        let Stage { gpu, hosted, .. } = &self.stages[index];
        let at = |error| {
            let ordinal = gpu.info.ordinal;
            Error::Runtime(format!("stage {index} on cuda:{ordinal}: {error}"))
        };
        hosted.named(step, outcome.map_err(at))
    }
}

impl StageBackend for HostPipeline {
    fn run(&mut self, step: &StepView<'_>) -> Result<()> {
        self.start(step)?;
        self.finish(step)
    }

    fn ahead(&mut self) -> Option<&mut dyn RunsAhead> {
        Some(self)
    }
}

impl RunsAhead for HostPipeline {
    fn overlap(&self) -> Overlap {
        self.overlap
    }

    fn start(&mut self, step: &StepView<'_>) -> Result<()> {
        // Steps end in the order they begin, so the place behind the newest one's is free.
        let place = self
            .started
            .back()
            .map_or(0, |newest| (newest.place + 1) % self.stages[0].rows.len());
        for index in 0..self.stages.len() {
            let outcome = self.queue(index, place, step);
            self.named(index, step, outcome)?;
        }
        let samples = step.sample_rows().len();
        self.started.push_back(Started {
            place,
            samples,
            alone: self.started.is_empty(),
        });
        Ok(())
    }

    fn stage_of(&mut self, step: &StepView<'_>) -> Result<Option<u32>> {
        let Some(&Started { place, .. }) = self.started.front() else {
            return Ok(None);
        };
        while self.at < self.stages.len() {
            if !self.has_left(self.at, place, step)? {
                // A send ends once it is received, so it may wait for a GPU that is gone: that one is to be named.
                if let Copies::Nccl(_) = self.copies {
                    for later in self.at + 1..self.stages.len() {
                        self.has_left(later, place, step)?;
                    }
                }
                return Ok(Some(self.at as u32));
            }
            self.at += 1;
        }
        Ok(None)
    }

    fn finish(&mut self, step: &StepView<'_>) -> Result<()> {
        while self.stage_of(step)?.is_some() {}
        self.at = 0;
        let (Some(Started { place, .. }), Some(last)) =
            (self.started.pop_front(), self.stages.last())
        else {
            return Err(Error::Runtime(
                "a step is to be finished that was not started: this is a bug in tailgraph".into(),
            ));
        };
        last.hosted.copy.leave_samples(place, step);
        let mut programs = self.stages.iter().map(|stage| &stage.hosted.program);
        programs.try_for_each(|program| program.check())
    }
}

impl HostPipeline {
    /// Waits until nothing runs on any GPU. `false`: given up.
    fn ends(&self) -> bool {
        let mut limit = self.failed.then(|| Instant::now() + GIVE_UP);
        for stream in self.stages.iter().flat_map(Stage::streams) {
            // An error says that the GPU is lost: nothing runs there, and others may wait for it.
            if limit.is_none() && stream.synchronize().is_err() {
                limit = Some(Instant::now() + GIVE_UP);
            }
            while limit.is_some() && copies::runs(stream) {
                if limit.is_some_and(|limit| Instant::now() > limit) {
                    return false;
                }
                std::thread::yield_now();
            }
        }
        true
    }
}

impl Drop for HostPipeline {
    /// Steps may have been started that nobody finishes any more, and they use what goes with `self`.
    fn drop(&mut self) {
        if !self.ends() {
            // Freeing any of it would wait too: it is left to the end of the process.
            std::mem::forget(std::mem::take(&mut self.stages));
            self.copies.forget();
        }
    }
}
