//! A step that has run, run again: what `bench` and `tune` measure steps by.

use super::HostLaunched;
use crate::backend::StepView;
use crate::backend::cuda::driver::Address;
use crate::backend::cuda::driver::errors::failed;
use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::driver::timed::time_in_a_row;
use crate::backend::cuda::engine::program::{Span, StepCapture, StepProgram, capture_step};
use crate::backend::cuda::memory::buffer::Buffer;
use crate::error::Result;
use cudarc::driver::{CudaStream, result};
use std::time::Duration;

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

impl HostLaunched {
    /// Room for what the program carries from step to step.
    ///
    /// # Errors
    /// [`crate::error::Error::Memory`] where there is not enough.
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

    /// Keeps what the next step is to find, before [`crate::backend::StageBackend::run`] runs it.
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

    /// Puts back what the step that [`crate::backend::StageBackend::run`] ran last found, and runs it again: all is as if it had run once,
    /// whatever [`Self::repeat`] did meanwhile.
    ///
    /// # Errors
    /// Fails as [`crate::backend::StageBackend::run`] does.
    pub fn redo(&mut self, view: &StepView<'_>, carried: &Carried) -> Result<()> {
        self.put_back(carried)?;
        // SAFETY: `run` has sent this step, and `self` is borrowed alone until the wait.
        unsafe { self.launch(view, 0) }?;
        self.wait()
    }

    /// Puts `carried` back, in the stream's order.
    fn put_back(&self, carried: &Carried) -> Result<()> {
        for (span, kept) in &carried.parts {
            // SAFETY: as in `keep`.
            unsafe { copy(span.address, kept.at(0), span.bytes, &self.stream) }?;
        }
        Ok(())
    }

    /// Launches the step that [`crate::backend::StageBackend::run`] ran last once, puts back what it found, launches it `times` more, one right
    /// after the other, and waits for all of them: what a step costs where nobody schedules. The time of these, by the GPU's
    /// clock. Every launch moves on what steps carry, so it is of no use afterwards but by [`Self::redo`]; launched kernel by
    /// kernel, the steps of a row may also overlap in it.
    ///
    /// # Errors
    /// Fails as [`crate::backend::StageBackend::run`] does.
    pub fn repeat(
        &mut self,
        view: &StepView<'_>,
        carried: &Carried,
        times: u32,
    ) -> Result<Duration> {
        // SAFETY: `run` has sent this step, and `self` is borrowed alone until all has been waited for.
        let launch = || unsafe { self.launch(view, 0) };
        launch()?;
        self.put_back(carried)?;
        time_in_a_row(&self.stream, times, launch)
    }

    /// The step that [`crate::backend::StageBackend::run`] ran last, as `program` does it: what another stage would run in its place.
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
    /// Fails as [`crate::backend::StageBackend::run`] does.
    pub fn repeat_other(&mut self, step: &OtherStep, times: u32) -> Result<Duration> {
        // SAFETY: as in `repeat`.
        let launch = || unsafe { step.exec.launch() };
        launch()?;
        time_in_a_row(&self.stream, times, launch)
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
