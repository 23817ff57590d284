//! Steps over two GPUs that hand rows to each other, or add theirs up, in each way there is (kernels/ways/pair.h): what
//! `bench handover` compares.

mod end;
mod pair;
pub mod step;

pub use step::Foreseen;

use crate::backend::cuda::driver::exec::{Exec, LaunchedBy};
use crate::backend::cuda::driver::gpu::OpenGpu;
use crate::backend::cuda::driver::{nccl, peer};
use crate::backend::cuda::listed::handover::{Begun, Carrier, HandoverWay};
use crate::backend::cuda::tools::progress::{LOOK, Progress};
use crate::backend::cuda::tools::techniques::Chunk;
use crate::error::{Error, Result};
use libloading::Library;
use pair::Pair;
use std::mem::ManuallyDrop;
use std::time::{Duration, Instant};
use step::{STAMPS, Shared};

/// Of a kernel that waits for the other GPU, which other processes may have meanwhile. A step takes some microseconds.
pub const WAIT: Duration = Duration::from_secs(5);
fn nccl_for(way: HandoverWay) -> Result<Library> {
    nccl::found(
        &format!("--ways {}", way.name()),
        "name ways without nccl in them",
    )
}

/// Refuses a way for which these GPUs lack something.
///
/// # Errors
/// [`Error::Usage`], saying what; the driver does not say.
pub fn check(gpus: &[OpenGpu; 2], way: HandoverWay) -> Result<()> {
    if way.carrier == Carrier::Nccl {
        return nccl_for(way).map(drop);
    }
    let [a, b] = gpus.each_ref().map(|gpu| &gpu.context);
    match peer::reaches(a, b)? && peer::reaches(b, a)? {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "--ways {}: cuda:{} and cuda:{} do not reach each other's memory, expected GPUs that do (`tailgraph doctor` shows them), \
             or ways with nccl in them",
            way.name(),
            gpus[0].info.ordinal,
            gpus[1].info.ordinal
        ))),
    }
}

/// What a step is launched as.
enum Work {
    /// Nothing is captured.
    Calls,
    One(Exec),
    Each([Exec; 2]),
}

/// A way and its memory. Where it fails, both stay: the GPUs may still be at it.
pub struct Run {
    /// Graphs go before what they use.
    work: ManuallyDrop<Work>,
    pair: ManuallyDrop<Pair>,
    steps: Foreseen,
    done: u64,
    failed: bool,
}

/// Makes `way` ready for `steps`. `wait`: as [`WAIT`].
///
/// # Errors
/// As [`check`]; what the driver or NCCL refuses.
pub fn open(
    gpus: &[OpenGpu; 2],
    way: HandoverWay,
    steps: &Foreseen,
    wait: Duration,
) -> Result<Run> {
    Shared::check_layout()?;
    check(gpus, way)?;
    let pair = Pair::new(gpus, way, steps.rows(), wait.as_nanos() as u64)?;
    let by = match way.begun {
        Begun::Device => LaunchedBy::Device,
        _ => LaunchedBy::Host,
    };
    // SAFETY: a run keeps the pair until nothing runs any more.
    let work = unsafe {
        match way.begun {
            Begun::Calls => Work::Calls,
            Begun::OneGraph => Work::One(Exec::new(&pair.capture_both()?, by)?),
            Begun::Graphs | Begun::Queued | Begun::Device => {
                let [first, second] = pair.capture_each()?;
                Work::Each([Exec::new(&first, by)?, Exec::new(&second, by)?])
            }
        }
    };
    Ok(Run {
        work: ManuallyDrop::new(work),
        pair: ManuallyDrop::new(pair),
        steps: steps.clone(),
        done: 0,
        failed: false,
    })
}

impl Run {
    /// Runs `count` steps more, at most [`STAMPS`], and compares what both GPUs computed with the reference.
    ///
    /// # Errors
    /// [`Error::Runtime`] that names the way, the step, the GPU and what it waited for. It runs no more then.
    pub fn run(&mut self, count: u64) -> Result<Chunk> {
        assert!(count <= STAMPS as u64, "{count} steps in a chunk");
        assert!(!self.failed, "a way that failed is not run again");
        self.failed = true;
        let (from, until) = (self.done, self.done + count);
        for end in &mut self.pair.ends {
            end.begin(until)?;
        }
        let ran = self.launches(from, until).and_then(|launches| {
            self.wait_for_all()?;
            Ok(launches)
        });
        let launches = match ran {
            Ok(launches) => launches,
            Err(error) => return Err(self.given_up(error)),
        };
        self.check(until)?;
        let ends_ns = self.pair.ends[0].ends_ns(from, until)?;
        self.done = until;
        self.failed = false;
        Ok(Chunk { ends_ns, launches })
    }

    /// One step more, of which only the first GPU's part is launched: to see what becomes of a GPU that waits in vain.
    ///
    /// # Errors
    /// That it did; it is there for nothing else.
    #[doc(hidden)]
    pub fn run_alone(&mut self) -> Result<()> {
        self.failed = true;
        let until = self.done + 1;
        for end in &mut self.pair.ends {
            end.begin(until)?;
        }
        if let Work::Each([first, _]) = &*self.work {
            // SAFETY: the pair lives until nothing runs any more.
            unsafe { first.launch() }?;
        }
        let ran = self.spin_for(until);
        ran.map_err(|error| self.given_up(error))
    }

    /// Launches all of these steps; how many launches that took.
    fn launches(&mut self, from: u64, until: u64) -> Result<u64> {
        let waits = !matches!(self.pair.way.begun, Begun::Queued);
        if self.pair.way.begun == Begun::Device {
            return self.launch();
        }
        let mut launches = 0;
        for step in from..until {
            launches += self.launch()?;
            if waits {
                self.spin_for(step + 1)?;
            }
        }
        self.spin_for(until)?;
        Ok(launches)
    }

    /// A step, or, where the GPUs begin the next ones, all of them.
    fn launch(&self) -> Result<u64> {
        /// Of a step that is not captured: four kernels and two copies.
        const QUEUED: u64 = 6;
        // SAFETY: the pair lives until nothing runs any more.
        unsafe {
            match &*self.work {
                Work::Calls => self.pair.queue().map(|()| QUEUED),
                Work::One(graph) => graph.launch().map(|()| 1),
                Work::Each(graphs) => {
                    graphs.iter().try_for_each(|graph| graph.launch())?;
                    Ok(2)
                }
            }
        }
    }

    /// After a failure: ends what waits without an end, and takes what a GPU says of it for what the host saw.
    fn given_up(&mut self, error: Error) -> Error {
        if let Some(nccl) = &mut self.pair.nccl {
            nccl.abort();
            return error;
        }
        // What a kernel waits for in vain ends by itself.
        let until = Instant::now() + 2 * WAIT;
        while !self.is_done().unwrap_or(true) {
            if Instant::now() > until {
                return error;
            }
            std::thread::sleep(LOOK);
        }
        self.told_failure().err().unwrap_or(error)
    }

    /// # Errors
    /// What a GPU has noted; the driver refuses to say.
    fn told_failure(&mut self) -> Result<()> {
        let ordinals = self.pair.ends.each_ref().map(|end| end.ordinal());
        for (index, end) in self.pair.ends.iter_mut().enumerate() {
            let limit = Duration::from_nanos(end.shared.limit_ns);
            end.end()?;
            if let Some(failure) = end.shared.failure() {
                let gpus = [ordinals[index], ordinals[1 - index]];
                let way = self.pair.way.name();
                return Err(Error::Runtime(failure.message(way, gpus, limit)));
            }
        }
        Ok(())
    }

    /// What both GPUs have is what is right.
    fn check(&mut self, until: u64) -> Result<()> {
        self.told_failure()?;
        let expected = self.steps.token(until);
        let way = self.pair.way.name();
        for end in &self.pair.ends {
            if end.shared.step != until {
                return Err(self.ended_early(until));
            }
            if end.shared.token != expected {
                return Err(Error::Runtime(format!(
                    "{way}: after {until} steps of {} rows cuda:{} has the token {:016x}, expected {expected:016x}, as every way gives: \
                     rows were missing, late or of another step",
                    self.steps.rows(),
                    end.ordinal(),
                    end.shared.token
                )));
            }
        }
        Ok(())
    }

    /// Steps so far.
    pub fn done(&self) -> u64 {
        self.done
    }

    /// After all steps so far.
    pub fn token(&self) -> u64 {
        self.pair.ends[0].shared.token
    }
}

impl Progress for Run {
    /// A kernel on each GPU may have waited by then.
    const STEP_TIMEOUT: Duration = Duration::from_secs(12);

    fn is_done(&self) -> Result<bool> {
        let [first, second] = &self.pair.ends;
        Ok(first.is_done()? && second.is_done()?)
    }

    /// As the first GPU says.
    fn steps_told(&self) -> u64 {
        self.pair.ends[0].told()
    }

    /// As in `stores-spin: step 3`; which GPU a step waits for, its kernels say.
    fn late(&self, limit: Duration) -> Error {
        let at = self.pair.ends.each_ref().map(|end| {
            let (gpu, steps) = (end.ordinal(), end.told());
            format!("cuda:{gpu} at step {steps}")
        });
        Error::Runtime(format!(
            "{}: found {} and {} after {} s, expected microseconds a step: another process may hold a GPU, or one failed",
            self.pair.way.name(),
            at[0],
            at[1],
            limit.as_secs()
        ))
    }

    fn ended_early(&self, until: u64) -> Error {
        let [first, second] = self.pair.ends.each_ref().map(|end| end.told());
        let [a, b] = self.pair.ends.each_ref().map(|end| end.ordinal());
        Error::Runtime(format!(
            "{}: all launches ended with cuda:{a} at step {first} and cuda:{b} at step {second}, expected {until} steps: a launch was \
             lost",
            self.pair.way.name()
        ))
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if !self.failed {
            // SAFETY: dropped here alone; nothing runs, and graphs go before the memory, and before the NCCL, that they use.
            unsafe {
                ManuallyDrop::drop(&mut self.work);
                ManuallyDrop::drop(&mut self.pair);
            }
        }
    }
}
