//! A recorded schedule once more: the core composes each step again from the recorded inputs, and the backends run it.

use super::core::{Action, Between, Core};
use super::options::EngineShape;
use super::request::{Event, Request};
use super::rings::HostRings;
use super::sizes::Sizes;
use crate::backend::{InTurn, StageBackend, StepView};
use crate::error::{Error, Result};
use crate::sys::abi;
use std::collections::VecDeque;

/// Takes the requests, cancels and trace records of a run in their order and gives the run's events again.
pub struct Replayer {
    core: Core,
    rings: HostRings,
    stages: Vec<Box<dyn StageBackend>>,
    between: InTurn,
    /// Not yet seen by a turn.
    requests: VecDeque<Request>,
    cancels: VecDeque<u64>,
    pushed: u64,
    cancelled: u64,
    /// Events that the core has published, and how many of these the last turn knew to be read.
    published: u64,
    read: u64,
    steps: u64,
}

/// An engine's own sizes stay far below; a file may claim anything.
const LARGEST_BYTES: usize = 1 << 30;

impl Replayer {
    /// `shape` is that of the run. `stages` are fresh, one after the other the whole model, and made for the shape's
    /// options; how many there are is of no matter.
    ///
    /// # Errors
    /// [`Error::Usage`] for a shape that breaks one of the core's rules, or that no engine has.
    pub fn new(shape: &EngineShape, stages: Vec<Box<dyn StageBackend>>) -> Result<Self> {
        let sizes = Sizes::of(shape, false)?;
        let bytes = sizes.state_bytes.saturating_add(sizes.ring_bytes);
        if bytes > LARGEST_BYTES {
            return Err(Error::Usage(format!(
                "the scheduler takes {bytes} bytes with these sizes, expected at most {LARGEST_BYTES}: an engine has no such"
            )));
        }
        let (core, rings, _) = Core::of(shape, false, Between::NOTHING)?;
        Ok(Self {
            core,
            rings,
            between: InTurn::new(&stages, shape.options.step_tokens),
            stages,
            requests: VecDeque::new(),
            cancels: VecDeque::new(),
            pushed: 0,
            cancelled: 0,
            published: 0,
            read: 0,
            steps: 0,
        })
    }

    /// The next request, before the first turn that has seen it.
    pub fn request(&mut self, request: Request) {
        self.requests.push_back(request);
    }

    /// The next cancel, before the first turn that has seen it.
    pub fn cancel(&mut self, request: u64) {
        self.cancels.push_back(request);
    }

    /// Steps that were run.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Takes the recorded turn again, runs the step that it composes, and gives its events to `heard`.
    ///
    /// # Errors
    /// [`Error::Runtime`] where the core comes to another outcome than the recorded one, a request or cancel is
    /// missing, or a backend fails.
    pub fn turn(&mut self, record: &abi::tg_trace, heard: &mut dyn FnMut(Event)) -> Result<()> {
        self.run(record)?;
        while let Some(event) = self.rings.pop_event() {
            self.published += 1;
            heard(event);
        }
        Ok(())
    }

    /// Replays a turn as [`Replayer::turn`] does, with events as they stand in the ring: with the recorded run's clock in them.
    /// Where there
    /// are no backends their tokens mean nothing; which requests they are of, how many there are and when is right.
    ///
    /// # Errors
    /// Fails as [`Replayer::turn`] does.
    pub fn turn_timed(
        &mut self,
        record: &abi::tg_trace,
        heard: &mut dyn FnMut(&abi::tg_event),
    ) -> Result<()> {
        self.run(record)?;
        while let Some(event) = self.rings.pop_raw_event() {
            self.published += 1;
            heard(&event);
        }
        Ok(())
    }

    /// The descriptor of a step that the last turn composed.
    pub fn step(&self, number: u64) -> StepView<'_> {
        self.core.step(number)
    }

    fn run(&mut self, record: &abi::tg_trace) -> Result<()> {
        self.push(record)?;
        self.check(&record.inputs, record.turn)?;
        let action = self.core.replay(&record.inputs).action;
        let outcome = self.core.raw_outcome();
        if outcome != record.outcome {
            return Err(Error::Runtime(format!(
                "turn {}: the core comes to {outcome:?}, recorded {:?}: this version schedules differently, replay with the one that recorded",
                record.turn, record.outcome
            )));
        }
        if let Action::Step(number) = action {
            let step = self.core.step(number);
            self.between.run(&mut self.stages, step)?;
            self.steps += 1;
        }
        Ok(())
    }

    /// The core trusts its inputs: indices only grow, and nobody reads an event before it is published.
    fn check(&mut self, inputs: &abi::tg_inputs, turn: u64) -> Result<()> {
        let wrong = |what: &str, found: u64, expected: std::ops::RangeInclusive<u64>| {
            Error::Runtime(format!(
                "turn {turn}: found {found} {what}, expected {} to {}: the recording was changed",
                expected.start(),
                expected.end()
            ))
        };
        for (what, found, expected) in [
            ("requests", inputs.request_head, self.pushed..=self.pushed),
            (
                "cancels",
                inputs.control_head,
                self.cancelled..=self.cancelled,
            ),
            (
                "events that were read",
                inputs.event_tail,
                self.read..=self.published,
            ),
        ] {
            if !expected.contains(&found) {
                return Err(wrong(what, found, expected));
            }
        }
        self.read = inputs.event_tail;
        Ok(())
    }

    /// Puts what the turn has seen into the rings. There is room, since there was when the run was recorded.
    fn push(&mut self, record: &abi::tg_trace) -> Result<()> {
        let lacks = |what: &str, number: u64| {
            Error::Runtime(format!(
                "turn {} has seen {what} {number}, which the recording lacks or which does not fit its rings",
                record.turn
            ))
        };
        while self.pushed < record.inputs.request_head {
            let request = self.requests.pop_front();
            let request = request.ok_or_else(|| lacks("request", self.pushed))?;
            if self.rings.try_push_request(&request)? != Some(self.pushed) {
                return Err(lacks("request", self.pushed));
            }
            self.pushed += 1;
        }
        while self.cancelled < record.inputs.control_head {
            let cancel = self.cancels.pop_front();
            if !cancel.is_some_and(|request| self.rings.push_cancel(request)) {
                return Err(lacks("cancel", self.cancelled));
            }
            self.cancelled += 1;
        }
        Ok(())
    }
}
