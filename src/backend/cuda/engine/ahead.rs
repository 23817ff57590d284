//! The host that runs ahead: it launches a step's graph before the one ahead of it is through.
//!
//! That is where the core composes a step early: a decode step of the very sequences that are running, none of which
//! can end with the step ahead (no stop ids, and new tokens left), while no prompt has rows to come. A step that brings
//! a prompt in, or that ends a sequence or could, is waited for. So the schedule, and every bit, is that of a host that
//! always waits, but for what ends a sequence from outside (cancels, deadlines, logits that are not finite): there the
//! step behind is on its way already, and what it gives for that sequence is dropped.
//!
//! Each place of the copy has graphs of its own; steps go over on a stream beside the graphs', and samples come back
//! on another. So between two graphs the GPU finds nothing but the second one.

use crate::backend::LaunchWay;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::engine::hosted::{HostLaunched, StagePlace};
use crate::backend::cuda::engine::program::StepProgram;
use crate::backend::cuda::engine::step_copy::PLACES;
use crate::backend::{RunsAhead, StageBackend, StepView};
use crate::error::{Error, Result};
use crate::plan::{BucketSizes, EngineOptions};
use crate::telemetry::nvtx::range;
use cudarc::driver::{CudaContext, CudaEvent, CudaStream};
use std::collections::VecDeque;
use std::sync::Arc;

/// A whole model on a GPU, launched by the host as graphs, up to two at a time.
pub struct HostAhead {
    stage: HostLaunched,
    /// Steps are copied to the GPU on this stream while another runs.
    up: Arc<CudaStream>,
    /// Samples are copied back on this stream.
    down: Arc<CudaStream>,
    /// By place: the step has gone over.
    sent: [CudaEvent; PLACES],
    /// By place: the step is through.
    through: [CudaEvent; PLACES],
    /// Places of the steps that are started and not finished.
    started: VecDeque<usize>,
}

impl HostAhead {
    /// # Errors
    /// Fails as [`HostLaunched::new`] does.
    pub fn new(
        context: &Arc<CudaContext>,
        program: Box<dyn StepProgram>,
        bucket_sizes: &BucketSizes,
        options: &EngineOptions,
    ) -> Result<Self> {
        let whole = StagePlace { index: 0, count: 1 };
        let stage = HostLaunched::new(
            context,
            program,
            whole,
            bucket_sizes,
            options,
            LaunchWay::HostGraphAhead,
        )?;
        let refused = |error| failed("making streams and events", error);
        let event = || context.new_event(None).map_err(refused);
        Ok(Self {
            stage,
            up: context.new_stream().map_err(refused)?,
            down: context.new_stream().map_err(refused)?,
            sent: [event()?, event()?],
            through: [event()?, event()?],
            started: VecDeque::new(),
        })
    }
}

impl StageBackend for HostAhead {
    fn run(&mut self, view: &StepView<'_>) -> Result<()> {
        self.start(view)?;
        self.finish(view)
    }

    fn ahead(&mut self) -> Option<&mut dyn RunsAhead> {
        Some(self)
    }
}

impl HostAhead {
    fn start_step(&mut self, view: &StepView<'_>) -> Result<()> {
        let refused = |error| failed("putting a step behind another", error);
        let _range = range(self.stage.name(view)?);
        let place = match self.started.front() {
            None => {
                let stream = &self.stage.stream;
                self.stage.copy.send_step(stream, 0, view)?;
                self.sent[0].record(stream).map_err(refused)?;
                0
            }
            Some(&other) => {
                let place = 1 - other;
                // The host writes page rows into memory that the step ahead is copied from. And an older copy of such a row,
                // which is in another stream, could come last and stay.
                self.sent[other].synchronize().map_err(refused)?;
                self.stage.copy.send_ahead(&self.up, place, view)?;
                let sent = &self.sent[place];
                sent.record(&self.up).map_err(refused)?;
                self.stage.stream.wait(sent).map_err(refused)?;
                place
            }
        };
        // SAFETY: when the stream comes to the graph, the step has gone over and all before it is through; the core
        // chose a bucket that it fits, and behind another step a decode bucket; `finish` or the drop waits for it.
        unsafe { self.stage.launch(view, place) }?;
        self.started.push_back(place);
        let stream = &self.stage.stream;
        self.through[place].record(stream).map_err(refused)
    }

    fn finish_step(&mut self, view: &StepView<'_>) -> Result<()> {
        let Some(place) = self.started.pop_front() else {
            return Err(Error::Runtime(
                "it is to be finished and was not started: this is a bug in tailgraph".into(),
            ));
        };
        // Where the graphs' stream holds no other step there is nothing to be beside.
        let stream = if self.started.is_empty() {
            &self.stage.stream
        } else {
            let through = self.down.wait(&self.through[place]);
            through.map_err(|error| failed("waiting for a step on the GPU", error))?;
            &self.down
        };
        let stream = (&**stream, &self.stage.waiter);
        self.stage.copy.take_samples(stream, place, view)
    }
}

impl RunsAhead for HostAhead {
    fn start(&mut self, view: &StepView<'_>) -> Result<()> {
        let outcome = self.start_step(view);
        self.stage.named(view, outcome)
    }

    fn finish(&mut self, view: &StepView<'_>) -> Result<()> {
        let outcome = self.finish_step(view);
        self.stage.named(view, outcome)?;
        self.stage.program.check()
    }
}

impl Drop for HostAhead {
    fn drop(&mut self) {
        // Steps may have been started that nobody finishes any more, and they use what goes with `self`. An error says
        // that the device is lost: nothing runs there.
        let _ = self.stage.wait();
    }
}
