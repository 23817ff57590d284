//! The scheduler core as a safe value: [`Core`] takes turns, [`super::links::StageLink`]s carry steps between stages, and
//! [`super::rings::HostRings`] is the host's end of the rings. Each handle belongs to one thread at a time.

use super::links::{StageLink, links};
use super::memory::Memory;
use super::options::EngineShape;
use super::rings::HostRings;
use super::sizes::Sizes;
use crate::backend::StepView;
use crate::error::Result;
use crate::plan::{BucketSizes, EngineOptions, RingCapacities};
use crate::sys::abi;
use std::sync::Arc;

/// What the caller of a turn does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing to launch: wait for news.
    Idle,
    /// Run the step of this number, then turn again.
    Step(u64),
    /// The host must read events (or recorded turns) first.
    Blocked,
    /// Drained or stopped.
    Done,
    /// The core found itself broken, with this `TG_ERROR_*`.
    Error(u32),
}

/// What came of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    pub action: Action,
    /// False only for a turn that found nothing new.
    pub changed: bool,
    /// Slots in use.
    pub running: u32,
    /// Requests seen and still waiting.
    pub queue_depth: u32,
    pub free_pages: u32,
}

/// What threads that run stages hand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Between {
    /// Those with a thread of their own: one where a backend runs all of the core's.
    pub stages: u32,
    /// f32 that a row's activations are.
    pub row_floats: usize,
}

impl Between {
    /// One thread runs all stages.
    pub const NOTHING: Self = Self {
        stages: 1,
        row_floats: 0,
    };
}

/// The core compiled for the host. Exactly one exists per memory.
pub struct Core {
    memory: Arc<Memory>,
}

impl Core {
    /// Allocates the scheduler's memory: the core, the host's end of its rings, and one link per stage.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] naming the options where they break a rule of the core; [`crate::Error::Memory`] where
    /// the system has no room for the two blocks.
    pub fn new(
        options: &EngineOptions,
        bucket_sizes: &BucketSizes,
        stages: u32,
        capacities: RingCapacities,
        record: bool,
    ) -> Result<(Self, HostRings, Vec<StageLink>)> {
        let sizes = Sizes::new(options, bucket_sizes, stages, capacities, record)?;
        Self::with(
            &sizes,
            Between {
                stages,
                row_floats: 0,
            },
        )
    }

    /// A core of a shape whose sizes are settled, with what is between the threads that run its stages.
    ///
    /// # Errors
    /// Fails as [`Core::new`] does.
    pub fn of(
        shape: &EngineShape,
        record: bool,
        between: Between,
    ) -> Result<(Self, HostRings, Vec<StageLink>)> {
        let sizes = Sizes::of(shape, record)?;
        Self::with(&sizes, between)
    }

    fn with(sizes: &Sizes, between: Between) -> Result<(Self, HostRings, Vec<StageLink>)> {
        let memory = Arc::new(Memory::new(sizes)?);
        let links = links(&memory, sizes, between.stages, between.row_floats)?;
        let rings = HostRings::new(memory.rings().clone());
        Ok((Self { memory }, rings, links))
    }

    /// One turn at `now_ns`; `end_ns` reads the same clock once more for the trace record.
    pub fn turn(&mut self, now_ns: u64, end_ns: impl FnOnce() -> u64) -> Outcome {
        self.phases(0, now_ns);
        // SAFETY: the blocks are initialised, and only this handle's thread writes the trace.
        unsafe {
            abi::tg_trace_write(self.memory.state(), self.memory.rings().head(), end_ns(), 0);
        }
        self.outcome()
    }

    /// One turn from a record's inputs instead of the outside: it composes the step that was composed then.
    /// The requests and cancels below the recorded indices must be in the rings.
    pub fn replay(&mut self, inputs: &abi::tg_inputs) -> Outcome {
        // SAFETY: only this handle's thread touches the inputs; the gather phases are left out, so nothing
        // else writes them.
        unsafe { (*self.memory.state()).inputs = *inputs };
        self.phases(abi::TG_GATHER_PHASES, inputs.now_ns);
        self.outcome()
    }

    /// What came of the last turn, as a trace record has it.
    pub(super) fn raw_outcome(&self) -> abi::tg_outcome {
        // SAFETY: only this handle's thread writes the outcome.
        unsafe { (*self.memory.state()).outcome }
    }

    /// Steps composed so far.
    pub fn steps_composed(&self) -> u64 {
        // SAFETY: only this handle's thread writes it.
        unsafe { (*self.memory.state()).steps_composed }
    }

    /// The descriptor of a step that is in flight.
    pub fn step(&self, number: u64) -> StepView<'_> {
        self.memory.step(number)
    }

    fn phases(&mut self, first: u32, now_ns: u64) {
        // SAFETY: the blocks are initialised; turns are taken by this handle's thread only, and what other
        // threads touch meanwhile is ordered by the indices and mailboxes.
        unsafe {
            for phase in first..abi::TG_PHASES {
                abi::tg_phase(
                    self.memory.state(),
                    self.memory.rings().head(),
                    now_ns,
                    phase,
                    0,
                    1,
                );
            }
        }
    }

    fn outcome(&self) -> Outcome {
        let outcome = self.raw_outcome();
        Outcome {
            action: match outcome.action {
                abi::TG_ACTION_IDLE => Action::Idle,
                abi::TG_ACTION_STEP => Action::Step(outcome.step),
                abi::TG_ACTION_BLOCKED => Action::Blocked,
                abi::TG_ACTION_DONE => Action::Done,
                _ => Action::Error(outcome.error),
            },
            changed: outcome.changed != 0,
            running: outcome.running,
            queue_depth: outcome.queue_depth,
            free_pages: outcome.free_pages,
        }
    }
}
