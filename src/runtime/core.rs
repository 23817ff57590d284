//! The scheduler core as a safe value: [`Core`] takes turns, [`StageLink`]s carry steps between stages, and
//! [`super::rings::HostRings`] is the host's end of the rings. Each handle belongs to one thread at a time.

use super::memory::{Memory, acquire};
use super::options::EngineShape;
use super::rings::HostRings;
use super::sizes::Sizes;
use crate::backend::StepView;
use crate::error::Result;
use crate::plan::{EngineOptions, Ladders, RingCapacities};
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
        ladders: &Ladders,
        stages: u32,
        capacities: RingCapacities,
        record: bool,
    ) -> Result<(Self, HostRings, Vec<StageLink>)> {
        let sizes = Sizes::new(options, ladders, stages, capacities, record)?;
        Self::with(&sizes, stages)
    }

    /// A core of a shape whose sizes are settled.
    ///
    /// # Errors
    /// As [`Core::new`].
    pub fn of(shape: &EngineShape, record: bool) -> Result<(Self, HostRings, Vec<StageLink>)> {
        let sizes = Sizes::of(shape, record)?;
        Self::with(&sizes, shape.stages)
    }

    fn with(sizes: &Sizes, stages: u32) -> Result<(Self, HostRings, Vec<StageLink>)> {
        let memory = Arc::new(Memory::new(sizes)?);
        let links = (0..stages)
            .map(|stage| StageLink {
                memory: memory.clone(),
                stage,
                stages,
            })
            .collect();
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
        let gather = unsafe {
            (*self.memory.state()).inputs = *inputs;
            abi::tg_gather_phases()
        };
        self.phases(gather, inputs.now_ns);
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
            for phase in first..abi::tg_phases() {
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

/// A stage's ends of two mailboxes: it takes from its own and posts to the next stage's. Stage 0's own
/// mailbox brings finished steps back and is taken from by [`Core::turn`].
pub struct StageLink {
    memory: Arc<Memory>,
    stage: u32,
    stages: u32,
}

impl StageLink {
    /// The next step for this stage, if one has been posted.
    ///
    /// # Panics
    /// On stage 0, whose mailbox is the core's.
    pub fn take(&mut self) -> Option<u64> {
        assert_ne!(self.stage, 0, "stage 0's mailbox is taken from by the core");
        let mut step = 0;
        // SAFETY: this link is the only taker of its mailbox.
        let taken = unsafe { abi::tg_mailbox_take(self.mailbox(self.stage), &raw mut step) };
        (taken != 0).then_some(step)
    }

    /// Hands a step to the next stage (the last stage: back to the scheduler). `false` without a credit.
    pub fn post(&mut self, step: u64) -> bool {
        // SAFETY: this link is the only poster of the next stage's mailbox.
        unsafe { abi::tg_mailbox_post(self.mailbox((self.stage + 1) % self.stages), step) != 0 }
    }

    /// The descriptor of a step between [`StageLink::take`] and [`StageLink::post`].
    pub fn step(&self, number: u64) -> StepView<'_> {
        self.memory.step(number)
    }

    /// Has the scheduler ended, drained or stopped or in error?
    pub fn done(&self) -> bool {
        // SAFETY: the index is atomic on both sides.
        let action = unsafe { acquire(&raw mut (*self.memory.rings().head()).action) } as u32;
        action == abi::TG_ACTION_DONE || action == abi::TG_ACTION_ERROR
    }

    fn mailbox(&self, stage: u32) -> *mut abi::tg_mailbox {
        assert!(stage < abi::TG_MAX_STAGES);
        // SAFETY: in range of the array inside the block.
        unsafe {
            (&raw mut (*self.memory.state()).mailbox)
                .cast::<abi::tg_mailbox>()
                .add(stage as usize)
        }
    }
}
